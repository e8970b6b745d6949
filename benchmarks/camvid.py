"""Segmentation under corruption: mean IoU of each recipe on CamVid, with paired intervals and a picture of the maps.

    python benchmarks/camvid.py DATA --weights FOLDER --out FOLDER
    python benchmarks/camvid.py DATA --split validation --recipes source,augbn,augbn@lossless@1,augbn@hflip@1

The network is the one that `benchmarks/train_camvid.py` trains (and finds again in the weights' folder). A recipe can
carry views, `name@augment@count`; without them it takes those of task="segmentation". What is done is kept in
`confusions/` of the output folder, so that a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import sita_adapters as sita
from sita_workbench.console import ConsoleProgress
from sita_workbench.corruptions import CORRUPTIONS, corrupt
from sita_workbench.networks import camvid, camvid_torch

KINDS = "gaussian_noise,impulse_noise,defocus_blur,motion_blur,fog,brightness,contrast,jpeg_compression"
"""Two of each family, fixed before anything was measured."""

CLEAN = "clean"
DRAWS = 2000


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, metavar="DATA", help="the folder that holds camvid/")
    parser.add_argument("--weights", type=Path, help="the folder of the trained weights (else the user's cache)")
    parser.add_argument("--split", choices=("validation", "test"), default="test")
    parser.add_argument("--recipes", default="source,bn,augbn,ops_shared,ops", help="with commas between")
    parser.add_argument("--kinds", default=KINDS, help="of corruption, with commas between")
    parser.add_argument("--severity", type=int, default=3, choices=range(1, 6))
    parser.add_argument("--every", type=int, default=1, help="take every N-th picture")
    parser.add_argument("--seed", type=int, default=0, help="of the training and of the corruptions")
    parser.add_argument("--out", type=Path, default=Path("camvid-results"))
    options = parser.parse_args()
    options.recipes = options.recipes.split(",")
    options.kinds = options.kinds.split(",")
    if options.recipes[0] != "source":
        options.recipes.insert(0, "source")
    if unknown := set(options.kinds) - set(CORRUPTIONS):
        parser.error(f"--kinds: expected some of {', '.join(CORRUPTIONS)}; received {', '.join(sorted(unknown))}")
    return options


def adapt(model: torch.nn.Module, text: str) -> torch.nn.Module:
    name, *views = text.split("@")
    changes: dict[str, Any] = {}
    if views:
        changes = {"augment": views[0], "n_views": int(views[1])}
    return sita.adapt(model, name, task="segmentation", **changes)


def corrupted(images: np.ndarray, kind: str, options: argparse.Namespace) -> np.ndarray:
    if kind == CLEAN:
        return images
    return np.stack(
        [corrupt(image, kind, options.severity, seed=options.seed, index=i) for i, image in enumerate(images)]
    )


def confusions_of(
    models: dict[str, torch.nn.Module], images: np.ndarray, labels: np.ndarray, options: argparse.Namespace
) -> dict[tuple[str, str], np.ndarray]:
    """Return the confusion matrix of every picture, (N, classes, classes), by kind of corruption and recipe."""
    folder = options.out / "confusions"
    folder.mkdir(parents=True, exist_ok=True)
    digest = zlib.crc32(np.ascontiguousarray(images)) ^ zlib.crc32(
        b"".join(value.detach().numpy().tobytes() for value in models["source"].state_dict().values())
    )
    found: dict[tuple[str, str], np.ndarray] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    rows = {recipe: sita.describe(model).rows for recipe, model in models.items()}
    kinds = [CLEAN, *options.kinds]
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("scoring", total=len(kinds) * len(images) * sum(rows.values()))
        for kind in kinds:
            severity = 0 if kind == CLEAN else options.severity
            files = {r: folder / f"{kind}-{severity}-{r.replace('@', '_')}-{digest:08x}.npy" for r in models}
            pictures = None if all(file.is_file() for file in files.values()) else corrupted(images, kind, options)
            for recipe, model in models.items():
                progress.update(task, description=f"{kind}, {recipe}")
                if files[recipe].is_file():
                    found[kind, recipe] = np.load(files[recipe])
                    progress.advance(task, rows[recipe] * len(images))
                    continue

                def advance(step: int = rows[recipe]) -> None:
                    progress.advance(task, step)

                said = camvid_torch.predict(model, pictures, advance)
                found[kind, recipe] = camvid.count_confusions(said, labels)
                part = files[recipe].with_suffix(".part.npy")
                np.save(part, found[kind, recipe])
                part.replace(files[recipe])
    return found


def miou(confusion: np.ndarray) -> float:
    return 100 * float(np.nanmean(camvid.class_ious(confusion)))


def gain_interval(found: dict[tuple[str, str], np.ndarray], kinds: list[str], recipe: str) -> tuple[float, float]:
    """Return the 95 % interval of the recipe's gain in mean mIoU over source, pictures drawn with replacement."""
    random = np.random.default_rng(0)
    count = len(found[kinds[0], recipe])
    gains = []
    for _ in range(DRAWS):
        drawn = np.bincount(random.integers(0, count, count), minlength=count)
        both = (
            np.mean([miou(np.tensordot(drawn, found[kind, each], 1)) for kind in kinds]) for each in (recipe, "source")
        )
        gains.append(next(both) - next(both))
    low, high = np.percentile(gains, [2.5, 97.5])
    return float(low), float(high)


