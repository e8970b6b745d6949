"""`sita inspect`: what adapting a model would do, and what it would cost."""

from __future__ import annotations

import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sita_adapters.errors import InputError, SitaError
from sita_adapters.inputs import ENCODINGS, Inputs

from .model_options import ModelSpec, PixelInputs, RecipeName, Side, TaskName, Weights
from .shared import require

if TYPE_CHECKING:
    from sita_adapters.description import Description, LayerInfo
    from sita_adapters.recipe import Recipe

    from ..models.loading import Subject

_ROUNDS, _SECONDS = 7, 20.0
_USUAL_SIDE = 224
_LAYERS_ONE_BY_ONE = 24


def inspect(
    model: ModelSpec,
    *,
    weights: Weights = None,
    recipe: RecipeName = "ops",
    layers: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Adapt these BatchNorm layers alone: a name, a parent's, or a glob such as 'layer1.*'. Can be given "
            "several times.",
            show_default=False,
        ),
    ] = None,
    task: TaskName = None,
    inputs: PixelInputs = None,
    size: Side = None,
    measure: Annotated[
        bool, typer.Option("--time/--no-time", help="Measure an image's time under every recipe, on one thread.")
    ] = True,
) -> None:
    """See what adapting a model does to it, and what it costs.

    Shows the BatchNorm layers and which of them are adapted, the views that
    an image's statistics are taken from, how many rows of a batch an image
    becomes under every recipe, and how long that takes on this machine.
    Nothing is trained, and weights are not needed: the cost is the same with
    random ones, which are taken unless you give others.

    Examples:
      sita inspect cifar10-resnet20
      sita inspect timm:resnet50 --recipe augbn --no-time
      sita inspect keras:DenseNet121 --size 160
      sita inspect torchvision:resnet18 --layers layer1 --layers bn1
      sita inspect net.py:build --task segmentation
    """
    require("numpy", extra="torch")
    from sita_adapters.api import adapt, describe
    from sita_adapters.recipe import read_recipe

    from ..models.loading import brings_weights, load_model

    read_recipe(recipe, {}, task or "classification")  # a wrong name is told before a model is loaded
    console, errors = Console(highlight=False), Console(stderr=True)
    with errors.status(f"Loading {model} …"):
        if weights is None and not brings_weights(model):
            weights = "random"
        subject = load_model(model, weights, inputs=inputs, size=size)
        subject = replace(subject, task=task or subject.task)
        description = describe(_adapted(adapt, subject, recipe, layers))
    console.print(_facts(subject, description))
    console.print(_layer_table(description.layers, _other_norms(subject.model)))
    seconds: dict[str, float] = {}
    if measure:
        from sita_adapters.recipe import RECIPES

        with errors.status(f"Adapting {model} by every recipe …"):
            models = {name: _adapted(adapt, subject, name, layers) for name in RECIPES}
        with errors.status("Measuring …") as status:
            seconds = _measure(subject, models, status.update)
    console.print(_recipe_table(subject, description, seconds))
    for note in _notes(subject, description, bool(seconds)):
        console.print(Text(note))


def _adapted(adapt: Callable[..., Any], subject: Subject, recipe: str, layers: list[str] | None) -> Any:
    return adapt(
        subject.model, recipe, task=subject.task, inputs=subject.inputs, scores=subject.scores, layers=layers or None
    )


def _facts(subject: Subject, description: Description) -> Table:
    from sita_adapters.backend import backend_of

    sides = _sides(subject)
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    runner = backend_of(subject.model).runner()
    lines = [
        ("model", f"{subject.spec}: {description.model}, {_count_parameters(subject.model):,} parameters"),
        ("backend", runner.label),
        ("weights", subject.weights),
        ("images", f"{'any size' if sides is None else f'{sides[1]} × {sides[0]}'}, {subject.task}"),
        ("pixels", _name_inputs(subject.inputs)),
        ("scores", description.scores),
        ("recipe", str(description.recipe)),
        ("views", _name_views(subject, description)),
        ("rows", f"{_rows(subject, description.recipe)} of a batch for one {'square ' if sides is None else ''}image"),
        ("layers", f"{len(description.adapted)} of {len(description.layers)} BatchNorm layers adapted"),
    ]
    for name, text in lines:
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


def _sides(subject: Subject) -> tuple[int, int] | None:
    return (subject.size, subject.size) if isinstance(subject.size, int) else subject.size


def _plan(subject: Subject, recipe: Recipe) -> Any:
    from sita_adapters.plan import make_plan
    from sita_adapters.views import frame_of

    return make_plan(recipe, frame_of(_sides(subject) or (1, 1)))


def _rows(subject: Subject, recipe: Recipe) -> int:
    return int(_plan(subject, recipe).rows)


def _name_views(subject: Subject, description: Description) -> str:
    views = [view.name for view in _plan(subject, description.recipe).views[1:]]
    return ", ".join(views) or "none: the statistics are the image's own"


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
            Text("yes", "green") if members[0].adapted else Text("left alone", "yellow"),
        )
    for kind, count in others.items():
        table.add_row("", str(count), kind, "", Text("has no statistics", "dim"))
    return table


