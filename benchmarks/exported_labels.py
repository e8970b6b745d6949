"""Whether exported files predict what the adapted model predicts, on images of CIFAR-10-C.

    python benchmarks/exported_labels.py DATA --images 40     # the first of each corruption's file
    python benchmarks/exported_labels.py DATA --framework keras --formats onnx,litert

DATA holds `cifar10c/` and `weights/cifar10_resnet20.safetensors`: one set of weights for both frameworks. PyTorch
encodes the images for both. Files are run by onnxruntime, torch.export, LiteRT and TensorFlow.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from scipy.special import softmax

import sita_adapters as sita
from sita_workbench.exported.runtimes import open_exported
from sita_workbench.progress import ConsoleProgress

_BATCH = 20
_FILES = {
    "torch": {"onnx": "model.onnx", "pt2": "model.pt2"},
    "keras": {"onnx": "model.onnx", "litert": "model.tflite", "saved_model": "model"},
}
Run = Callable[[np.ndarray], np.ndarray]


def load_torch(weights: Path) -> tuple[Any, Run, Callable[[Any], Run]]:
    """Return the network, how images are encoded for it, and how an adapted one runs on numpy."""
    import torch

    from sita_workbench.networks.cifar_resnet import encode, load_cifar_resnet

    def runner(adapted: torch.nn.Module) -> Run:
        @torch.no_grad()
        def run(images: np.ndarray) -> np.ndarray:
            return adapted(torch.from_numpy(images)).numpy()

        return run

    return load_cifar_resnet(20, weights), lambda images: encode(images).numpy(), runner


def load_keras(weights: Path) -> tuple[Any, Run, Callable[[Any], Run]]:
    """Return the same in Keras."""
    from cifar_resnet_keras import load_cifar_resnet_keras

    from sita_workbench.networks.cifar_resnet import encode

    def channels_last(images: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(encode(images).permute(0, 2, 3, 1).numpy())

    return load_cifar_resnet_keras(20, weights), channels_last, lambda adapted: adapted.predict_on_batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--framework", choices=tuple(_FILES), default="torch")
    parser.add_argument("--images", type=int, default=40, help="of each corruption (40)")
    parser.add_argument("--recipes", default="augbn,ops_shared,ops")
    parser.add_argument("--formats", help="torch: onnx,pt2; keras: onnx,litert,saved_model (all of them)")
    options = parser.parse_args()
    files = _FILES[options.framework]
    formats = options.formats.split(",") if options.formats else list(files)
    if unknown := set(formats) - set(files):
        parser.error(f"--formats: expected of {', '.join(files)}; received {', '.join(unknown)}")

    kinds = sorted(path for path in (options.data / "cifar10c").glob("*.npy") if path.stem != "labels")
    images = np.concatenate([np.load(kind, mmap_mode="r")[: options.images] for kind in kinds])
    load = {"torch": load_torch, "keras": load_keras}[options.framework]
    model, encode, runner = load(options.data / "weights" / "cifar10_resnet20.safetensors")
    batches = [encode(images[start : start + _BATCH]) for start in range(0, len(images), _BATCH)]
    progress = ConsoleProgress(Console())
    for recipe in options.recipes.split(","):
        adapted = sita.adapt(model, recipe)
        run = runner(adapted)
        expected = [run(batch) for batch in batches]
        for name in formats:
            same, largest = 0, 0.0
            with tempfile.TemporaryDirectory() as folder:
                written = sita.export(adapted, Path(folder) / files[name], example=batches[0][:2])
                file = open_exported(written.path, written.format)
                with progress.track(f"{recipe}, {name}", len(images)) as advance:
                    for batch, scores in zip(batches, expected, strict=True):
                        answered = file.run(batch)["scores"]
                        same += int((scores.argmax(1) == answered.argmax(1)).sum())
                        largest = max(largest, float(np.abs(softmax(scores, axis=1) - softmax(answered, axis=1)).max()))
                        advance(len(batch))
            labels = f"{same} of {len(images)} labels the same"
            progress.say(f"{recipe:<10} {name:<11} {labels}, probabilities off by {largest:.1e} at most")


if __name__ == "__main__":
    main()