def draw_maps(models: dict[str, torch.nn.Module], images: np.ndarray, labels: np.ndarray, options: Any) -> Figure:
    """One line for each of three corruptions: the picture, the truth, and what every recipe makes of it."""
    kinds = options.kinds[:: max(1, len(options.kinds) // 3)][:3]
    picture = len(images) // 2
    figure = Figure(figsize=(2.3 * (2 + len(models)), 1.85 * len(kinds) + 0.7), dpi=130, facecolor="white")
    axes = figure.subplots(len(kinds), 2 + len(models), squeeze=False)
    figure.subplots_adjust(left=0.02, right=0.998, top=0.94, bottom=0.06, wspace=0.03, hspace=0.04)
    palette = np.vstack([camvid.PALETTE[: len(camvid.CLASSES)], [[0, 0, 0]]]).astype(np.uint8)
    for number, (line, kind) in enumerate(zip(axes, kinds, strict=True)):
        image = corrupted(images, kind, options)[picture]
        truth = labels[picture]
        maps = {recipe: camvid_torch.predict(model, image[None])[0] for recipe, model in models.items()}
        shown = [
            image,
            palette[truth],
            *(palette[np.where(truth == camvid.VOID, camvid.VOID, m)] for m in maps.values()),
        ]
        heads = [kind.replace("_", " "), "truth", *maps]
        for place, (axis, pixels, head) in enumerate(zip(line, shown, heads, strict=True)):
            axis.imshow(pixels)
            axis.set_xticks([])
            axis.set_yticks([])
            axis.spines[:].set_visible(False)
            if number == 0 and place:
                axis.set_title(head, fontsize=10)
        line[0].set_ylabel(f"{kind.replace('_', ' ')} {options.severity}", fontsize=9)
    names = [Patch(color=palette[place] / 255, label=name) for place, name in enumerate((*camvid.CLASSES, "void"))]
    figure.legend(handles=names, loc="lower center", ncols=len(names), frameon=False, fontsize=9)
    return figure


def main() -> None:
    options = read_options()
    torch.set_num_threads(1)
    progress = ConsoleProgress(Console(highlight=False, stderr=True))
    pairs = camvid.find_pairs(options.data, "train")
    training = camvid_torch.Training(seed=options.seed)
    network = camvid_torch.trained_network(pairs, training, options.weights, progress)
    images, labels = (each[:: options.every] for each in camvid.load_split(options.data, options.split))
    models = {recipe: adapt(network, recipe) for recipe in options.recipes}
    found = confusions_of(models, images, labels, options)

    title = f"CamVid {options.split}, {len(images)} pictures, severity {options.severity}, mIoU in %"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("pictures", no_wrap=True)
    for recipe in models:
        table.add_column(recipe, justify="right")
    results: dict[str, Any] = {"split": options.split, "pictures": len(images), "severity": options.severity}
    for kind in (CLEAN, *options.kinds):
        row = {recipe: miou(found[kind, recipe].sum(0)) for recipe in models}
        results[kind] = row
        table.add_row(kind, *(f"{value:.1f}" for value in row.values()), end_section=kind in (CLEAN, options.kinds[-1]))
    means = {recipe: float(np.mean([results[kind][recipe] for kind in options.kinds])) for recipe in models}
    results["mean over corruptions"] = means
    table.add_row("mean of corrupted", *(f"{value:.2f}" for value in means.values()))
    intervals = {recipe: gain_interval(found, options.kinds, recipe) for recipe in options.recipes[1:]}
    results["gain over source, 95 % interval"] = intervals
    results["clean gain over source, 95 % interval"] = {
        r: gain_interval(found, [CLEAN], r) for r in options.recipes[1:]
    }
    gains = (f"{low:+.2f} … {high:+.2f}" for low, high in intervals.values())
    table.add_row("gain, 95 % interval", "", *gains)
    Console(width=160).print(table)
    (options.out / f"results-{options.split}-{options.severity}.json").write_text(json.dumps(results, indent=2))
    maps = options.out / f"maps-{options.split}-{options.severity}.png"
    draw_maps(models, images, labels, options).savefig(maps)
    print(f"Maps: {maps}")


if __name__ == "__main__":
    sys.exit(main())