def _grouped(layers: tuple[LayerInfo, ...]) -> Iterable[tuple[str, list[LayerInfo]]]:
    """Give layers by name, or, where they are many, blocks of them by a glob that --layers would take."""
    groups: dict[tuple[str, str, bool], list[LayerInfo]] = {}
    for layer in layers:
        parts = re.split(r"(?<=[./_])", layer.name)
        block = "".join(parts[:2]) if len(parts) > 2 and len(layers) > _LAYERS_ONE_BY_ONE else layer.name
        groups.setdefault((block, layer.type, layer.adapted), []).append(layer)
    for (block, _, _), members in groups.items():
        yield (members[0].name if len(members) == 1 else f"{block}*"), members


def _other_norms(model: Any) -> Counter[str]:
    """Count the normalising layers that have no source statistics to blend, by type."""
    layers = list(model._flatten_layers()) if hasattr(model, "_flatten_layers") else list(model.modules())
    names = ("LayerNorm", "GroupNorm", "InstanceNorm", "RMSNorm", "UnitNorm", "LocalResponseNorm")
    kinds = [type(layer).__name__ for layer in layers]
    return Counter(kind for kind in kinds if kind.startswith(names) or kind.endswith(names))


def _recipe_table(subject: Subject, description: Description, seconds: dict[str, float]) -> Table:
    from sita_adapters.recipe import RECIPES, read_recipe

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("recipe", no_wrap=True)
    table.add_column("priors λ", no_wrap=True)
    for heading in ("views", "rows", *(("ms an image", "× source") if seconds else ())):
        table.add_column(heading, justify="right", no_wrap=True)
    for name in RECIPES:
        each = read_recipe(name, {}, subject.task)
        chosen = name == description.recipe.name
        low, high, count = min(each.lambdas), max(each.lambdas), len(each.lambdas)
        cells = [
            f"{name} *" if chosen else name,
            f"{low:.3g}" if count == 1 else f"{count} from {low:.3g} to {high:.3g}",
            str(each.view_count),
            str(_rows(subject, each)),
        ]
        if seconds:
            cells += [f"{1e3 * seconds[name]:.1f}", f"{seconds[name] / seconds['source']:.1f}"]
        table.add_row(*(Text(cell) for cell in cells), style="bold" if chosen else "")
    return table


def _measure(subject: Subject, models: dict[str, Any], say: Callable[[str], None]) -> dict[str, float]:
    """Return the median seconds of one image under each recipe. Rounds go through all, so that load hits all alike."""
    from sita_adapters.backend import backend_of

    runner = backend_of(subject.model).runner()
    height, width = _sides(subject) or (_USUAL_SIDE, _USUAL_SIDE)
    image = np.random.default_rng(0).normal(size=(1, height, width, 3)).astype(np.float32)
    taken: dict[str, list[float]] = {name: [] for name in models}
    try:
        batch = runner.arrange(subject.spec, subject.model, image)
        with _one_thread(subject.model):
            for name, model in models.items():
                say(f"Measuring: {name}, for the first time …")
                runner.run(model, batch)
            started, done = time.perf_counter(), 0
            while done < _ROUNDS and (done == 0 or time.perf_counter() - started < _SECONDS * done / (done + 1)):
                for name, model in models.items():
                    say(f"Measuring: round {done + 1}, {name} …")
                    before = time.perf_counter()
                    runner.run(model, batch)
                    taken[name].append(time.perf_counter() - before)
                done += 1
    except SitaError:
        raise
    except Exception as error:
        raise InputError(
            f"{subject.spec} failed on an image of {width} × {height}: {error}. Remedy: --size of its images, or "
            "--no-time."
        ) from error
    return {name: statistics.median(times) for name, times in taken.items()}


def _one_thread(model: Any) -> AbstractContextManager[None]:
    """One thread where that can be had: TensorFlow and JAX settle theirs when they are loaded."""
    if hasattr(model, "count_params"):
        from ..demo import digits_keras

        return digits_keras.one_thread()
    if hasattr(model, "modules"):
        from ..demo import digits_torch

        return digits_torch.one_thread()
    return nullcontext()


def _notes(subject: Subject, description: Description, measured: bool) -> Iterable[str]:
    if description.left_alone:
        yield "Left alone: BatchNorm layers that --layers does not name keep the statistics of training."
    if measured:
        height, width = _sides(subject) or (_USUAL_SIDE, _USUAL_SIDE)
        threads = "as many threads as Keras takes" if hasattr(subject.model, "count_params") else "one thread"
        yield f"Times: one image of {width} × {height} at a time, {threads}, median."
    else:
        yield "Time grows about as the rows do."
    if subject.weights == "random":
        yield "Random weights: the costs are those of trained ones, answers would mean nothing."
