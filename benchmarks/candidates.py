"""Run every (views, prior) pair once and keep what the model said, so that recipes can be put together afterwards.

Under AugBN the answer of a prior does not depend on the other priors, so that the candidates of any OPS (its priors,
how many decide, vote or mean) are lines of one table of logits. With views shared by the priors that is not so; what
their rows say depends on the lowest prior, and is kept for each of some.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import sita_adapters as sita
from sita_workbench.corruptions import KINDS, corrupt_all
from sita_workbench.files import replacing
from sita_workbench.networks.cifar_resnet import encode, load_cifar_resnet

FINE = (0.2, 0.3, 0.4, *(0.5 + 0.5 * p / 14 for p in range(15)))
COARSE = (0.3, 0.4, *(0.5 + 0.5 * p / 7 for p in range(8)))
"""Both have the paper's eight priors in them."""

SEVERITY = 5


def cifar(data: Path, depth: int, first: int, last: int) -> tuple[Any, torch.Tensor, np.ndarray, list[str]]:
    """Return a CIFAR ResNet and images first … last of every kind of CIFAR-10-C at severity 5."""
    labels = np.load(data / "cifar10c" / "labels.npy")
    count = len(labels) // 5 if len(labels) % 5 == 0 and len(labels) > 200 else len(labels)
    images = []
    for kind in KINDS:
        stored = np.load(data / "cifar10c" / f"{kind}.npy", mmap_mode="r")
        images.append(stored[(SEVERITY - 1) * count + first : (SEVERITY - 1) * count + last])
    model = load_cifar_resnet(depth, data / "weights" / f"cifar10_resnet{depth}.safetensors")
    return model, encode(np.concatenate(images)), np.tile(labels[first:last], len(KINDS)), list(KINDS)


def imagenet(data: Path, count: int, size: int, severity: int) -> tuple[Any, torch.Tensor, np.ndarray, list[str]]:
    """Return Keras' ResNet50, ported to PyTorch, and some ImageNet images under every kind of corruption."""
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import sita_workbench.models.torchvision_compat  # noqa: F401  (before torchvision)
    from sita_adapters.porting import torch_twin
    from sita_workbench.networks.imagenet_images import encode as encode_caffe
    from sita_workbench.networks.imagenet_images import load_images, load_resnet50

    images, labels = load_images(data, count, size)
    corrupted = np.concatenate([corrupt_all(images, kind, severity) for kind in KINDS])
    model = torch_twin(load_resnet50(data, size, activation=None))
    encoded = torch.from_numpy(encode_caffe(corrupted)).permute(0, 3, 1, 2)
    return model.eval(), encoded, np.tile(labels, len(KINDS)), list(KINDS)


def jobs(
    views: list[int], priors: tuple[float, ...], lowest: list[float]
) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """Yield what to run: a name, and the adaptation."""
    yield "n0_1.000", lambda model: model
    for n in views:
        for prior in priors[:-1]:
            recipe = "augbn" if n else "bn"
            changes = {"priors": prior, **({"n_views": n} if n else {})}
            yield f"n{n}_{prior:.3f}", lambda model, r=recipe, c=changes: sita.adapt(model, r, **c)
        for low in lowest if n else []:
            grid = tuple(p for p in priors if p >= low)
            yield (
                f"shared_n{n}_{low:.3f}",
                lambda model, g=grid, n=n: sita.adapt(model, "ops_shared", priors=g, n_views=n),
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--network", choices=("resnet20", "resnet56", "imagenet"), default="resnet20")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--last", type=int, default=200)
    parser.add_argument("--size", type=int, default=160, help="side of the ImageNet images")
    parser.add_argument("--severity", type=int, default=3, help="of the ImageNet images")
    parser.add_argument("--views", default="0,1,2,3,5,7")
    parser.add_argument("--coarse", action="store_true", help="ten priors instead of eighteen")
    parser.add_argument("--lowest", default="0.3,0.4,0.5")
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.network == "imagenet":
        model, images, labels, kinds = imagenet(
            options.data, options.last - options.first, options.size, options.severity
        )
    else:
        model, images, labels, kinds = cifar(options.data, int(options.network[6:]), options.first, options.last)
    np.savez(options.out / "labels.npz", labels=labels, kinds=np.array(kinds))
    priors = COARSE if options.coarse else FINE
    lowest = [float(p) for p in options.lowest.split(",") if p]
    views = [int(n) for n in options.views.split(",")]
    todo = [job for job in jobs(views, priors, lowest) if not (options.out / f"{job[0]}.npz").exists()]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, disable=not sys.stdout.isatty()) as progress, torch.inference_mode():
        task = progress.add_task("running", total=len(todo))
        for name, make in todo:
            adapted = make(model)
            batches = images.split(options.batch)
            kept: dict[str, np.ndarray]
            if name.startswith("shared"):
                with sita.observe(adapted) as seen:
                    for batch in batches:
                        adapted(batch)
                kept = {"labels": seen.labels, "entropies": seen.entropies, "priors": np.array(seen.candidates)}
            else:
                kept = {"logits": torch.cat([adapted(batch) for batch in batches]).numpy().astype(np.float32)}
            with replacing(options.out / f"{name}.npz") as temporary:
                np.savez(temporary, **kept)
            progress.advance(task)
            if not sys.stdout.isatty():
                print(name, flush=True)


if __name__ == "__main__":
    main()
