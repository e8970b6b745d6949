"""Which output holds the class scores, and what may be averaged: established by the probe, from values and arguments.

Only class scores are averaged. Scores are what the arguments of `adapt` say, and values that are normalized along one
axis: non-negative, with a sum of 1 (probabilities), or with a log-sum-exp of 0 (log-probabilities). Other real values
are taken for logits if their rank is 2 or that of the images, unless the values of the random images look like
something else: labels, sorted detections, unit vectors, non-negative features.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from .errors import OutputError
from .outputs import IsArray, ScoresLayout, flatten, part_of
from .state import Settings
from .voting import Scores

Arrays: TypeAlias = Sequence[np.ndarray | None]
"""The values of each array of an output, with the images first; None if an array is a constant."""

_SORTED = 10
"""The least number of values that can show that an output is sorted."""

_LABELS = 1e5
"""More than the number of classes. Far larger numbers are whole because of their precision."""

_BOX = 4
"""As many numbers describe a box: a head of four real numbers beside the scores is not taken for scores."""

_ROUNDING = 5e-3
"""The rounding error of a sum or a length in half precision."""


class _Unclear(Exception):
    """The scores, or their kind, cannot be inferred. The message says why, and what to try."""


def resolve_scores(  # noqa: PLR0917
    output: Any, values: Arrays, settings: Settings, is_array: IsArray, image_rank: int, channel_axis: int | None
) -> tuple[ScoresLayout | None, str]:
    """Return the layout of the scores, or None and the reason; raise an OutputError if values contradict the settings.

    `channel_axis` is the class axis of logits of the images' rank, 1 or −1; None if it is unknown.
    """
    try:
        if settings.scores == "none":
            raise _Unclear("scores='none' says so.")
        index, scores = _find(output, values, settings, is_array)
        kind, axis = _resolve(scores, settings, image_rank, channel_axis)
    except _Unclear as why:
        return None, str(why)
    return ScoresLayout(index, kind, axis - scores.ndim), ""


def find_mixed(scores: ScoresLayout | None, values: Arrays) -> tuple[Scores | None, ...]:
    """Return the kind of scores that a mix treats each array as: the scores, auxiliary heads like them, and logits of
    which they are the softmax; None for a constant.

    If there is any other array, nothing is averaged, (): one row supplies all outputs of an image.
    """
    if scores is None:
        return ()
    main = cast("np.ndarray", values[scores.index])
    kinds = [None if array is None else _kind_beside(array, main, scores) for array in values]
    others = any(kind is None and array is not None for kind, array in zip(kinds, values, strict=True))
    return () if others else tuple(kinds)


def _kind_beside(array: np.ndarray, main: np.ndarray, scores: ScoresLayout) -> Scores | None:
    """Return the kind of an array beside the scores, if it holds scores of the same classes."""
    axis, kind = scores.class_axis, scores.kind
    if array is main:
        return kind
    if array.dtype.kind != "f" or array.ndim != main.ndim or array.shape[axis] != main.shape[axis] or _is_binary(array):
        return None
    kinds = [kind for kind, _ in find_normalized(array, [axis % array.ndim])]
    if kind == "sigmoid_probabilities":
        alike = bool(array.min() >= 0 and array.max() <= 1) and array.shape == main.shape and array.ndim > 2
    elif kind == "sigmoid":  # whose classes may be on any axis; in rank 2, another head may hold anything
        alike = array.shape == main.shape and array.ndim > 2 and _unlike_logits(array) == ""
    elif kind.endswith("probabilities"):
        alike = kind in kinds
    else:
        alike = not kinds and (array.shape[axis] != _BOX or array.ndim > 3) and _unlike_logits(array) == ""
    return kind if alike else "logits" if kind == "probabilities" and _is_softmax(main, array, axis) else None


def _is_binary(array: np.ndarray) -> bool:
    """Whether an array holds only 0 and 1, like labels or masks."""
    return bool(((array == 0) | (array == 1)).all())


def _is_softmax(p: np.ndarray, z: np.ndarray, axis: int) -> bool:
    """Whether p = softmax(z)."""
    if p.shape != z.shape:
        return False
    e = np.exp(z - z.max(axis=axis, keepdims=True))
    return bool(np.abs(e / e.sum(axis=axis, keepdims=True) - p).max() <= _ROUNDING * np.ptp(p))


def _find(output: Any, values: Arrays, settings: Settings, is_array: IsArray) -> tuple[int, np.ndarray]:
    """Return the index and values of the scores: the selected array, a known name, or the only eligible array."""
    paths, arrays = zip(*flatten(output, is_array), strict=True)
    axes = 1 if (settings.scores or "").startswith("sigmoid") else 2
    floats = {index: array for index, array in enumerate(values) if array is not None and array.dtype.kind == "f"}
    eligible = {index: array for index, array in floats.items() if array.size and array.ndim >= axes}
    # transformers and torchvision name the scores "logits" and "out"
    found = [index for index in eligible if paths[index] in ("logits", "out")]
    found = found or [index for index in eligible if not any(arrays[index] is each for each in arrays[:index])]
    if settings.output is not None:
        part = part_of(output, settings.output, is_array)
        found = [index for index in eligible if arrays[index] is part]
        if not found:
            what = "nothing" if part is None else f"a {type(part).__name__} that is not a tensor of the output"
            if names := [path for path, array in zip(paths, arrays, strict=True) if array is part]:
                what = f"{names[0]}, which does not hold floating-point scores with one entry per image"
            others = ", ".join(path for path in paths if path not in names)
            advice = f"one of {others}" if len(paths) > 1 else "leave output= out"
            raise OutputError(f"output={settings.output!r} gives {what}. Try: {advice}.")
    if not found:
        what = "" if is_array(output) else f", which has {', '.join(paths)}"
        raise _Unclear(
            f"Found no class scores, floating-point numbers (N, classes, …), in the model's {type(output).__name__}"
            f"{what}. Try: adapt a module that returns them, or a recipe that needs none ('auto', 'shift')."
        )
    if len(found) == 2:  # a classifier may return its logits, too
        pairs = [(each, eligible[each], eligible[other]) for each, other in (found, found[::-1])]
        found = [each for each, p, z in pairs if any(_is_softmax(p, z, axis) for axis in range(1, p.ndim))] or found
    if len(found) > 1:
        raise _Unclear(
            f"Several outputs could be the class scores: {', '.join(paths[index] for index in found)}. Try: output= "
            "with a key, a position, or a function of the output; scores='none' if none of them holds class scores."
        )
    return found[0], eligible[found[0]]


def _resolve(values: np.ndarray, settings: Settings, image_rank: int, channel_axis: int | None) -> tuple[Scores, int]:
    """Return the kind and class axis of scores (N, …)."""
    said, shape = cast("Scores | None", settings.scores), f"(N, {', '.join(map(str, values.shape[1:]))})"
    in_unit_interval = bool(values.min() >= 0.0 and values.max() <= 1.0)
    if said == "sigmoid" or (said == "sigmoid_probabilities" and in_unit_interval):
        return said, values.ndim - 1
    usual = 1 if values.ndim == 2 else None
    if values.ndim == image_rank > 2 and channel_axis is not None:
        usual = channel_axis % values.ndim
    axes = [axis for axis in range(1, values.ndim) if values.shape[axis] > 1]
    if (given := settings.class_axis) is not None and said != "sigmoid_probabilities":
        axes = [axis for axis in axes if given in (axis, axis - values.ndim)]
        if not axes:
            raise OutputError(f"class_axis: expected an axis of {shape} with at least two classes; received {given}.")
        usual = axes[0]
    kinds = find_normalized(values, axes)
    found = [(kind, axis) for kind, axis in kinds if said in (None, kind)]
    if (said == "logits" and kinds) or (said not in (None, "logits") and not found):
        expected = {"logits": "that are not normalized", "sigmoid_probabilities": "from 0 to 1"}
        raise OutputError(
            f"scores={said!r}: expected values {expected.get(said, 'that sum to 1 along one axis')}; received values "
            f"from {values.min():.3g} to {values.max():.3g} on random images. Try: leave scores= out."
        )
    if found and said is None and settings.output is None and _is_binary(values):
        raise _Unclear(f"The output of shape {shape} holds only 0 and 1, like labels. Try: scores='{found[0][0]}'.")
    if len(found) == 1:
        return found[0]
    if found:
        raise _Unclear(f"Scores of shape {shape} sum to 1 along several axes. Try: class_axis=.")
    if said is None:
        _check_logits(values, shape, axes, settings.output is None and given is None)
    if usual not in axes:
        wanted = "scores='sigmoid' if labels are independent"
        raise _Unclear(f"The class axis of scores of shape {shape} is unclear. Try: class_axis=, or {wanted}.")
    return "logits", usual


def _check_logits(values: np.ndarray, shape: str, axes: Sequence[int], alone: bool) -> None:
    """Raise if values of unknown kind may be something else than logits; `alone`: no argument says that they are."""
    looks = _unlike_logits(values) if alone else ""
    unclear = not axes or (values.min() >= 0.0 and values.max() <= 1.0)
    if looks and (not unclear or ("whole" in looks and not axes)):
        otherwise = ", or 'logits' if not" if axes else ""
        raise _Unclear(f"The output of shape {shape} {looks}. Try: scores='none' to confirm that{otherwise}.")
    if unclear:
        what = "values from 0 to 1 that do not sum to 1" if axes else "a single class"
        logits = "; 'logits' if they are logits" if axes else ""
        raise _Unclear(
            f"The output of shape {shape} has {what}: the kind of these scores, if they are any, is unclear. Try: "
            "scores='sigmoid' or 'sigmoid_probabilities' for independent labels, or for yes and no; 'none' if these "
            f"are features{logits}."
        )


def find_normalized(values: np.ndarray, axes: Iterable[int]) -> list[tuple[Scores, int]]:
    """Return the pairs of kind and axis for which values (N, …) are normalized."""
    forms: dict[Scores, np.ndarray] = {"probabilities": values, "log_probabilities": np.exp(np.minimum(values, 1.0))}
    sums = [
        (kind, axis, form.sum(axis=axis)) for kind, form in forms.items() for axis in axes if form.min() >= -_ROUNDING
    ]
    return [(kind, axis) for kind, axis, total in sums if np.abs(total - 1).max() <= _ROUNDING]


def _unlike_logits(values: np.ndarray) -> str:
    """Return what values (N, …) of random images look like, if they do not look like logits; else an empty string."""
    if values.min() >= 0:
        return "has no negative value, like features or boxes"
    for axis in range(1, values.ndim):
        if values.shape[axis] > 1 and np.abs(np.linalg.norm(values, axis=axis) - 1).max() <= _ROUNDING:
            return f"has vectors of unit length along axis {axis}"
    for axis, index, column in _columns(values, (values == np.rint(values)) & (np.abs(values) < _LABELS)):
        if column.min() < column.max() or column.flat[0] >= 0:  # a negative constant may be a masked class
            return f"holds whole numbers at index {index} of axis {axis}, like labels"
    for axis in range(1, values.ndim):
        if values.ndim > 3 or values.shape[axis] < _SORTED:  # maps of several dimensions may be smooth
            continue
        steps = np.diff(values, axis=axis)
        for ordered in (steps <= 0, steps >= 0):
            found = list(_columns(values, ordered, skip=axis))
            if values.ndim == 2 and ordered.all():
                found = [(axis, 0, values)]
            if any((np.ptp(column.reshape(len(column), -1), axis=1) > 0).all() for *_, column in found):
                return f"is sorted along axis {axis}, like detections"
    return ""


def _columns(values: np.ndarray, right: np.ndarray, skip: int = 0) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield the axis, index and values of each slice of which everything is right."""
    for axis in range(1, values.ndim):
        if axis != skip:
            others = tuple(other for other in range(values.ndim) if other != axis)
            for index in np.flatnonzero(right.all(axis=others)):
                yield axis, int(index), values.take(index, axis=axis)
