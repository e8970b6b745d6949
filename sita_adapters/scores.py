"""Which of a model's outputs holds the class scores, what they are, and where the classes are: established from values.

The probe has the outputs of a few random images. Scores that are non-negative and sum to 1 along exactly one axis are
probabilities; those whose exponentials do are log-probabilities. All others are logits, unless they all lie in [0, 1].
Embeddings cannot be told from logits by their values: `describe` prints what was assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .errors import OutputError
from .outputs import IsArray, ScoresLayout, Selector, find_selected, flatten, named_scores
from .voting import Scores

_ROOM = 5e-3
"""What rounding in half precision may add to a sum of probabilities."""


class _UnclearError(Exception):
    """The scores cannot be established; the message says what to give."""


def resolve_scores(
    output: Any,
    values: Sequence[np.ndarray | None],
    *,
    selector: Selector,
    kind: Scores | None,
    class_axis: int | None,
    channel_axis: int,
    is_signal: bool,
    is_array: IsArray,
) -> tuple[ScoresLayout | None, str]:
    """Return the layout of the scores, or None and the reason.

    `values` has, for each array of the output, its values on random images with the images first; None if it has no
    entry for each image. Raise an OutputError where the values contradict what the caller said.
    """
    try:
        place = _find(output, values, selector, kind, is_array)
        return _resolve(place, values[place], kind, class_axis, channel_axis, is_signal), ""
    except _UnclearError as error:
        if selector is not None and kind is not None:
            raise OutputError(str(error)) from None
        return None, str(error)


def _find(
    output: Any, values: Sequence[np.ndarray | None], selector: Selector, kind: Scores | None, is_array: IsArray
) -> int:
    """Return the position of the scores: the selected array, one with a usual name, or the only one that is eligible."""
    paths = [path for path, _ in flatten(output, is_array)]
    if selector is not None:
        place = find_selected(output, selector, is_array)
        if not _is_eligible(values[place], kind):
            raise OutputError(
                f"output: expected floating-point scores with one entry per image; {paths[place]} is not. Try: another "
                f"of {', '.join(paths)}."
            )
        return place
    eligible = [place for place, array in enumerate(values) if _is_eligible(array, kind)]
    named = [place for place in named_scores(output, is_array) if place in eligible]
    found = named or eligible
    if len(found) == 1:
        return found[0]
    if not found:
        raise _UnclearError(
            f"Found no class scores (N, classes, …) in the model's {type(output).__name__}, which has "
            f"{', '.join(paths)}. Try: a recipe that needs none ('auto', 'augbn'), or adapt a module that returns them."
        )
    raise _UnclearError(
        f"Several outputs could be the class scores: {', '.join(paths[place] for place in found)}. Try: output= with "
        "a key, a position, or a function of the output."
    )


def _is_eligible(array: np.ndarray | None, kind: Scores | None) -> bool:
    if array is None or array.dtype.kind != "f":
        return False
    return array.ndim > 1 or (kind or "").startswith("sigmoid")


def _resolve(
    place: int,
    values: np.ndarray | None,
    kind: Scores | None,
    class_axis: int | None,
    channel_axis: int,
    is_signal: bool,
) -> ScoresLayout:
    assert values is not None
    shape = f"(N, {', '.join(map(str, values.shape[1:]))})"
    axes = [axis for axis in range(1, values.ndim) if values.shape[axis] > 1]
    if class_axis is not None:
        chosen = class_axis % values.ndim if -values.ndim <= class_axis < values.ndim else 0
        if chosen not in axes and not (kind or "").startswith("sigmoid"):
            raise OutputError(
                f"class_axis: expected an axis with two classes or more in scores of shape {shape}; received "
                f"{class_axis}."
            )
        axes = [chosen]
    if kind in ("sigmoid", "sigmoid_probabilities"):
        if kind == "sigmoid_probabilities" and not _in_unit_interval(values):
            raise _contradiction(kind, "from 0 to 1", values)
        return ScoresLayout(place, kind, -1)
    normalized = {
        "probabilities": [axis for axis in axes if _sums_to_one(values, axis)],
        "log_probabilities": [axis for axis in axes if values.max() <= 1e-3 and _sums_to_one(np.exp(values), axis)],
    }
    for name, found in normalized.items():
        if len(found) == 1 and kind in (None, name):
            return ScoresLayout(place, name, found[0] - values.ndim)  # type: ignore[arg-type]
        if found and kind == "logits":
            raise _contradiction(kind, "that are not normalized", values)
        if len(found) > 1:
            raise _UnclearError(f"Scores of shape {shape} sum to 1 along several axes. Try: class_axis=.")
    if kind in normalized:
        raise _contradiction(kind, "that sum to 1 along one axis", values)
    if kind is None and (not axes or _in_unit_interval(values)):
        what = "a single class" if not axes else "values from 0 to 1 that do not sum to 1"
        raise _UnclearError(
            f"Scores of shape {shape} have {what}: whether these are logits or probabilities is unclear. Try: scores="
            "'sigmoid' or 'sigmoid_probabilities' if each label is true or not, 'logits' if they are logits."
        )
    axis = axes[0] if class_axis is not None else _usual_axis(values.ndim, channel_axis, is_signal)
    if axis is None:
        raise _UnclearError(
            f"Whether the classes come second or last in scores of shape {shape} is unclear. Try: class_axis=."
        )
    if values.shape[axis] < 2:
        raise _UnclearError(f"Scores of shape {shape} have one class. Try: scores='sigmoid', or class_axis=.")
    return ScoresLayout(place, "logits", axis - values.ndim)


def _usual_axis(rank: int, channel_axis: int, is_signal: bool) -> int | None:
    """Return the framework's class axis; None for (N, a, b), which may be queries of an image, in PyTorch."""
    if rank == 2 or channel_axis == -1:
        return rank - 1
    return None if rank == 3 and not is_signal else 1


def _contradiction(kind: str, expected: str, values: np.ndarray) -> OutputError:
    return OutputError(
        f"scores={kind!r}: expected values {expected}; received values from {values.min():.3g} to {values.max():.3g} "
        "on random images. Try: leave scores= out, and check it with sita.describe."
    )


def _in_unit_interval(values: np.ndarray) -> bool:
    return bool(values.size and values.min() >= 0.0 and values.max() <= 1.0)


def _sums_to_one(values: np.ndarray, axis: int) -> bool:
    """Whether values are non-negative and sum to 1 along an axis, within the rounding of bfloat16."""
    return bool(values.min() >= -_ROOM and np.abs(values.sum(axis=axis) - 1).max() <= _ROOM)
