"""One call of an adapted model: expand every image to its rows, run the model's own forward, collapse to answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from sita_adapters.description import LayerInfo
from sita_adapters.errors import BypassError, InputError, OutputError, SitaError
from sita_adapters.inputs import Inputs
from sita_adapters.observation import tell
from sita_adapters.plan import Plan, make_plan
from sita_adapters.recipe import Recipe
from sita_adapters.views import Canvas, Frame, frame_of
from sita_adapters.voting import Scores, decide

from .arrays import TORCH
from .calls import Call, running
from .folding import spoilt_pair
from .layers import ImageLayout
from .moments import is_traced

IMAGE_KEYWORDS = ("x", "input", "inputs", "image", "images", "img", "pixel_values")
"""Where an image is looked for among keyword arguments, before any other tensor is taken for it."""


@dataclass(eq=False)
class Adaptation:
    """What makes a copy of a model an adapted one; it lives at the copy's attribute `_sita`."""

    recipe: Recipe
    inputs: Inputs | None
    scores: Scores
    layers: tuple[LayerInfo, ...]
    layout: ImageLayout
    own_forward: Callable[..., Any] | None
    """An instance's own `forward`, where the source model had one; else its class's is run."""
    plans: dict[Frame, Plan] = field(default_factory=dict)
    folding_checked: bool = False
    """Whether the model is known to keep the rows of an image together where it folds more into its batch."""

    def __post_init__(self) -> None:
        # Made beforehand, so that a compiler that follows a call meets no numpy.
        for frame in self.layout.frames:
            self.plans[frame] = make_plan(self.recipe, frame)

    def plan_for(self, frame: Frame) -> Plan:
        """Return the Plan for images of this frame."""
        return self.plans.get(frame) or make_plan(self.recipe, frame)


