"""What a cascade costs and gains on CIFAR-10, clean and corrupted, beside the source model and OPS.

    python benchmarks/cascade.py DATA --depth 20

One image a call, one thread; the three take turns image by image, so that a slow moment of the machine hits all.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

import sita_adapters as sita
from sita_workbench.networks.cifar_resnet import encode, load_cifar_resnet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--depth", type=int, default=20, choices=(20, 56))
    parser.add_argument("--entropy", type=float, default=0.1, help="threshold in nats (0.1)")
    parser.add_argument("--severity", type=int, default=5, choices=range(1, 6))
    parser.add_argument("--clean", type=int, default=1000, help="clean images (1000)")
    parser.add_argument("--limit", type=int, default=None, help="images a corruption; all if left out")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)

    weights = options.data / "weights" / f"cifar10_resnet{options.depth}.safetensors"
    model = load_cifar_resnet(options.depth, weights)
    adapted = sita.adapt(model)
    cascade = sita.cascade(model, adapted, entropy=options.entropy)
    methods = {"source": model, "ops": adapted, "cascade": cascade}

    clean = np.load(options.data / "cifar10" / "test_1000.npz")
    sets = {"clean": (clean["images"][: options.clean], clean["labels"][: options.clean])}
    labels = np.load(options.data / "cifar10c" / "labels.npy").astype(int)
    block = len(labels) // 5
    chosen = slice((options.severity - 1) * block, options.severity * block)
    files = sorted(file for file in (options.data / "cifar10c").glob("*.npy") if file.stem != "labels")
    corrupted = [(np.load(file)[chosen][: options.limit], labels[chosen][: options.limit]) for file in files]
    sets[f"corrupted, severity {options.severity}"] = tuple(map(np.concatenate, zip(*corrupted, strict=True)))

    figures = []
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress, torch.inference_mode():
        task = progress.add_task("scoring", total=sum(len(images) for images, _ in sets.values()))
        for name, (images, truth) in sets.items():
            right = dict.fromkeys(methods, 0)
            seconds: dict[str, list[float]] = {method: [] for method in methods}
            cascade.tally.reset()
            for image, label in zip(encode(images), truth, strict=True):
                for method, called in methods.items():
                    start = time.perf_counter()
                    said = called(image[None]).argmax(1).item()
                    seconds[method].append(time.perf_counter() - start)
                    right[method] += int(said == label)
                progress.advance(task)
            print(f"{name}: {len(truth)} images, {cascade.tally}")
            for method in methods:
                mean = statistics.fmean(seconds[method])
                figures.append(
                    {
                        "set": name,
                        "method": method,
                        "accuracy": 100 * right[method] / len(truth),
                        "ms_per_image": 1e3 * mean,
                        "times_source": mean / statistics.fmean(seconds["source"]),
                        "adapted_share": cascade.tally.share if method == "cascade" else float(method == "ops"),
                    }
                )
                row = figures[-1]
                print(
                    f"  {method:<8} {row['accuracy']:6.2f} % right   {row['ms_per_image']:6.2f} ms an image   "
                    f"{row['times_source']:5.2f} × source"
                )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    sys.exit(main())
