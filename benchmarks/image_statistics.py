"""What a network loses when layers normalize with an image's own statistics (`ptn`), and which layers cost most.

    python benchmarks/image_statistics.py DATA                     # four CIFAR networks: ten minutes on one core
    python benchmarks/image_statistics.py DATA --model mine.py:load --title "ResNet-26"      # another network

DATA holds `cifar10c/`, `cifar10/test_1000.npz` and `weights/`. The images are the first of each of the 15 kinds at
severity 5, and as many clean ones; `tent` runs on 150 of them. A stage is all BatchNorm layers whose features have the
same size. `mean` and `variance` replace only one of the two by the image's. `spread` is the share of a channel's source
variance that lies between the means of clean images, by stage: that much of what the layer passes on is removed by the
image's mean.

The second table pools the statistics over several images of one kind: of one class, or of all classes. If the small
number of positions were the reason for the loss, both would help alike.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from study.networks import NETWORKS, Folders
from torch.nn.modules.batchnorm import _BatchNorm

from sita_workbench.baselines import Tent
from sita_workbench.models.loaded import LoadedModel
from sita_workbench.models.loading import load_model

_FOUR = "resnet20,resnet56,densenet,mobilenet"
TENT_COUNT = 150
"""About as many images are run with TENT."""


def normalized(layer: _BatchNorm, x: torch.Tensor, parts: str) -> torch.Tensor:
    """Return the input that makes the layer normalize with the mean, the variance, or both, of what runs.

    Every image has its own, or, if `parts` says so, all images of the call share them.
    """
    axes = (0, 2, 3) if "shared" in parts else (2, 3)
    assert layer.running_mean is not None
    assert layer.running_var is not None
    m_s, v_s = (each.view(-1, 1, 1) for each in (layer.running_mean, layer.running_var))
    mean = x.mean(axes, keepdim=True) if "mean" in parts else m_s
    variance = x.var(axes, correction=0, keepdim=True) if "variance" in parts else v_s
    return (x - mean) * torch.sqrt((v_s + layer.eps) / (variance + layer.eps)) + m_s


@contextmanager
def own_statistics(layers: Iterable[_BatchNorm], parts: str = "mean, variance") -> Iterator[None]:
    """Let these layers normalize every image with its own statistics."""
    hooks = [
        layer.register_forward_pre_hook(lambda each, arguments: (normalized(each, arguments[0], parts),))
        for layer in layers
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def stages_of(model: torch.nn.Module, image: torch.Tensor) -> dict[int, list[_BatchNorm]]:
    """Return the BatchNorm layers by the height of their features, the largest first."""
    sizes: dict[_BatchNorm, int] = {}
    layers = [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]
    hooks = [
        layer.register_forward_pre_hook(lambda each, arguments: sizes.__setitem__(each, arguments[0].shape[2]))
        for layer in layers
    ]
    with torch.inference_mode():
        model(image)
    for hook in hooks:
        hook.remove()
    found: dict[int, list[_BatchNorm]] = {}
    for layer in layers:
        found.setdefault(sizes[layer], []).append(layer)
    return dict(sorted(found.items(), reverse=True))


def spread_of(model: torch.nn.Module, layers: list[_BatchNorm], images: torch.Tensor) -> float:
    """Return the median over channels of Var(mean of an image) / source variance."""
    means: dict[_BatchNorm, list[torch.Tensor]] = {layer: [] for layer in layers}
    hooks = [
        layer.register_forward_pre_hook(lambda each, arguments: means[each].append(arguments[0].mean((2, 3))))
        for layer in layers
    ]
    with torch.inference_mode():
        for part in images.split(100):
            model(part)
    for hook in hooks:
        hook.remove()
    shares = [torch.cat(means[layer]).var(0) / layer.running_var for layer in layers]
    return torch.cat(shares).median().item()


def accuracy(model: Any, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the accuracy in percent."""
    with torch.inference_mode():
        found = torch.cat([model(part).argmax(1) for part in images.split(100)])
    return 100 * (found == labels).float().mean().item()


