"""`sita inspect`: what adapting a model does, and what it costs."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable
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
from sita_adapters.inputs import ENCODINGS, Inputs
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
    layers: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Adapt only these BatchNorm layers: a name, a parent's name, or a glob such as 'layer1.*'. Can be "
            "given several times.",
            show_default=False,
        ),
    ] = None,
    task: TaskName = None,
    inputs: PixelInputs = None,
    size: Side = None,
    trust: Trust = False,
    measure: Annotated[
        bool, typer.Option("--time/--no-time", help="Measure the time per image of every recipe, on one thread.")
    ] = True,
) -> None:
    """See what adapting a model does to it, and what it costs.

    Shows the BatchNorm layers and which of them are adapted, the views that
    an image's statistics are taken from, how many rows of a batch an image
    becomes under every recipe, and how long that takes on this machine.
    Nothing is trained, and weights are optional: random ones, the default,
    cost the same.

    Examples:
      sita inspect cifar10-resnet20
      sita inspect timm:resnet50 --recipe augbn --no-time
      sita inspect keras:DenseNet121 --size 160
      sita inspect torchvision:resnet18 --layers layer1 --layers bn1
      sita inspect net.py:build --task segmentation
    """
    require("scipy")
    from sita_adapters import RECIPES, describe

    from ..methods import open_recipe
    from ..models.digits import SPECS
    from ..models.loading import has_weights, load_model

    open_recipe(recipe, task or "classification")  # reports a wrong name before a model is loaded
    console, errors = Console(highlight=False), Console(stderr=True)
    with errors.status(f"Loading {model} …"):
        if weights is None and not has_weights(model) and model not in SPECS:
            weights = "random"
        loaded = load_model(model, weights, inputs=inputs, size=size, trust=trust)
        loaded = replace(loaded, task=task or loaded.task)
        description = describe(loaded.adapt(open_recipe(recipe, loaded.task), layers))
    console.print(_facts(loaded, description))
    console.print(_layer_table(description.layers, _other_norms(loaded.model)))
    seconds: dict[str, float] = {}
    if measure:
        with errors.status(f"Adapting {model} with every recipe …"):
            models = {name: loaded.adapt(name, layers) for name in RECIPES}
        with errors.status("Measuring …") as status:
            seconds = _measure(loaded, models, status.update)
    console.print(_recipe_table(loaded, description, seconds))
    for note in _notes(loaded, description, bool(seconds)):
        console.print(Text(note))


def _facts(loaded: LoadedModel, description: Description) -> Table:
    from sita_adapters.plan import make_plan

    sides = loaded.sides
    square = "" if sides and sides[0] == sides[1] else "square "
    views = ", ".join(view.name for view in make_plan(description.recipe).views[1:])
    facts = {
        "model": f"{loaded.spec}: {description.model}, {_count_parameters(loaded.model):,} parameters",
        "backend": loaded.framework,
        "weights": loaded.weights,
        "images": f"{'any size' if sides is None else f'{sides[1]} × {sides[0]}'}, {loaded.task}",
        "pixels": _name_inputs(loaded.inputs),
        "scores": description.scores or "established at the first call",
        "recipe": str(description.recipe),
        "views": views or "none: the statistics are the image's own",
        "rows": f"{description.rows} of a batch for one {square}image",
        "layers": f"{len(description.adapted)} of {len(description.layers)} BatchNorm layers adapted",
    }
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    for name, text in facts.items():
        grid.add_row(name, Text(text))
    return grid


def _name_inputs(inputs: Inputs | None) -> str:
    if inputs is None:
        return "not known: predicting needs --inputs"
    return next((name for name, encoding in ENCODINGS.items() if encoding == inputs), str(inputs))


def _count_parameters(model: Any) -> int:
    if hasattr(model, "count_params"):
        return int(model.count_params())
    return sum(parameter.numel() for parameter in model.parameters())


def _layer_table(layers: tuple[LayerInfo, ...], others: Counter[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("BatchNorm layer", overflow="fold")
    table.add_column("layers", justify="right", no_wrap=True)
    table.add_column("type")
    table.add_column("channels", justify="right", no_wrap=True)
    table.add_column("adapted")
    for name, members in _grouped(layers):
        channels = sorted({member.channels for member in members})
        table.add_row(
            Text(name),
            str(len(members)),
            members[0].type,
            "–".join(map(str, dict.fromkeys((channels[0], channels[-1])))),
            Text("yes", "green") if members[0].adapted else Text("skipped", "yellow"),
        )
    for kind, count in others.items():
        table.add_row("", str(count), kind, "", Text("has no statistics", "dim"))
    return table


def _grouped(layers: tuple[LayerInfo, ...]) -> Iterable[tuple[str, list[LayerInfo]]]:
    """Yield layers by name, or, where they are many, blocks of them by a glob that --layers takes."""
    groups: dict[tuple[str, str, bool], list[LayerInfo]] = {}
    for layer in layers:
        parts = re.split(r"(?<=[./_])", layer.name)
        block = "".join(parts[:2]) if len(parts) > 2 and len(layers) > _LAYERS_ONE_BY_ONE else layer.name
        groups.setdefault((block, layer.type, layer.adapted), []).append(layer)
    for (block, _, _), members in groups.items():
        yield (members[0].name if len(members) == 1 else f"{block}*"), members


def _other_norms(model: Any) -> Counter[str]:
    """Count the normalisation layers without source statistics, by type."""
    layers = list(model._flatten_layers()) if hasattr(model, "_flatten_layers") else list(model.modules())
    names = ("LayerNorm", "GroupNorm", "InstanceNorm", "RMSNorm", "UnitNorm", "LocalResponseNorm")
    kinds = [type(layer).__name__ for layer in layers]
    return Counter(kind for kind in kinds if kind.startswith(names) or kind.endswith(names))


def _range(priors: tuple[Any, ...]) -> str:
    return f"{len(priors)} from {min(priors):.3g} to {max(priors):.3g}"


def _recipe_table(loaded: LoadedModel, description: Description, seconds: dict[str, float]) -> Table:
    from sita_adapters.plan import make_plan
    from sita_adapters.recipe import RECIPES, prior_text, resolve_recipe

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("recipe", no_wrap=True)
    table.add_column("priors λ", no_wrap=True)
    for heading in ("views", "rows", *(("ms per image", "× source") if seconds else ())):
        table.add_column(heading, justify="right", no_wrap=True)
    for name in RECIPES:
        recipe = resolve_recipe(name, {}, loaded.task)
        chosen = name == description.recipe.name
        priors = recipe.prior_values
        cells = [
            f"{name} *" if chosen else name,
            _range(priors)
            if len(priors) > 3 and recipe.rule is None
            else ", ".join(prior_text(prior).partition(" (")[0] for prior in priors),
            str(recipe.view_count),
            str(make_plan(recipe).rows),
        ]
        if seconds:
            cells += [f"{1e3 * seconds[name]:.1f}", f"{seconds[name] / seconds['source']:.1f}"]
        table.add_row(*(Text(cell) for cell in cells), style="bold" if chosen else "")
    return table


def _measure(loaded: LoadedModel, models: dict[str, Any], show: Callable[[str], None]) -> dict[str, float]:
    """Return the median seconds per image of each recipe."""
    from ..timing import one_thread, time_in_turns

    height, width = loaded.sides or (USUAL_SIDE, USUAL_SIDE)
    image = np.random.default_rng(0).normal(size=(1, height, width, 3)).astype(np.float32)
    calls = {name: partial(loaded.run, model, image) for name, model in models.items()}
    try:
        with one_thread():
            taken = time_in_turns(
                calls, _ROUNDS, lambda name, turn: show(f"Measuring: {name}, round {turn} …"), most_seconds=_SECONDS
            )
    except Exception as error:
        if isinstance(error, SitaError) and not isinstance(error, InputError):
            raise
        raise InputError(
            f"{loaded.spec} failed on an image of {width} × {height}: {error}. Try: --size of its images, or --no-time."
        ) from error
    return {name: statistics.median(times) for name, times in taken.items()}


def _notes(loaded: LoadedModel, description: Description, measured: bool) -> Iterable[str]:
    if description.skipped:
        yield "Skipped: BatchNorm layers that --layers does not name keep the source's statistics."
    if measured:
        height, width = loaded.sides or (USUAL_SIDE, USUAL_SIDE)
        threads = "as many threads as Keras takes" if hasattr(loaded.model, "count_params") else "one thread"
        yield f"Times: one image of {width} × {height} at a time, {threads}, median."
    else:
        yield "Time grows about as the rows do."
    if loaded.weights == "random":
        yield "Random weights: the costs are those of trained ones, predictions would mean nothing."
