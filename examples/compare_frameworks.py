"""One trained ResNet-50 in Keras and in PyTorch, adapted in both, on real images, clean and corrupted.

    python examples/compare_frameworks.py DATA
    python examples/compare_frameworks.py DATA --images 40 --size 224 --recipes source,augbn,ops

DATA holds `imagenet/` and `weights/resnet50_imagenet_keras.npz`. The weights are Keras'; `torch_twin` builds the
torchvision model that computes the same. By default a subset runs that takes two or three minutes on one slow core.
"""

import argparse
import os
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import torch
from imagenet_images import CONDITIONS, corrupt, encode, load_images, load_resnet50
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

Results = dict[tuple[str, str], Comparison]
"""The comparison under each condition, with each recipe."""


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--images", type=int, default=6, help="per condition (6); the folder has 240")
    parser.add_argument("--size", type=int, default=160, help="side of the images in pixels (160)")
    parser.add_argument("--recipes", default="source,ops_shared", help="names separated by commas")
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


def main() -> None:
    torch.set_num_threads(1)
    options = read_options()
    pixels, labels = load_images(options.data, options.images, options.size)
    results = run(options, pixels, Console(stderr=True))
    answers = [comparison.models[1] for comparison in results.values()]
    same = 100 * float(np.mean([answer.same_labels for answer in answers]))
    worst = max(answer.largest_difference for answer in answers)
    title = f"ResNet-50, {len(labels)} ImageNet images of {options.size}² under each of {len(CONDITIONS)} conditions"
    out = Console()
    out.print(make_table(results, options.recipes, labels, title))
    out.print(f"The frameworks agree on {same:.1f} % of labels; no probability differs by more than {worst:.1e}.")


if __name__ == "__main__":
    main()