def load_images(data: Path, loaded: LoadedModel, limit: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return encoded images and labels: shifted, the first `limit` of each kind at severity 5; and clean ones."""
    kept, corrupted = np.load(data / "cifar10c/labels.npy"), []
    start = len(kept) // 5 * 4
    for path in sorted((data / "cifar10c").glob("*.npy")):
        if path.stem != "labels":
            corrupted.append(np.load(path, mmap_mode="r")[start : start + limit])
    clean = np.load(data / "cifar10/test_1000.npz")
    parts = {
        "severity 5": (np.concatenate(corrupted), np.tile(kept[start : start + limit], len(corrupted))),
        "clean": (clean["images"][: 15 * limit], clean["labels"][: 15 * limit]),
    }
    return {
        name: (torch.from_numpy(loaded.arrange(loaded.encode(images)).copy()), torch.from_numpy(labels.astype(int)))
        for name, (images, labels) in parts.items()
    }


def measure(title: str, loaded: LoadedModel, data: Path, limit: int) -> None:
    """Print the network's two lines."""
    model, parts = loaded.model, load_images(data, loaded, limit)
    stages = stages_of(model, parts["clean"][0][:1])
    every = [layer for layers in stages.values() for layer in layers]
    last = list(stages.values())[-1]
    spreads = [f"{size}²: {spread_of(model, layers, parts['clean'][0]):.2f}" for size, layers in stages.items()]
    print(f"\n{title}, {len(every)} layers; spread {', '.join(spreads)}", flush=True)
    variants = {
        "ptn": (every, "mean, variance"),
        **{f"only {size}²": (layers, "mean, variance") for size, layers in stages.items()},
        "all but the last stage": ([layer for layer in every if layer not in last], "mean, variance"),
        "all but the last layer": (every[:-1], "mean, variance"),
        "only the last layer": (every[-1:], "mean, variance"),
        "mean": (every, "mean"),
        "variance": (every, "variance"),
    }
    print(f"| images | source | tent | {' | '.join(variants)} |", flush=True)
    for name, (images, labels) in parts.items():
        fewer = torch.arange(len(images))[:: max(1, len(images) // TENT_COUNT)]  # it is slow
        found = [accuracy(model, images, labels), accuracy(Tent(model), images[fewer], labels[fewer])]
        for layers, which in variants.values():
            with own_statistics(layers, which):
                found.append(accuracy(model, images, labels))
        print(f"| {name} ({len(images)}) | {' | '.join(f'{each:.1f}' for each in found)} |", flush=True)


def measure_pooled(title: str, loaded: LoadedModel, data: Path, size: int = 20) -> None:
    """Print the accuracy at severity 5 with statistics of groups of images: each alone, one class, all classes."""
    model, (images, labels) = loaded.model, load_images(data, loaded, 200)["severity 5"]
    layers = [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]
    kinds = torch.arange(len(images)) // 200
    groups = {
        "each image": [torch.arange(len(images))],
        "one class": [
            ((kinds == kind) & (labels == label)).nonzero()[:, 0] for kind in range(15) for label in range(10)
        ],
        "all classes": list(torch.arange(len(images)).split(size)),
    }
    print(f"\n{title}, {len(images)} images: source {accuracy(model, images, labels):.1f}", end="")
    for name, members in groups.items():
        with own_statistics(layers, f"mean, variance{', shared' if len(members) > 1 else ''}"):
            right = [accuracy(model, images[group], labels[group]) * len(group) for group in members]
        print(f"; {name} {sum(right) / len(images):.1f}", end="", flush=True)
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--limit", type=int, default=40, help="images of each of the 15 kinds (40)")
    parser.add_argument("--only", help="some of the four networks, separated by commas")
    parser.add_argument("--model", help="another network, as `sita bench` takes it")
    parser.add_argument("--weights", help="its weights")
    parser.add_argument("--title", default="network")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.model:
        chosen = {options.title: load_model(options.model, options.weights)}
    else:
        folders = Folders(options.data, None, Path())
        networks = [NETWORKS[name] for name in (options.only or _FOUR).split(",")]
        chosen = {network.title: network.load(folders) for network in networks}
    for title, loaded in chosen.items():
        measure(title, loaded, options.data, options.limit)
        measure_pooled(title, loaded, options.data)


if __name__ == "__main__":
    main()
