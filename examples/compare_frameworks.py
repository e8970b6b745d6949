"""One trained ResNet-50 in Keras and in PyTorch, adapted in both, on real images, clean and corrupted.

    python examples/compare_frameworks.py DATA
    python examples/compare_frameworks.py DATA --images 40 --size 224 --recipes source,augbn,ops

DATA holds `imagenet/` and `weights/resnet50_imagenet_keras.npz`. The weights are Keras'; `torch_twin` builds the
torchvision model that computes the same. By default a subset runs that takes two or three minutes on one slow core.
"""

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import torch
from imagenet_images import CONDITIONS, corrupt, encode, load_images, load_resnet50
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import sita_adapters as sita

# Only needed where torchvision does not match the installed torch.
import sita_workbench.models.torchvision_compat  # noqa: F401
from sita_adapters.compare import Comparison
from sita_workbench.models.porting import torch_twin

KERAS, TORCH = "keras", "torch"
COLOURS = {"source": "#9A9A9A", "auto": "#0072B2", "augbn": "#56B4E9", "ops": "#CC79A7", "ops_shared": "#E69F00"}
INK, FAINT = "#222222", "#6E6E6E"

Results = dict[tuple[str, str], Comparison]
"""The comparison under each condition, with each recipe."""


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--images", type=int, default=6, help="per condition (6); the folder has 240")
    parser.add_argument("--size", type=int, default=160, help="side of the images in pixels (160)")
    parser.add_argument("--recipes", default="source,ops_shared", help="names separated by commas")
    parser.add_argument("--out", type=Path, default=Path("compare_frameworks.png"), help="the file for the figure")
    options = parser.parse_args()
    options.recipes = options.recipes.split(",")
    if unknown := set(options.recipes) - set(sita.RECIPES):
        parser.error(f"--recipes: expected some of {', '.join(sita.RECIPES)}; received {', '.join(sorted(unknown))}")
    if options.images < 1:
        parser.error(f"--images: expected at least 1; received {options.images}")
    for needed in ("imagenet/labels.json", "weights/resnet50_imagenet_keras.npz"):
        if not (options.data / needed).is_file():
            parser.error(f"DATA: expected a folder with {needed}; received {options.data}")
    return options


def run(options: argparse.Namespace, pixels: np.ndarray, console: Console) -> Results:
    model = load_resnet50(options.data, options.size)
    twin = torch_twin(model)
    adapted = {
        recipe: {KERAS: sita.adapt(model, recipe), TORCH: sita.adapt(twin, recipe)} for recipe in options.recipes
    }
    results = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        # Time grows with rows, so rows give the right estimate of the time left.
        rows = {recipe: sita.describe(adapted[recipe][TORCH]).rows for recipe in options.recipes}
        task = progress.add_task("comparing", total=len(CONDITIONS) * sum(rows.values()))
        for condition in CONDITIONS:
            images = encode(corrupt(pixels, condition))
            for recipe in options.recipes:
                progress.update(task, description=f"{condition}, {recipe}")
                results[condition, recipe] = sita.compare(adapted[recipe], images, batch_size=2)
                progress.advance(task, rows[recipe])
    return results


def accuracy(results: Results, condition: str, recipe: str, framework: str, labels: np.ndarray) -> float:
    return 100 * float((results[condition, recipe][framework].labels == labels).mean())


