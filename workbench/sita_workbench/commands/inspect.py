"""`sita inspect`: what adapting a model does, and what it costs."""

from __future__ import annotations

import re
import statistics
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sita_adapters.errors import InputError, SitaError
from sita_adapters.recipe import DEFAULT

from .options import USUAL_SIDE, ModelSpec, PixelInputs, RecipeName, Side, TaskName, Trust, Weights, require

if TYPE_CHECKING:
    from sita_adapters.description import Description
    from sita_adapters.selection import LayerInfo

    from ..models.loaded import LoadedModel

_ROUNDS, _SECONDS = 7, 20.0
_LAYERS_ONE_BY_ONE = 24


def inspect(
    model: ModelSpec,
    *,
    weights: Weights = None,
    recipe: RecipeName = DEFAULT,
    task: TaskName = None,
    inputs: PixelInputs = None,
    size: Side = None,
    trust: Trust = False,
    measure: Annotated[
        bool, typer.Option("--time/--no-time", help="Measure the time per image of every recipe, on one thread.")
    ] = True,
) -> None:
    """See what adapting a model does to it, and what it costs.

    Shows the BatchNorm layers, how many rows of a batch an image becomes under
    every recipe, and how long that takes on this machine. Weights are optional:
    random ones, the default, cost the same.

    Examples:
      sita inspect cifar10-resnet20
      sita inspect timm:resnet50 --recipe augbn --no-time
      sita inspect keras:DenseNet121 --size 160
      sita inspect net.py:build --task segmentation
    """
    require("scipy")
    from sita_adapters import RECIPES, describe

    from ..methods import open_recipe
    from ..models.loading import has_weights, load_model

    open_recipe(recipe, task or "classification")  # reports a wrong name before a model is loaded
    console, errors = Console(highlight=False), Console(stderr=True)
    with errors.status(f"Loading {model} …"):
        weights = weights or (None if has_weights(model) else "random")
        loaded = load_model(model, weights, inputs=inputs, size=size, trust=trust)
        loaded = replace(loaded, task=task or loaded.task)
        description = describe(loaded.adapt(open_recipe(recipe, loaded.task)))
    height, width = loaded.sides or (USUAL_SIDE, USUAL_SIDE)
    images = f"{width} × {height}" if loaded.sides else "any size"
    console.print(Text(f"{loaded.spec}, {loaded.task}; images: {images}; weights: {loaded.weights}"))
    console.print(Text(str(description)), _layer_table(description.layers))
    seconds: dict[str, float] = {}
    if measure:
        with errors.status("Measuring every recipe …"):
            seconds = _measure(loaded, {name: loaded.adapt(name) for name in RECIPES}, (height, width))
    console.print(_recipe_table(loaded, description, seconds))
    if seconds:
        console.print(Text(f"Times: one image of {width} × {height} at a time, PyTorch on one thread, median."))


def _layer_table(layers: tuple[LayerInfo, ...]) -> Table:
    """Show layers by name, or, where they are many, blocks of them by a glob that `adapt(layers=…)` takes."""
    groups: dict[tuple[str, str], list[LayerInfo]] = {}
    for layer in layers:
        parts = re.split(r"(?<=[./_])", layer.name)
        block = "".join(parts[:2]) if len(parts) > 2 and len(layers) > _LAYERS_ONE_BY_ONE else layer.name
        groups.setdefault((block, layer.type), []).append(layer)
    table = Table("BatchNorm layer", "layers", "type", "channels", box=box.SIMPLE_HEAD, pad_edge=False)
    for (block, kind), members in groups.items():
        name = members[0].name if len(members) == 1 else f"{block}*"
        channels = sorted({member.channels for member in members})
        table.add_row(
            Text(name), str(len(members)), kind, "–".join(map(str, dict.fromkeys((channels[0], channels[-1]))))
        )
    return table


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
        if isinstance(error, SitaError) and not isinstance(error, InputError):
            raise
        failed = f"{loaded.spec} failed on an image of {sides[1]} × {sides[0]}: {error}"
        raise InputError(f"{failed}. Try: --size of its images, or --no-time.") from error
    return {name: statistics.median(times) for name, times in taken.items()}
