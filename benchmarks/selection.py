"""Choose d_1, the shift above which the adapted row supplies outputs that hold no class scores.

    python -m benchmarks.selection --data DATA

The classification networks that rules are chosen on run on the choosing half of their images, clean and under fifteen
kinds of corruption at severity 5. One run of `auto` returns, for each image, the label of the source's row, the label
of the adapted row, the answer, and the shift D. Without class scores, the answer is the adapted row's if D > d_1, and
the source's otherwise, so these figures give the accuracy for every d_1. It takes ten minutes, and resumes if
interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from platformdirs import user_cache_path
from rich.console import Console

import sita_adapters as sita
from sita_adapters.combining import SELECTION_SHIFT
from sita_workbench.corruptions import KINDS
from sita_workbench.data.dataset import CLEAN, Condition, Dataset
from sita_workbench.data.opening import open_data
from sita_workbench.files import write_json
from sita_workbench.progress import ConsoleProgress, Progress
from sita_workbench.result_log import ResultLog

from .study.networks import NETWORKS, Folders, data_spec

COUNTS = {"cifar": (1000, 100, 25), "imagenet": (332, 40, 4)}
"""The number of clean images, of images for each kind of corruption, and of images in a batch."""

CANDIDATES = (0.05, 0.1, 0.125, 0.13, 0.135, 0.14, 0.145, 0.15, 0.16, 0.17, 0.18, 0.2, 0.25, 0.3, 0.4, 0.5)
"""The d_1 to choose from."""

MOST_LOST = 1.0
"""Points that a network may lose on clean images."""

_STORED = Path(__file__).parent / "results/selection.json"


def main() -> None:
    """Measure what is missing, store the table, and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"), help="weights/, cifar10/, imagenet/ …")
    parser.add_argument("--out", type=Path, default=user_cache_path("sita-adapters") / "selection", help="results")
    options = parser.parse_args()
    folders = Folders(options.data, None, options.out)
    folders.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("KERAS_BACKEND", "torch")  # one framework in the process
    import torch

    torch.set_num_threads(1)
    progress = ConsoleProgress(Console(highlight=False))
    try:
        names = [name for name, network in NETWORKS.items() if network.kind in COUNTS and network.looked_at]
        measured = {name: run_network(name, folders, progress) for name in names}
    except (sita.SitaError, OSError) as error:
        sys.exit(f"selection: {error}")
    table = {str(d_1): {name: change(each, d_1) for name, each in measured.items()} for d_1 in CANDIDATES}
    table["auto"] = {name: change(each, None) for name, each in measured.items()}
    write_json(_STORED, {"counts": COUNTS, "changes": table})
    progress.say(format_table(table))


def run_network(name: str, folders: Folders, progress: Progress) -> dict[str, list[list[Any]]]:
    """Return [source right, adapted right, answer right, D] of each image, for clean and for corrupted images."""
    network = NETWORKS[name]
    clean_count, count, batch = COUNTS[network.kind]
    loaded = network.load(folders)
    log = ResultLog(folders.out / f"{name}.jsonl", {"network": name, "counts": list(COUNTS[network.kind])})
    spec = data_spec(network.kind, "choose", folders)

    def opened(corrupt: str, limit: int) -> Dataset:
        return open_data(spec, corrupt=corrupt, severities=(5,), limit=limit, size=loaded.size, crop=loaded.crop)

    clean, corrupted = opened("none", clean_count), opened(",".join(KINDS), count)
    todo = [(CLEAN, clean), *[(Condition(kind, 5), corrupted) for kind in KINDS]]
    adapted = loaded.adapt("auto")
    with progress.track(network.title, sum(len(data) for _, data in todo)) as advance:
        for condition, data in todo:
            if str(condition) in log.entries:
                advance(len(data))
                continue
            found: list[list[Any]] = []
            for start in range(0, len(data), batch):
                images, truth = data.load(condition, start, min(start + batch, len(data)))
                with sita.observe(adapted) as seen:
                    loaded.run(adapted, loaded.encode(images))
                right = np.column_stack([seen.labels, seen.answers]) == truth[:, None]
                found += [[*map(int, row), float(shift)] for row, shift in zip(right, seen.shifts[:, 1], strict=True)]
                advance(len(images))
            log.add(str(condition), {"images": found})
    log.close()
    every = log.entries
    return {
        "clean": every[str(CLEAN)]["images"],
        "corrupted": [image for condition, _ in todo[1:] for image in every[str(condition)]["images"]],
    }


def change(measured: dict[str, list[list[Any]]], d_1: float | None) -> dict[str, float]:
    """Return the change in accuracy, in points, and the share of images in % that the adapted row answers.

    None: of `auto`, which mixes class scores.
    """
    found: dict[str, float] = {}
    for name, images in measured.items():
        source, adapted, answer, shifts = np.array(images).T
        far = shifts > (d_1 or 0.0)
        right = answer if d_1 is None else np.where(far, adapted, source)
        found[name] = round(100 * float(right.mean() - source.mean()), 2)
        if d_1 is not None:
            found[f"{name}, adapted"] = round(100 * float(far.mean()), 1)
    return found


def format_table(table: dict[str, dict[str, dict[str, float]]]) -> str:
    """Return the table as text, and which d_1 it chooses."""
    names, lines = list(table["auto"]), []
    lines.append(f"{'d_1':>6}  " + "  ".join(f"{name:>13}" for name in names) + f"  {'mean':>13}  of auto's gain")
    gains = {d_1: float(np.mean([row[name]["corrupted"] for name in names])) for d_1, row in table.items()}
    for d_1, row in table.items():
        cells = [f"{row[name]['clean']:+6.1f} {row[name]['corrupted']:+6.1f}" for name in names]
        clean = float(np.mean([row[name]["clean"] for name in names]))
        share = f"{100 * gains[d_1] / gains['auto']:.0f} %"
        lines.append(f"{d_1:>6}  " + "  ".join(cells) + f"  {clean:+6.1f} {gains[d_1]:+6.1f}  {share:>14}")
    safe = [d for d in table if d != "auto" and min(row["clean"] for row in table[d].values()) >= -MOST_LOST]
    best = max(safe, key=gains.__getitem__) if safe else None
    lines.append("Each cell: change on clean images and at severity 5, in points.")
    lines.append(f"Largest gain among those that lose at most {MOST_LOST} point on clean images: d_1 = {best}.")
    lines.append(f"sita_adapters.combining.SELECTION_SHIFT is {SELECTION_SHIFT}.")
    return "\n".join(lines)


if __name__ == "__main__":
    warnings.simplefilter("ignore", sita.SitaWarning)
    main()
