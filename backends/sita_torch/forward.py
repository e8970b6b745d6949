"""One call of an adapted model: expand every image to its rows, run the model's own forward, collapse to answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from sita_adapters.description import LayerInfo
from sita_adapters.errors import BypassError, InputError, RecipeError, SitaError
from sita_adapters.inputs import Inputs
from sita_adapters.outputs import Selector
from sita_adapters.plan import Plan, make_plan, redraw, refuse_resampling, split
from sita_adapters.recipe import Recipe
from sita_adapters.view_steps import Canvas
from sita_adapters.views import Frame, frame_of
from sita_adapters.voting import Scores

from .answers import Candidates, answer, candidates_of, concatenate, to_numpy
from .arguments import Arguments, check_image, expand, expand_companion
from .arrays import TORCH
from .calls import Call, running
from .cutting import Ending
from .folding import spoilt_pair
from .layers import ImageLayout
from .moments import is_traced


@dataclass(eq=False)
class Adaptation:
    """What makes a copy of a model an adapted one; it lives at the copy's attribute `_sita`."""

    recipe: Recipe
    inputs: Inputs | None
    scores: Scores
    output: Selector
    max_rows: int | None
    layers: tuple[LayerInfo, ...]
    layout: ImageLayout
    own_forward: Callable[..., Any] | None
    """An instance's own `forward`, where the source model had one; else its class's is run."""
    ending: Ending | None = None
    """The forward in which views end after the last adapted layer, where later ones are left alone and it is safe."""
    plans: dict[Frame, tuple[Plan, tuple[Plan, ...]]] = field(default_factory=dict)
    """The Plan for images of each frame, and the parts of it that run at once."""
    folding_checked: bool = False
    """Whether the model is known to keep the rows of an image together where it folds more into its batch."""

    def __post_init__(self) -> None:
        # Made beforehand, so that a compiler that follows a call meets no numpy, and a bad max_rows is found now.
        for frame in self.layout.frames:
            self.plans[frame] = self._make_plan(frame)

    @property
    def has_rows_without_answer(self) -> bool:
        """Whether some rows only serve statistics."""
        return any(len(part.answers) < part.rows for _, parts in self.plans.values() for part in parts)

    def plan_for(self, frame: Frame) -> tuple[Plan, tuple[Plan, ...]]:
        """Return the Plan for images of this frame, and its parts."""
        return self.plans.get(frame) or self._make_plan(frame)

    def _make_plan(self, frame: Frame) -> tuple[Plan, tuple[Plan, ...]]:
        plan = make_plan(self.recipe, frame)
        return plan, split(plan, self.max_rows)


def adapted_forward(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Run the adapted model. A module-level function, because exporters and pickle follow no closure."""
    adaptation: Adaptation = model._sita  # type: ignore[assignment]
    arguments = Arguments(args, kwargs)
    image = arguments.image
    dimensions = check_image(image, adaptation.layout)
    plan, parts = adaptation.plan_for(frame_of(image.shape[image.ndim - dimensions :]))
    canvas = Canvas(TORCH, -(dimensions + 1), tuple(range(-min(dimensions, 2), 0)), adaptation.inputs)
    if adaptation.max_rows is None or plan.rows * image.shape[0] <= adaptation.max_rows:
        return answer(run_parts(model, arguments, parts, canvas), plan, adaptation).output
    if torch._C._get_tracing_state() is not None:
        raise RecipeError(
            "max_rows: a trace would keep the number of rounds that its example needs, and drop images of larger "
            "batches. Remedy: trace a model that is adapted without max_rows."
        )
    at_once = max(1, adaptation.max_rows // plan.rows)
    batches = [slice(start, start + at_once) for start in range(0, image.shape[0], at_once)]
    answers = []
    for batch in batches:
        answers.append(answer(run_parts(model, arguments.part(batch), parts, canvas), plan, adaptation))
    return concatenate(answers)


def run_parts(model: nn.Module, arguments: Arguments, parts: tuple[Plan, ...], canvas: Canvas) -> list[Candidates]:
    """Run the parts of the Plan one after the other; return the candidates of each."""
    return [run_rows(model, arguments, part, canvas) for part in parts]


def run_rows(model: nn.Module, arguments: Arguments, plan: Plan, canvas: Canvas) -> Candidates:
    """Run all the rows of a Plan at once, and keep those that answer."""
    adaptation: Adaptation = model._sita  # type: ignore[assignment]
    image = arguments.image
    plans = [plan] if not adaptation.recipe.resample else _drawn_anew(image, plan, adaptation.recipe, canvas)
    args, kwargs = arguments.with_image(
        expand(image, plans, canvas),
        lambda companion: expand_companion(companion, image, plans, canvas),
    )
    dtype = torch.float64 if image.dtype == torch.float64 else torch.float32
    traced = is_traced()
    alike = plan.alike and not traced
    lines = 1 if alike else plan.rows
    weights = torch.tensor(plan.weights[:lines], dtype=dtype, device=image.device)
    call = Call(
        adaptation,
        images=image.shape[0],
        rows=plan.rows,
        weights=weights if traced else weights.expand(image.shape[0], -1, -1),  # sparing every layer the doing
        priors=torch.tensor(plan.priors[:lines], dtype=dtype, device=image.device).unsqueeze(1),
        blends=plan.blends,
        shared=adaptation.recipe.share == "batch",
        alike=alike,
        one_image=not traced and image.shape[0] == 1,
    )
    ending = adaptation.ending
    if ending is not None and len(plan.answers) < plan.rows and ending.covers(model, args, kwargs):
        call.answers = plan.answers
    try:
        output = run(model, call, args, kwargs)
    except SitaError:
        raise
    except Exception as error:
        if not image.is_floating_point():
            raise InputError(
                f"{type(model).__name__} failed on images of {image.dtype}: {error} Expected floating-point images, "
                "unless the model converts them itself. Remedy: convert and normalise them as for the source model."
            ) from error
        raise
    if plan.blends and not call.layers_run:
        raise BypassError(
            f"{type(model).__name__} ran none of its {sum(layer.adapted for layer in adaptation.layers)} adapted "
            "layers, so nothing was adapted. Expected layers that are called, not their parameters used by functions "
            "or by another copy of the model (F.batch_norm, a forward patched from outside)."
        )
    if call.folds and not adaptation.folding_checked and image.is_floating_point() and not is_traced():
        probe = Call(adaptation, 2, 1, call.weights, call.priors, blends=False, probing=True)
        pair = arguments.with_image(spoilt_pair(image), lambda companion: companion[:1].repeat_interleave(2, 0))
        with torch.no_grad():
            run(model, probe, *pair)
        adaptation.folding_checked = True
    return candidates_of(output, call, plan)


def _drawn_anew(image: torch.Tensor, plan: Plan, recipe: Recipe, canvas: Canvas) -> list[Plan]:
    """Return a Plan for every image, with views of its own."""
    if is_traced():
        raise refuse_resampling("A compiled or exported model")
    frame = frame_of([image.shape[axis] for axis in canvas.axes])
    return [redraw(plan, recipe, frame, to_numpy(one.movedim(canvas.channel, -1))) for one in image]


def run(model: nn.Module, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the model's own forward inside this call."""
    adaptation = call.adaptation
    outer, running.call = running.call, call
    try:
        if adaptation.ending is not None and call.answers:
            return adaptation.ending.run(model, args, kwargs)
        if adaptation.own_forward is not None:
            return adaptation.own_forward(*args, **kwargs)
        return type(model).forward(model, *args, **kwargs)
    finally:
        running.call = outer
