"""Time and accuracy of this library's recipes, ttach, TENT, MEMO and MixNorm, in one run on the same images.

    python benchmarks/peers.py DATA               # a ResNet-20 on CIFAR-10-C, severity 5: ten minutes on one core
    python benchmarks/peers.py DATA --throughput  # images per second of a DataLoader loop: ten minutes

DATA holds `cifar10c/` and `weights/cifar10_resnet20.safetensors`. Every method runs on one image at a time and starts
from the source's weights. `bn` is what robusta's BatchNorm computes with N = 16. TENT, MEMO and MixNorm are this
project's (`sita_workbench.baselines`). The first run writes benchmarks/results/peers.json and docs/images/peers.png.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fair import alternate, keep_memory, picture

_ROOT = Path(__file__).parents[1]
_RESULTS, _FIGURE = _ROOT / "benchmarks/results/peers.json", _ROOT / "docs/images/peers.png"
OURS = ("bn", "shift", "auto", "restore", "ops")
_OFFSETS = {"shift": (-34, -2), "auto": (-12, -18), "ttach, 4 views": (8, -4)}


def methods_of(model: Any, recipes: tuple[str, ...] = OURS, inputs: Any = None) -> dict[str, Any]:
    """Return the models to compare, by name; the published methods only if `inputs` says how pixels are encoded."""
    import ttach

    import sita_adapters as sita
    from sita_workbench.baselines import Memo, MixNorm, Tent

    steps = ttach.Compose([ttach.HorizontalFlip(), ttach.Multiply([1.1])])  # each with the identity: four views
    assert len(list(steps)) == 4
    views = ttach.ClassificationTTAWrapper(model, steps)
    found = {"source": model, **{name: sita.adapt(model, name) for name in recipes}, "ttach, 4 views": views}
    if inputs is None:
        return found
    return found | {"TENT": Tent(model), "MEMO": Memo(model, inputs), "MixNorm": MixNorm(model, inputs)}


def load(data: Path, limit: int) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """Return the network, and the first images of every kind of corruption at severity 5 with their labels."""
    from sita_workbench.models.loading import load_model

    loaded = load_model("cifar10-resnet20", str(data / "weights/cifar10_resnet20.safetensors"))
    labels, images = np.load(data / "cifar10c/labels.npy"), []
    start = len(labels) // 5 * 4  # five equal blocks, one for each severity
    for path in sorted((data / "cifar10c").glob("*.npy")):
        if path.stem != "labels":
            images.append(np.load(path, mmap_mode="r")[start : start + limit])
    encoded = loaded.encode(np.concatenate(images))
    kinds = np.tile(labels[start : start + limit], len(images))
    return loaded, torch.from_numpy(np.moveaxis(encoded, -1, 1).copy()), torch.from_numpy(kinds.astype(np.int64))


def on(model: Any, images: torch.Tensor) -> Callable[[], torch.Tensor]:
    def call() -> torch.Tensor:
        with torch.inference_mode():
            return model(images)  # type: ignore[no-any-return]

    return call


def compare(data: Path, limit: int, turns: int) -> dict[str, Any]:
    """Return accuracy in percent and milliseconds per image of every method."""
    from rich.console import Console

    from sita_workbench.progress import ConsoleProgress

    loaded, images, labels = load(data, limit)
    methods, right = methods_of(loaded.model, inputs=loaded.inputs), {}
    with ConsoleProgress(Console()).track("Comparing", len(methods) * len(images)) as advance:
        for name, method in methods.items():
            found = []
            for image in images.split(1):
                found.append(on(method, image)().argmax(1))
                advance(doing=name)
            right[name] = 100 * (torch.cat(found) == labels).float().mean().item()
    times = milliseconds(methods, images[:1], turns)
    rows = {name: {"accuracy": round(right[name], 2), "ms": times[name]} for name in methods}
    return {"images": len(images), "turns": turns, "methods": rows}


def milliseconds(methods: dict[str, Any], image: torch.Tensor, turns: int) -> dict[str, float]:
    """Return the processor time per image of every method, on one thread."""
    seconds = alternate({name: on(method, image) for name, method in methods.items()}, turns, time.process_time)
    return {name: round(1e3 * statistics.median(seconds[name]), 2) for name in methods}


def throughput() -> None:
    """Print images per second of a DataLoader loop, batches of 32 and 128, as a table."""
    import sita_workbench.models.torchvision_compat  # noqa: F401  (before timm)

    import timm  # isort: skip
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    print("| network | batch | plain | auto | restore | ttach, 4 views |\n| --- | ---: | ---: | ---: | ---: | ---: |")
    for name in ("mobilenetv2_100", "resnet18"):
        model = timm.create_model(name, pretrained=False).eval()
        methods = methods_of(model, ("auto", "restore"))
        for batch in (32, 128):
            loader = DataLoader(TensorDataset(torch.from_numpy(picture(224)).repeat(batch, 1, 1, 1)), batch_size=batch)

            def loop(method: Any, loader: Any = loader) -> None:
                for (images,) in loader:
                    on(method, images)()

            seconds = alternate({key: (lambda method=method: loop(method)) for key, method in methods.items()}, 1)
            rates = [f"{batch / statistics.median(seconds[key]):.1f}" for key in methods]
            print(f"| {name} | {batch} | {' | '.join(rates)} |", flush=True)


def draw(results: dict[str, Any]) -> None:
    """Draw accuracy over time."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for name, found in results["methods"].items():
        color = "#009E73" if name in OURS else "#555555" if name == "source" else "#D55E00"
        axes.plot(found["ms"], found["accuracy"], "o", color=color, markersize=8)
        offset = _OFFSETS.get(name, (8, -4))
        axes.annotate(name, (found["ms"], found["accuracy"]), offset, textcoords="offset points", fontsize=10)
    axes.set(xscale="log", xlabel="milliseconds of processor time per image (one thread)", ylabel="accuracy, %")
    axes.set_xticks(ticks := [2, 5, 10, 20, 50, 100], labels=map(str, ticks))
    axes.minorticks_off()
    axes.set_xlim(right=1.6 * axes.get_xlim()[1])
    axes.grid(color="#E3E3E3")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"ResNet-20 on CIFAR-10-C, severity 5 ({results['images']} images)", fontsize=11)
    figure.savefig(_FIGURE, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--limit", type=int, default=40, help="images of each of the 15 kinds (40)")
    parser.add_argument("--turns", type=int, default=15, help="turns that are timed (15)")
    parser.add_argument("--throughput", action="store_true")
    options = parser.parse_args()
    keep_memory()
    torch.set_num_threads(1)
    if options.throughput:
        throughput()
        return
    results = compare(options.data, options.limit, options.turns)
    _RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    draw(results)
    for name, found in results["methods"].items():
        print(f"{name:<16} {found['accuracy']:5.1f} %  {found['ms']:7.1f} ms")


if __name__ == "__main__":
    main()
