"""From the outputs of an image's rows to its answer: the answer row, or what the candidates decide."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sita_adapters.errors import OutputError
from sita_adapters.observation import is_observed, refuse_compiled, tell
from sita_adapters.outputs import find_scores, flatten, rebuild
from sita_adapters.plan import Plan
from sita_adapters.voting import Verdict, decide

from .arrays import TORCH
from .calls import Call
from .moments import is_traced

if TYPE_CHECKING:
    from .forward import Adaptation


@dataclass(frozen=True)
class Candidates:
    """A model's output in which every array with rows is (images, candidates, …); the others are as they came.

    It lets go of the rows that do not answer. `whole` is the output itself where each image has one row.
    """

    output: Any
    has_rows: list[bool]
    images: int
    whole: Any = None

    @property
    def arrays(self) -> list[torch.Tensor]:
        """The arrays in the output."""
        return [array for _, array in flatten(self.output, is_tensor)]


def is_tensor(value: Any) -> bool:
    """Whether this is an array of a model's output."""
    return isinstance(value, torch.Tensor)


def candidates_of(output: Any, call: Call, plan: Plan) -> Candidates:
    """Keep, of everything that has a row for every row of the images, the rows that answer."""
    entries = call.images * call.rows
    found = flatten(output, is_tensor)
    has_rows = [array.ndim > 0 and array.shape[0] == entries for _, array in found]
    kept: dict[int, torch.Tensor] = {}  # a tensor that is there twice is the same one afterwards
    for (path, array), rows in zip(found, has_rows, strict=True):
        if not rows and call.rows > 1:
            _check_without_rows(path, array, call)
        if id(array) not in kept:
            kept[id(array)] = _answers(array, call, plan) if rows else array
    if not any(has_rows):
        shapes = ", ".join(f"{path} {tuple(array.shape)}" for path, array in found)
        raise OutputError(
            f"Expected an output for each of the {entries} rows of {call.images} images; received "
            f"{shapes or type(output).__name__}: the model merges its batch. Remedy: adapt a module that keeps it."
        )
    arrays = [kept[id(array)] for _, array in found]
    return Candidates(
        rebuild(output, iter(arrays), is_tensor), has_rows, call.images, output if call.rows == 1 else None
    )


def _is_number(array: torch.Tensor) -> bool:
    return array.ndim == 0 and array.is_floating_point()


def _loss_error(path: str) -> OutputError:
    return OutputError(
        f"The output has a number for the whole batch ({path}), which the views' rows would enter: a loss, perhaps. "
        "Remedy: call the adapted model without labels, and compute the loss from its answer."
    )


def _check_without_rows(path: str, array: torch.Tensor, call: Call) -> None:
    entries = call.images * call.rows
    if _is_number(array):
        raise _loss_error(path)
    if array.ndim > 0 and array.shape[0] > entries and array.shape[0] % entries == 0:
        raise OutputError(
            f"Expected an entry of {path} for each of the {entries} rows of {call.images} images; received shape "
            f"{tuple(array.shape)}, with more folded in. Remedy: adapt a module that unfolds its batch again."
        )


def _answers(array: torch.Tensor, call: Call, plan: Plan) -> torch.Tensor:
    by_row = array.reshape(call.images, call.rows, *array.shape[1:])
    if call.rows == len(plan.answers):
        return by_row
    if len(plan.answers) == 1:
        return by_row[:, plan.answers[0] : plan.answers[0] + 1].clone()  # lets go of the other rows' memory
    return torch.stack([by_row[:, row] for row in plan.answers], dim=1)


@dataclass(frozen=True)
class Answer:
    """One output for every image, of the type that the model's own has, and which of its arrays are the images'."""

    output: Any
    has_rows: list[bool]


def answer(parts: list[Candidates], plan: Plan, adaptation: Adaptation) -> Answer:
    """Return what the candidates of a Plan's parts come to."""
    candidates = parts[0] if len(parts) == 1 else _join(parts)
    if len(plan.answers) > 1:
        arrays = _decide(candidates, plan, adaptation)
    else:
        if is_observed(adaptation):
            _vote(candidates, plan, adaptation)
        if plan.rows == 1:
            return Answer(candidates.whole, candidates.has_rows)
        arrays = [a.squeeze(1) if rows else a for a, rows in zip(candidates.arrays, candidates.has_rows, strict=True)]
    return Answer(rebuild(candidates.output, iter(arrays), is_tensor), candidates.has_rows)


def _join(parts: list[Candidates]) -> Candidates:
    """Return the candidates of several parts of a Plan side by side."""
    first = parts[0]
    side_by_side = zip(*(part.arrays for part in parts), strict=True)
    arrays = [
        torch.cat(arrays, dim=1) if rows else arrays[0]
        for arrays, rows in zip(side_by_side, first.has_rows, strict=True)
    ]
    return Candidates(rebuild(first.output, iter(arrays), is_tensor), first.has_rows, first.images)


