"""Collapse: from the outputs of an image's rows to its answer, in the structure that the model puts out.

The rows that may answer are the candidates. One answers for itself; several vote, and whatever else is in the output
comes from the most certain of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import OutputError
from .observe import is_observed, record_vote, refuse_compiled
from .ops import Array, Ops, SymbolicError
from .outputs import find_scores, flatten, rebuild
from .plan import Plan
from .voting import Verdict, decide

if TYPE_CHECKING:
    from .engine import Adaptation, Call


@dataclass(frozen=True)
class Candidates:
    """A model's output in which every array with rows is (images, candidates, …); the others are as they came.

    It does not keep the memory of the other rows. `whole` is the output itself where each image has one row.
    """

    output: Any
    arrays: list[Array]
    has_rows: list[bool]
    whole: Any = None


@dataclass(frozen=True)
class Answer:
    """One output for every image, of the type that the model's own has, and which of its arrays are the images'."""

    output: Any
    has_rows: list[bool]


def keep_candidates(output: Any, call: Call) -> Candidates:
    """Keep the candidate rows of every array that has an entry for each row."""
    ops, plan = call.ops, call.plan
    found = flatten(output, ops.is_array)
    has_rows = [_has_rows(array, call) for _, array in found]
    kept: dict[int, Array] = {}  # an array that is there twice is one array afterwards
    for (path, array), rows in zip(found, has_rows, strict=True):
        if not rows and plan.rows > 1:
            _check_without_rows(path, array, call)
        if id(array) not in kept:
            kept[id(array)] = _candidate_rows(array, plan, ops) if rows else array
    if not any(has_rows):
        shapes = ", ".join(f"{path} {tuple(array.shape)}" for path, array in found)
        raise OutputError(
            f"Expected an output for each of the {call.entries} rows; received {shapes or type(output).__name__}: the "
            "model merges its batch. Remedy: adapt a module that keeps it."
        )
    arrays = [kept[id(array)] for _, array in found]
    return Candidates(rebuild(output, iter(arrays), ops.is_array), arrays, has_rows, output if plan.rows == 1 else None)


def _has_rows(array: Array, call: Call) -> bool:
    if len(array.shape) == 0:
        return False
    unknown = call.ops.is_symbol(array.shape[0]) or call.ops.is_symbol(call.entries)
    return unknown or bool(array.shape[0] == call.entries)


def _check_without_rows(path: str, array: Array, call: Call) -> None:
    if _is_number(array, call.ops):
        raise _loss_error(path)
    if len(array.shape) > 0 and array.shape[0] > call.entries and array.shape[0] % call.entries == 0:
        raise OutputError(
            f"Expected an entry of {path} for each of the {call.entries} rows; received shape {tuple(array.shape)}, "
            "with more folded in. Remedy: adapt a module that unfolds its batch again."
        )


def _is_number(array: Array, ops: Ops) -> bool:
    return len(array.shape) == 0 and ops.is_float(array)


def _loss_error(path: str) -> OutputError:
    return OutputError(
        f"The output has a number for the whole batch ({path}), to which the views would contribute: a loss, perhaps. "
        "Remedy: adapt a model that puts out the scores alone, called without labels, and compute the loss from its "
        "answer."
    )


def _candidate_rows(array: Array, plan: Plan, ops: Ops) -> Array:
    by_row = ops.xp.reshape(array, (-1, plan.rows, *ops.shape(array)[1:]))
    if len(plan.candidate_rows) == plan.rows:
        return by_row
    return ops.xp.stack([by_row[:, row] for row in plan.candidate_rows], axis=1)


def collapse(parts: Sequence[Candidates], plan: Plan, adaptation: Adaptation, ops: Ops) -> Answer:
    """Return the answer of the candidates that the parts of a Plan have."""
    candidates = parts[0] if len(parts) == 1 else _join(parts, ops)
    if len(plan.candidate_rows) > 1:
        arrays = _decide(candidates, plan, adaptation, ops)
    else:
        if is_observed(adaptation):
            _vote(candidates, plan, adaptation, ops)
        if plan.rows == 1:
            return Answer(candidates.whole, candidates.has_rows)
        arrays = [a[:, 0] if rows else a for a, rows in zip(candidates.arrays, candidates.has_rows, strict=True)]
    return Answer(rebuild(candidates.output, iter(arrays), ops.is_array), candidates.has_rows)


def _join(parts: Sequence[Candidates], ops: Ops) -> Candidates:
    """Return the candidates of several parts of a Plan side by side."""
    first = parts[0]
    arrays = [
        ops.concat(each, axis=1) if rows else each[0]
        for *each, rows in zip(*(part.arrays for part in parts), first.has_rows, strict=True)
    ]
    return Candidates(rebuild(first.output, iter(arrays), ops.is_array), arrays, first.has_rows)


def concatenate(answers: Sequence[Answer], ops: Ops) -> Any:
    """Return the answers of several rounds as the output of one call."""
    first = answers[0]
    found = [flatten(answer.output, ops.is_array) for answer in answers]
    joined = []
    for rows, *each in zip(first.has_rows, *found, strict=True):
        path, array = each[0]
        if not rows and _is_number(array, ops):
            raise _loss_error(path)
        joined.append(ops.concat([array for _, array in each], axis=0) if rows else array)
    return rebuild(first.output, iter(joined), ops.is_array)


def _decide(candidates: Candidates, plan: Plan, adaptation: Adaptation, ops: Ops) -> list[Array]:
    """Return the arrays of the answer: the scores as voted, the rest from the most certain candidate.

    A view that moves pixels lends nothing to the rest: a feature map would come back turned.
    """
    place, verdict = _vote(candidates, plan, adaptation, ops)
    scores = candidates.arrays[place]
    in_place = [p for p, row in enumerate(plan.candidate_rows) if not plan.moves_pixels(row)]
    arrays = []
    for array, rows in zip(candidates.arrays, candidates.has_rows, strict=True):
        if array is scores:
            arrays.append(ops.cast(verdict.scores, array))
        else:
            arrays.append(_of_most_certain(array, verdict.entropies, in_place, ops.xp) if rows else array)
    return arrays


def _of_most_certain(array: Array, entropies: Array, candidates: list[int], xp: Any) -> Array:
    """Return, of an array (B, P, …), the candidate with the lowest entropy, on average over an image's places.

    Each is compared with the best so far, rather than all at once by argmin, which not every exporter follows.
    """
    places = tuple(range(2, len(entropies.shape)))
    means = xp.mean(entropies, axis=places) if places else entropies
    column = (-1, *[1] * (len(array.shape) - 2))
    first, *others = candidates
    chosen, lowest = array[:, first], means[:, first]
    for candidate in others:
        better = means[:, candidate] < lowest
        chosen = xp.where(xp.reshape(better, column), array[:, candidate], chosen)
        lowest = xp.where(better, means[:, candidate], lowest)
    return chosen


def _vote(candidates: Candidates, plan: Plan, adaptation: Adaptation, ops: Ops) -> tuple[int, Verdict]:
    """Return where in the output the scores are, and what the candidates decide on them."""
    with_rows = zip(candidates.arrays, candidates.has_rows, strict=True)
    eligible = {id(array) for array, rows in with_rows if rows and _could_be_scores(array, 1, adaptation, ops)}
    place = find_scores(candidates.output, adaptation.output, ops.is_array, lambda array: id(array) in eligible)
    scores, has_rows = candidates.arrays[place], candidates.has_rows[place]
    shape = (scores.shape[0], *scores.shape[2 if has_rows else 1 :])
    if not has_rows:
        raise OutputError(
            f"Expected scores for each of the rows of the images; received shape {shape}: the model merges its batch. "
            "Remedy: adapt a module that keeps it, or say with output= where the scores are."
        )
    _check_scores(shape, ops.is_float(scores), plan, adaptation, ops)
    class_axis = ops.class_axis - (len(shape) if ops.class_axis > 0 else 0)
    verdict = decide(
        ops.precise(scores),
        top_k=min(adaptation.recipe.kept, len(plan.candidate_rows)),
        combine=adaptation.recipe.combine,
        scores=adaptation.scores,
        class_axis=class_axis,
        ops=ops,
    )
    if is_observed(adaptation):
        try:
            record_vote(adaptation, verdict, plan, class_axis=class_axis, scores=adaptation.scores, ops=ops)
        except SymbolicError as error:
            raise refuse_compiled("The adapted model") from error
    return place, verdict


def scores_path(output: Any, plan: Plan, adaptation: Adaptation, ops: Ops) -> str:
    """Return which array of an output the scores are, where a graph is made before any values run through it."""
    found = flatten(output, ops.is_array)
    for path, array in found:
        if _is_number(array, ops):
            raise _loss_error(path)
    votes = len(plan.candidate_rows) > 1
    try:
        place = find_scores(
            output, adaptation.output, ops.is_array, lambda array: _could_be_scores(array, 0, adaptation, ops)
        )
    except OutputError:
        if votes or adaptation.output is not None:
            raise
        return found[0][0]  # which nothing but an observer asks for
    path, array = found[place]
    if votes or adaptation.output is not None:
        _check_scores(tuple(array.shape), ops.is_float(array), plan, adaptation, ops)
    return path


def _could_be_scores(array: Array, candidate_axes: int, adaptation: Adaptation, ops: Ops) -> bool:
    least = 1 if adaptation.scores.startswith("sigmoid") else 2
    return len(array.shape) - candidate_axes >= least and ops.is_float(array)


def _check_scores(shape: tuple[Any, ...], is_float: bool, plan: Plan, adaptation: Adaptation, ops: Ops) -> None:
    """Raise unless an output of this shape can be voted on."""
    if not is_float:
        raise OutputError(
            f"Expected scores in floating point to vote on; received integers of shape {shape}: labels, perhaps. "
            "Remedy: adapt a module that returns the scores, or say with output= where they are."
        )
    votes = len(plan.candidate_rows) > 1
    each_label = adaptation.scores.startswith("sigmoid")
    if not each_label and (len(shape) < 2 or (shape[ops.class_axis] or 2) < 2):
        raise OutputError(
            f"Expected scores {ops.scores_layout} of two classes or more to vote on; received shape {shape}. Remedy: "
            "scores='sigmoid' (or 'sigmoid_probabilities') where each label is true or not by itself"
            f"{', or a recipe with one prior (augbn)' if votes else ''}."
        )
    if len(shape) > 2 and any(map(plan.moves_pixels, plan.candidate_rows)):
        raise OutputError(
            f"The model answers for every place (output shape {shape}), and views that move pixels cannot be averaged "
            "place by place. Remedy: task='segmentation', or an ensemble of views that keep them: augment='blur'."
        )
