"""Which array of a model's output the scores are, and whether they can be voted on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import OutputError
from .ops import Array, Ops
from .outputs import find_scores, flatten
from .plan import Plan

if TYPE_CHECKING:
    from .engine import Adaptation


def scores_path(output: Any, plan: Plan, adaptation: Adaptation, ops: Ops) -> str:
    """Return which array of an output the scores are, where a graph is made before any values run through it."""
    found = flatten(output, ops.is_array)
    votes = len(plan.candidate_rows) > 1
    try:
        place = find_scores(
            output, adaptation.output, ops.is_array, lambda array: could_be_scores(array, 0, adaptation, ops)
        )
    except OutputError:
        if votes or adaptation.output is not None:
            raise
        return found[0][0]  # which nothing but an observer asks for
    path, array = found[place]
    if votes or adaptation.output is not None:
        check_scores(tuple(array.shape), ops.is_float(array), plan, adaptation, ops)
    return path


def could_be_scores(array: Array, candidate_axes: int, adaptation: Adaptation, ops: Ops) -> bool:
    """Whether an array may be the scores, by its rank and type; so many of its axes are the candidates'."""
    least = 1 if adaptation.scores.startswith("sigmoid") else 2
    return len(array.shape) - candidate_axes >= least and ops.is_float(array)


def check_scores(shape: tuple[Any, ...], is_float: bool, plan: Plan, adaptation: Adaptation, ops: Ops) -> None:
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
    if len(shape) == 3 and ops.class_axis == 1 and "signal" not in adaptation.kinds and votes and not each_label:
        raise OutputError(
            f"Whether the classes come second or last in scores of shape {shape} is not known: queries or time steps "
            "of an image have them last, where the vote would be wrong. Remedy: adapt a module that puts out "
            "(N, classes, places, 1), or take a recipe with one prior ('augbn')."
        )
    if len(shape) > 2 and any(map(plan.moves_pixels, plan.candidate_rows)):
        raise OutputError(
            f"The model answers for every place (output shape {shape}), and views that move pixels cannot be averaged "
            "place by place. Remedy: task='segmentation', or an ensemble of views that keep them: augment='blur'."
        )