def concatenate(answers: list[Answer]) -> Any:
    """Return the answers of several batches as those of one."""
    first = answers[0]
    flat = [[array for _, array in flatten(part.output, is_tensor)] for part in answers]
    joined = []
    for place, arrays in enumerate(zip(*flat, strict=True)):
        if not first.has_rows[place] and _is_number(arrays[0]):
            raise _loss_error(flatten(first.output, is_tensor)[place][0])
        joined.append(torch.cat(arrays) if first.has_rows[place] else arrays[0])
    return rebuild(first.output, iter(joined), is_tensor)


def _decide(candidates: Candidates, plan: Plan, adaptation: Adaptation) -> list[torch.Tensor]:
    """Return the arrays of the answer: the scores as decided, the rest of the most certain candidate.

    Of candidates that are views, only those count for the rest that keep the pixels in place: a feature map would come
    back turned.
    """
    place, verdict = _vote(candidates, plan, adaptation)
    scores = candidates.arrays[place]
    still = [p for p, row in enumerate(plan.answers) if not plan.moves_pixels(row)]
    chosen: torch.Tensor | None = None
    arrays = []
    for array, rows in zip(candidates.arrays, candidates.has_rows, strict=True):
        if array is scores:
            arrays.append(verdict.scores.to(array.dtype))
        elif rows:
            if chosen is None:
                means = verdict.entropies.reshape(candidates.images, len(plan.answers), -1).mean(2)
                places = torch.tensor(still, device=means.device)
                chosen = places[means[:, still].argmin(1)]
            arrays.append(array[torch.arange(array.shape[0], device=array.device), chosen.to(array.device)])
        else:
            arrays.append(array)
    return arrays


def _vote(candidates: Candidates, plan: Plan, adaptation: Adaptation) -> tuple[int, Verdict]:
    """Return where in the output the scores are, and what the candidates decide on them."""
    least = 2 if adaptation.scores.startswith("sigmoid") else 3  # images, candidates, classes
    with_rows = zip(candidates.arrays, candidates.has_rows, strict=True)
    eligible = {id(array) for array, rows in with_rows if rows and array.ndim >= least and array.is_floating_point()}
    place = find_scores(candidates.output, adaptation.output, is_tensor, lambda array: id(array) in eligible)
    scores = candidates.arrays[place]
    shape = (candidates.images, *scores.shape[2:]) if candidates.has_rows[place] else tuple(scores.shape)
    _check_scores(shape, candidates.has_rows[place], scores.is_floating_point(), plan, adaptation)
    class_axis = 1 - len(shape)
    verdict = decide(
        scores if scores.dtype == torch.float64 else scores.float(),
        top_k=min(adaptation.recipe.kept, len(plan.answers)),
        combine=adaptation.recipe.combine,
        scores=adaptation.scores,
        class_axis=class_axis,
        arrays=TORCH,
    )
    if is_observed(adaptation):
        if is_traced():
            raise refuse_compiled("The adapted model")
        tell(adaptation, verdict, plan, class_axis=class_axis, scores=adaptation.scores, to_numpy=to_numpy)
    return place, verdict


def _check_scores(shape: tuple[int, ...], has_rows: bool, floating: bool, plan: Plan, adaptation: Adaptation) -> None:
    if not has_rows:
        raise OutputError(
            f"Expected scores for each of the rows of the images; received shape {shape}: the model merges its batch. "
            "Remedy: adapt a module that keeps it, or say with output= where the scores are."
        )
    if not floating:
        raise OutputError(
            f"Expected scores in floating point to vote on; received integers of shape {shape}: labels, perhaps. "
            "Remedy: adapt a module that returns the scores, or say with output= where they are."
        )
    each_label = adaptation.scores.startswith("sigmoid")
    if not each_label and (len(shape) < 2 or shape[1] < 2):
        raise OutputError(
            f"Expected scores (N, classes, …) of two classes or more to vote on; received shape {shape}. Remedy: "
            "scores='sigmoid' where each label is true or not by itself"
            f"{', or a recipe with one prior (augbn)' if len(plan.answers) > 1 else ''}."
        )
    if len(shape) > 2 and any(map(plan.moves_pixels, plan.answers)):
        raise OutputError(
            f"The model answers for every place (output shape {shape}), and views that move pixels cannot be averaged "
            "place by place. Remedy: task='segmentation', or an ensemble of views that keep them: augment='blur'."
        )


def to_numpy(array: torch.Tensor) -> np.ndarray:
    """Return a tensor as numpy's, which has no bfloat16."""
    values = array.detach().cpu()
    return np.asarray((values.double() if values.is_floating_point() else values).numpy())
