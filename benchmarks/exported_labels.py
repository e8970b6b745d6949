"""Whether exported files answer as the adapted model does, on images of CIFAR-10-C.

    python benchmarks/exported_labels.py DATA --images 40     # the first of each file

DATA holds `cifar10c/` and `weights/cifar10_resnet20.safetensors`. Files are run by onnxruntime, torch.export and
TorchScript, without code of ours.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from rich.console import Console

import sita_adapters as sita
from sita_adapters.bench.console import ConsoleProgress
from sita_adapters.bench.networks.cifar_resnet import encode, load_cifar_resnet

_BATCH = 20
Run = Callable[[torch.Tensor], torch.Tensor]


def open_file(path: Path) -> Run:
    """Return how the file answers."""
    if path.suffix == ".onnx":
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        return lambda batch: torch.from_numpy(session.run(None, {"images": batch.numpy()})[0])
    return torch.export.load(path).module() if path.suffix == ".pt2" else torch.jit.load(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--images", type=int, default=40, help="of each corruption (40)")
    parser.add_argument("--recipes", default="augbn,ops_shared,ops")
    parser.add_argument("--formats", default="onnx,pt2,ts", help="endings of files: onnx, pt2, ts")
    options = parser.parse_args()
    kinds = sorted(path for path in (options.data / "cifar10c").glob("*.npy") if path.stem != "labels")
    images = np.concatenate([np.load(kind, mmap_mode="r")[: options.images] for kind in kinds])
    model = load_cifar_resnet(20, options.data / "weights" / "cifar10_resnet20.safetensors")
    progress = ConsoleProgress(Console())
    cases = [(recipe, ending) for recipe in options.recipes.split(",") for ending in options.formats.split(",")]
    for recipe, ending in cases:
        adapted = sita.adapt(model, recipe)
        same, largest = 0, 0.0
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            run = open_file(sita.export(adapted, Path(folder) / f"model.{ending}", example=encode(images[:2])).path)
            with progress.track(f"{recipe}, {ending}", len(images)) as advance:
                for start in range(0, len(images), _BATCH):
                    batch = encode(images[start : start + _BATCH])
                    expected, answered = adapted(batch).softmax(1), run(batch).softmax(1)
                    same += int((expected.argmax(1) == answered.argmax(1)).sum())
                    largest = max(largest, float((expected - answered).abs().max()))
                    advance(len(batch))
        labels = f"{same} of {len(images)} labels the same"
        progress.say(f"{recipe:<10} .{ending:<5} {labels}, probabilities off by {largest:.1e} at most")


if __name__ == "__main__":
    main()
