"""`sita inspect`: what adapting a model does, and what it costs."""

from __future__ import annotations

import statistics
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sita_adapters.errors import InputError
from sita_adapters.recipe import DEFAULT

from . import options

if TYPE_CHECKING:
    from sita_adapters.description import Description

    from ..models.loaded import LoadedModel

_ROUNDS, _SECONDS = 7, 20.0


def inspect(
    model: options.ModelSpec,
    *,
    weights: options.Weights = None,
    recipe: options.RecipeName = DEFAULT,
    task: options.TaskName = None,
    inputs: options.PixelInputs = None,
    size: options.Side = None,
    trust: options.Trust = False,
    measure: Annotated[
        bool, typer.Option("--time/--no-time", help="Measure the time per image with every recipe, on one thread.")
    ] = True,
) -> None:
    """See whether a model can be adapted, and what each recipe costs.

    It lists the BatchNorm layers. For every recipe, it shows how many rows
    each image becomes and how long an image takes on this machine. You need
    no weights: by default they are random, which does not affect the times.

    Examples:
      sita inspect cifar10-resnet20
      sita inspect timm:resnet50 --recipe augbn --no-time
      sita inspect keras:DenseNet121 --size 160
      sita inspect net.py:build --task segmentation
    """
    options.require("scipy")
    from sita_adapters import RECIPES, describe

    from ..methods import open_recipe
    from ..models.loading import has_weights, load_model

    open_recipe(recipe, task or "classification")  # reports a wrong name before a model is loaded
    console, errors = Console(highlight=False), Console(stderr=True)
    with errors.status(f"Loading {model} …"):
        weights = weights or (None if has_weights(model) else "random")
        loaded = load_model(model, weights, inputs=inputs, size=size, task=task, trust=trust)
        description = describe(loaded.adapt(open_recipe(recipe, loaded.task)))
    height, width = loaded.sides or (options.USUAL_SIDE, options.USUAL_SIDE)
    images = f"{width} × {height}" if loaded.sides else "any size"
    console.print(Text(f"{loaded.spec}, {loaded.task}; images: {images}; weights: {loaded.weights}"))
    layers = Table("BatchNorm layer", "type", "channels", box=box.SIMPLE_HEAD, pad_edge=False)
    for layer in description.layers:
        layers.add_row(Text(layer.name), layer.type, str(layer.channels))
    console.print(Text(str(description)), layers)
    seconds: dict[str, float] = {}
    if measure:
        with errors.status("Measuring every recipe …"):
            seconds = _measure(loaded, {name: loaded.adapt(name) for name in RECIPES}, (height, width))
    console.print(_recipe_table(loaded, description, seconds))
    if seconds:
        console.print(Text(f"Times: one image of {width} × {height} at a time, PyTorch on one thread, median."))


def _recipe_table(loaded: LoadedModel, description: Description, seconds: dict[str, float]) -> Table:
    from sita_adapters.plan import make_plan
    from sita_adapters.recipe import RECIPES, resolve_recipe

    headings = ("recipe", "candidates", "views", "rows", *(("ms per image", "× source") if seconds else ()))
    table = Table(*headings, box=box.SIMPLE_HEAD, pad_edge=False)
    for name in RECIPES:
        recipe = resolve_recipe(name, {}, loaded.task)
        chosen = name == description.recipe.name
        cells = [f"{name} *" if chosen else name]
        cells += map(str, (recipe.candidate_count, recipe.view_count, make_plan(recipe).rows))
        if seconds:
            cells += [f"{1e3 * seconds[name]:.1f}", f"{seconds[name] / seconds['source']:.1f}"]
        table.add_row(*cells, style="bold" if chosen else "")
    return table


def _measure(loaded: LoadedModel, models: dict[str, Any], sides: tuple[int, int]) -> dict[str, float]:
    """Return the median seconds per image of each recipe."""
    from ..timing import one_thread, time_in_turns

    image = np.random.default_rng(0).normal(size=(1, *sides, 3)).astype(np.float32)
    calls = {name: partial(loaded.run, model, image) for name, model in models.items()}
    try:
        with one_thread():
            taken = time_in_turns(calls, _ROUNDS, lambda name, turn: None, most_seconds=_SECONDS)
    except Exception as error:
        failed = f"{loaded.spec} failed on an image of {sides[1]} × {sides[0]}: {error}"
        raise InputError(f"{failed}. Try: --size with the size of its images, or --no-time.") from error
    return {name: statistics.median(times) for name, times in taken.items()}