def make_table(results: Results, recipes: list[str], labels: np.ndarray, title: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("condition", "recipe"):
        table.add_column(heading, no_wrap=True)
    for heading in ("Keras, %", "torch, %", "same label, %", "largest Δp"):
        table.add_column(heading, justify="right", no_wrap=True)
    for condition in CONDITIONS:
        for recipe in recipes:
            agreement = results[condition, recipe].models[1]
            table.add_row(
                condition if recipe == recipes[0] else "",
                recipe,
                *(f"{accuracy(results, condition, recipe, framework, labels):.1f}" for framework in (KERAS, TORCH)),
                f"{100 * agreement.same_labels:.1f}",
                f"{agreement.largest_difference:.1e}",
                end_section=recipe == recipes[-1],
            )
    return table


def draw(results: Results, recipes: list[str], labels: np.ndarray, title: str, note: str) -> Figure:
    """Bars of accuracy, a plain one for Keras beside a hatched one for torch, over the largest differences."""
    figure = Figure(figsize=(10, 6), dpi=130, facecolor="white")
    bars, gaps = figure.subplots(2, 1, height_ratios=(2.2, 1), sharex=True)
    figure.subplots_adjust(left=0.09, right=0.98, top=0.82, bottom=0.07, hspace=0.12)
    width = 0.8 / (2 * len(recipes))
    places = np.arange(len(CONDITIONS))
    for number, recipe in enumerate(recipes):
        colour = COLOURS.get(recipe, "#009E73")
        for side, framework in enumerate((KERAS, TORCH)):
            x = places + (2 * number + side - len(recipes) + 0.5) * width
            heights = [accuracy(results, condition, recipe, framework, labels) for condition in CONDITIONS]
            hatch = "//////" if framework == TORCH else ""
            label = f"{recipe}, {'torch' if side else 'Keras'}"
            bars.bar(x, heights, 0.9 * width, color=colour, hatch=hatch, edgecolor="white", linewidth=0, label=label)
            for place, height in zip(x, heights, strict=True):
                bars.text(place, height + 1.5, f"{height:.0f}", ha="center", fontsize=8, color=FAINT)
        middle = places + (2 * number - len(recipes) + 1) * width
        found = [results[condition, recipe].models[1].largest_difference for condition in CONDITIONS]
        gaps.plot(middle, found, "o", color=colour, markersize=6)
    bars.set_ylim(0, 100)
    bars.set_ylabel(f"% right of {len(labels)} images", color=INK)
    bars.legend(loc="lower left", bbox_to_anchor=(-0.01, 1.01), ncols=len(recipes), frameon=False, fontsize=9)
    gaps.axhline(1e-4, color="#D55E00", linewidth=1)
    gaps.text(
        places[-1] + 0.48, 1.25e-4, "promised: below 0.0001", ha="right", va="bottom", fontsize=8.5, color="#D55E00"
    )
    gaps.set_yscale("log")
    gaps.set_ylim(1e-8, 1e-3)
    gaps.set_ylabel("largest Δp\nbetween them", color=INK)
    gaps.set_xticks(places, CONDITIONS, fontsize=10.5)
    gaps.set_xlim(-0.5, places[-1] + 0.5)
    for axes in (bars, gaps):
        axes.tick_params(length=0, labelcolor=INK)
        axes.yaxis.grid(color="#E3E3E3")
        axes.set_axisbelow(True)
        axes.spines[["top", "right", "left"]].set_visible(False)
    figure.text(0.09, 0.945, title, fontsize=15, weight="bold", color=INK)
    figure.text(0.98, 0.85, note, fontsize=9.5, color=FAINT, ha="right")
    return figure


def main() -> None:
    torch.set_num_threads(1)
    options = read_options()
    console = Console(stderr=True)
    pixels, labels = load_images(options.data, options.images, options.size)
    results = run(options, pixels, console)
    answers = [comparison.models[1] for comparison in results.values()]
    worst = max(answer.largest_difference for answer in answers)
    title = f"ResNet-50, {len(labels)} ImageNet images of {options.size}² under each of {len(CONDITIONS)} conditions"
    out = Console()
    out.print(make_table(results, options.recipes, labels, title))
    same = 100 * float(np.mean([answer.same_labels for answer in answers]))
    out.print(f"The frameworks agree on {same:.1f} % of labels; no probability differs by more than {worst:.1e}.")
    claim = f"One ResNet-50 in Keras and in torch: {same:.3g} % of labels the same"
    note = f"{options.size}² images, largest Δp {worst:.0e}"
    draw(results, options.recipes, labels, claim, note).savefig(options.out)
    out.print(f"Figure: {options.out}")


if __name__ == "__main__":
    sys.exit(main())
