"""What a cascade costs and gains on CIFAR-10, clean and corrupted, beside the source model and OPS.

    python benchmarks/cascade.py DATA --depth 20

One image per call, one thread; the three take turns on every image, so that a slow moment of the machine affects all.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from rich.console import Console

import sita_adapters as sita
from sita_workbench.data.opening import open_data
from sita_workbench.networks.cifar_resnet import encode, load_cifar_resnet
from sita_workbench.progress import ConsoleProgress


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--depth", type=int, default=20, choices=(20, 56))
    parser.add_argument("--entropy", type=float, default=0.1, help="threshold in nats (0.1)")
    parser.add_argument("--severity", type=int, default=5, choices=range(1, 6))
    parser.add_argument("--clean", type=int, default=1000, help="clean images (1000)")
    parser.add_argument("--limit", type=int, default=None, help="images per corruption; all by default")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)

    weights = options.data / "weights" / f"cifar10_resnet{options.depth}.safetensors"
    model = load_cifar_resnet(options.depth, weights)
    adapted = sita.adapt(model, "ops")
    cascade = sita.cascade(model, adapted, entropy=options.entropy)
    methods = {"source": model, "ops": adapted, "cascade": cascade}
    clean = f"npz:{options.data / 'cifar10' / 'test_1000.npz'}"
    corrupted = f"cifar10c:{options.data / 'cifar10c'}"
    sets = {
        "clean": open_data(clean, corrupt="none", limit=options.clean),
        f"corrupted, severity {options.severity}": open_data(
            corrupted, severities=[options.severity], limit=options.limit
        ),
    }
    results = []
    progress = ConsoleProgress(Console())
    for name, data in sets.items():
        count = len(data) * len(data.conditions)
        right = dict.fromkeys(methods, 0)
        seconds: dict[str, list[float]] = {method: [] for method in methods}
        cascade.tally.reset()
        with progress.track(name, count) as advance, torch.inference_mode():
            for condition in data.conditions:
                images, labels = data.load(condition, 0, len(data))
                for image, label in zip(encode(images), labels, strict=True):
                    for method, network in methods.items():
                        start = time.perf_counter()
                        predicted = network(image[None]).argmax(1).item()
                        seconds[method].append(time.perf_counter() - start)
                        right[method] += int(predicted == label)
                    advance()
        print(f"{name}: {count} images, {cascade.tally}")
        for method in methods:
            mean = statistics.fmean(seconds[method])
            row = {
                "set": name,
                "method": method,
                "accuracy": 100 * right[method] / count,
                "ms_per_image": 1e3 * mean,
                "times_source": mean / statistics.fmean(seconds["source"]),
                "adapted_share": cascade.tally.share if method == "cascade" else float(method == "ops"),
            }
            results.append(row)
            print(
                f"  {method:<8} {row['accuracy']:6.2f} % right   {row['ms_per_image']:6.2f} ms per image   "
                f"{row['times_source']:5.2f} × source"
            )
    if options.json:
        options.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