def adapted_forward(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Run the adapted model. A module-level function, because exporters and pickle follow no closure."""
    adaptation: Adaptation = model._sita  # type: ignore[assignment]
    place = find_image(args, kwargs)
    image: torch.Tensor = args[place] if isinstance(place, int) else kwargs[place]
    dimensions = check_image(image, adaptation.layout)
    plan = adaptation.plan_for(frame_of(image.shape[image.ndim - dimensions :]))
    canvas = Canvas(TORCH, -(dimensions + 1), tuple(range(-min(dimensions, 2), 0)), adaptation.inputs)
    rows = expand(image, plan, canvas)
    args, kwargs = replace_image(place, rows, args, kwargs)

    dtype = torch.float64 if image.dtype == torch.float64 else torch.float32
    call = Call(
        adaptation,
        images=image.shape[0],
        rows=plan.rows,
        weights=torch.tensor(plan.weights, dtype=dtype, device=image.device),
        priors=torch.tensor(plan.priors, dtype=dtype, device=image.device).unsqueeze(1),
        blends=plan.blends,
    )
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
            "or by another copy "
            "of the model (F.batch_norm, a forward patched from outside)."
        )
    if call.folds and not adaptation.folding_checked and image.is_floating_point() and not is_traced():
        probe = Call(adaptation, 2, 1, call.weights, call.priors, blends=False, probing=True)
        with torch.no_grad():
            run(model, probe, *replace_image(place, spoilt_pair(image), args, kwargs))
        adaptation.folding_checked = True
    return collapse(output, call, plan, adaptation)


def run(model: nn.Module, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the model's own forward inside this call."""
    adaptation = call.adaptation
    outer, running.call = running.call, call
    try:
        if adaptation.own_forward is not None:
            return adaptation.own_forward(*args, **kwargs)
        return type(model).forward(model, *args, **kwargs)
    finally:
        running.call = outer


def replace_image(
    place: int | str, image: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with another image in the place of the one that was given."""
    if isinstance(place, int):
        return (*args[:place], image, *args[place + 1 :]), kwargs
    return args, {**kwargs, place: image}


def find_image(args: Sequence[Any], kwargs: dict[str, Any]) -> int | str:
    """Return the position or the keyword of the first tensor, which is the image."""
    for position, value in enumerate(args):
        if isinstance(value, torch.Tensor):
            return position
    for keyword in (*IMAGE_KEYWORDS, *kwargs):
        if isinstance(kwargs.get(keyword), torch.Tensor):
            return keyword
    received = [type(value).__name__ for value in (*args, *kwargs.values())]
    raise InputError(
        f"Expected a tensor of images as an argument; received {', '.join(received) or 'nothing'}. "
        "Remedy: stack the images to one tensor."
    )


def check_image(image: torch.Tensor, layout: ImageLayout) -> int:
    """Return how many spatial axes the images have, after checking that they are a batch of them."""
    rank, dimensions = image.ndim, layout.dimensions
    if dimensions is None:
        if rank < 2:
            raise InputError(f"Expected a batch, of rank 2 or more; received shape {tuple(image.shape)}.")
        dimensions = min(rank - 2, 2)
    elif rank not in (dimensions + 2, dimensions + 3):
        one = "if this is one image, image.unsqueeze(0); if it is a batch without channels, image.unsqueeze(1)"
        remedy = one if rank == dimensions + 1 else "check the shape"
        raise InputError(
            f"Expected a batch of images of rank {dimensions + 2} (N, C, …), or {dimensions + 3} with time; received "
            f"rank {rank}, shape {tuple(image.shape)}. Remedy: {remedy}."
        )
    if image.shape[0] == 0:
        raise InputError(
            f"Expected at least one image; received an empty batch of shape {tuple(image.shape)}. "
            "Remedy: leave empty batches out."
        )
    channels = image.shape[-dimensions - 1]
    if layout.channels is not None and channels != layout.channels and image.shape[-1] == layout.channels:
        raise InputError(
            f"Expected images with channels first, (N, {layout.channels}, …); received shape {tuple(image.shape)}, "
            "which looks like channels last: views would turn and flip the wrong axes. Remedy: permute before the "
            "adapted "
            "model, not inside it."
        )
    return dimensions


def expand(image: torch.Tensor, plan: Plan, canvas: Canvas) -> torch.Tensor:
    """(B, …) → (B·R, …): the rows of an image stand together, in the image's own memory layout."""
    if plan.rows == 1:
        return image
    if not image.is_floating_point() and not all(view.lossless for view in plan.views):
        names = ", ".join(view.name for view in plan.views if not view.lossless)
        raise InputError(
            f"The views {names} compute new pixel values, which integers cannot hold; received {image.dtype}. "
            "Remedy: give floating-point images, or take augment='lossless'."
        )
    views = [view.apply(image, canvas) for view in plan.views]
    rows = torch.stack([views[view] for view in plan.view_of_row], dim=1).flatten(0, 1)
    if image.ndim == 4 and image.is_contiguous(memory_format=torch.channels_last) and not image.is_contiguous():
        return rows.contiguous(memory_format=torch.channels_last)
    return rows


def collapse(output: Any, call: Call, plan: Plan, adaptation: Adaptation) -> torch.Tensor:
    """(B·R, K, …) → (B, K, …): the answer row, or what the candidates decide."""
    if not isinstance(output, torch.Tensor):
        raise OutputError(
            f"Expected the model to return a tensor of scores (N, classes, …); it returned {type(output).__name__}. "
            "Remedy: adapt a module that returns the scores alone."
        )
    if output.ndim == 0 or output.shape[0] != call.images * call.rows:
        raise OutputError(
            f"Expected an output for each of the {call.images * call.rows} rows of {call.images} images; received "
            f"shape {tuple(output.shape)}: the model merges its batch. Remedy: adapt a module that keeps it."
        )
    by_row = output.reshape(call.images, call.rows, *output.shape[1:])
    if len(plan.answers) == 1:
        return by_row[:, plan.answers[0]].clone() if plan.rows > 1 else output
    if output.ndim < 2 or output.shape[1] < 2:
        raise OutputError(
            f"Expected scores (N, classes, …) of two classes or more to vote on; received shape "
            f"{(call.images, *output.shape[1:])}. Remedy: take a recipe with one prior ('augbn')."
        )
    if output.ndim > 2 and any(plan.views[plan.view_of_row[row]].moves_pixels for row in plan.answers):
        raise OutputError(
            f"The model answers for every place (output shape {(call.images, *output.shape[1:])}), and views that move "
            "pixels cannot be averaged place by place. Remedy: an ensemble of views that keep them: augment='blur'."
        )
    candidates = torch.stack([by_row[:, row] for row in plan.answers], dim=1)
    verdict = decide(
        candidates if candidates.dtype == torch.float64 else candidates.float(),
        top_k=min(adaptation.recipe.kept, len(plan.answers)),
        combine=adaptation.recipe.combine,
        scores=adaptation.scores,
        class_axis=1 - output.ndim,
        arrays=TORCH,
    )
    tell(verdict, plan)
    return verdict.scores.to(output.dtype)  # type: ignore[no-any-return]
