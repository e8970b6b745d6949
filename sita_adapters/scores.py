"""Which of a model's outputs holds the class scores, what they are, and where the classes are: established from values.

The probe has the outputs of a few random images. Scores that are non-negative and sum to 1 along exactly one axis are
probabilities; those whose exponentials do are log-probabilities. All others are logits, unless they all lie in [0, 1].
Embeddings cannot be told from logits by their values: `describe` prints what was assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import OutputError
from .ops import Ops
from .outputs import USUAL_NAMES, IsArray, OutputLayout, ScoresLayout, Selector, find_selected, flatten
from .voting import Scores

if TYPE_CHECKING:
    from .engine import Adaptation

_TOLERANCE = 5e-3
"""What rounding in half precision may add to a sum of probabilities."""


def resolve_scores(
    output: Any, values: Sequence[np.ndarray | None], adaptation: Adaptation, is_array: IsArray
) -> tuple[ScoresLayout | None, str]:
    """Return the layout of the scores, or None and the reason.

    `values` has, for each array of the output, its values on random images with the images first; None if it has no
    entry for each image. Raise an OutputError where the values contradict what the caller said.
    """
    settings = adaptation.settings
    index = _find(output, values, settings.output, settings.scores, is_array)
    if isinstance(index, str):
        return None, index
    array = values[index]
    assert array is not None
    usual: int | None = array.ndim - 1 if array.ndim == 2 or adaptation.channel_axis == -1 else 1
    if array.ndim == 3 and adaptation.channel_axis == 1 and "signal" not in adaptation.kinds:
        usual = None  # (N, a, b) may be the queries of an image
    found = _resolve(array, settings.scores, settings.class_axis, usual)
    if isinstance(found, str):
        return None, found
    return ScoresLayout(index, found[0], found[1] - array.ndim), ""


def _find(
    output: Any, values: Sequence[np.ndarray | None], selector: Selector, kind: Scores | None, is_array: IsArray
) -> int | str:
    """Return the index of the scores (the selected array, one with a usual name, the only eligible one), or why not."""
    paths = [path for path, _ in flatten(output, is_array)]
    least = 0 if (kind or "").startswith("sigmoid") else 1
    eligible = [
        index
        for index, array in enumerate(values)
        if array is not None and array.dtype.kind == "f" and array.size and array.ndim > least
    ]
    if selector is not None:
        index = find_selected(output, selector, is_array)
        if index not in eligible:
            raise OutputError(
                f"output: expected floating-point scores with one entry per image; {paths[index]} is not. Try: another "
                f"of {', '.join(paths)}."
            )
        return index
    found = [index for index in eligible if paths[index] in USUAL_NAMES] or eligible
    if len(found) == 1:
        return found[0]
    if not found:
        return (
            f"Found no class scores (N, classes, …) in the model's {type(output).__name__}, which has "
            f"{', '.join(paths)}. Try: a recipe that needs none ('auto', 'augbn'), or adapt a module that returns them."
        )
    return (
        f"Several outputs could be the class scores: {', '.join(paths[index] for index in found)}. Try: output= with "
        "a key, a position, or a function of the output."
    )


def _resolve(
    values: np.ndarray, kind: Scores | None, class_axis: int | None, usual: int | None
) -> tuple[Scores, int] | str:
    """Return what scores (N, …) are, and their class axis; or why that is unclear.

    `usual` is the framework's class axis of logits, None if it has none.
    """
    shape = f"(N, {', '.join(map(str, values.shape[1:]))})"
    in_unit_interval = bool(values.min() >= 0.0 and values.max() <= 1.0)
    if kind is not None and kind.startswith("sigmoid"):
        if kind == "sigmoid_probabilities" and not in_unit_interval:
            raise _contradiction(kind, "from 0 to 1", values)
        return kind, values.ndim - 1
    axes = [axis for axis in range(1, values.ndim) if values.shape[axis] > 1]
    if class_axis is not None:
        usual = class_axis % values.ndim if -values.ndim <= class_axis < values.ndim else None
        if usual not in axes:
            raise OutputError(
                f"class_axis: expected an axis with two classes or more in scores of shape {shape}; received "
                f"{class_axis}."
            )
        axes = [axis for axis in axes if axis == usual]
    powers = np.exp(np.minimum(values, 1.0))
    normalized: dict[Scores, list[int]] = {
        "probabilities": [axis for axis in axes if _sums_to_one(values, axis)],
        "log_probabilities": [axis for axis in axes if _sums_to_one(powers, axis)],
    }
    for name, found in normalized.items():
        if len(found) == 1 and kind in (None, name):
            return name, found[0]
        if found and kind == "logits":
            raise _contradiction(kind, "that are not normalized", values)
        if len(found) > 1:
            return f"Scores of shape {shape} sum to 1 along several axes. Try: class_axis=."
    if kind in normalized:
        raise _contradiction(kind, "that sum to 1 along one axis", values)
    if kind is None and (not axes or in_unit_interval):
        what = "values from 0 to 1 that do not sum to 1" if axes else "a single class"
        return (
            f"Scores of shape {shape} have {what}: whether these are logits or probabilities is unclear. Try: scores="
            "'sigmoid' or 'sigmoid_probabilities' if each label is true or not, 'logits' if they are logits."
        )
    if usual is None or values.shape[usual] < 2:
        return (
            f"The class axis of scores of shape {shape} is unclear. Try: class_axis=, or scores='sigmoid' if each "
            "label is true or not."
        )
    return "logits", usual


def check_kind(output: Any, layout: OutputLayout, ops: Ops) -> None:
    """Raise if scores are normalized now and were not in the probe, or the other way round.

    A number or string beside the images may switch a model from logits to probabilities.
    """
    found = flatten(output, ops.is_array)
    if layout.scores is None or layout.scores.kind.startswith("sigmoid") or len(found) != len(layout.paths):
        return
    array, axis = found[layout.scores.index][1], layout.axes[layout.scores.index]
    values, kind = ops.to_numpy(ops.xp.moveaxis(array, axis or 0, 0)[:1]), layout.scores.kind
    powers = np.exp(np.minimum(values, 1.0))
    forms = {"probabilities": (values,), "log_probabilities": (powers,)}.get(kind, (values, powers))
    normalized = any(_sums_to_one(each, layout.scores.class_axis) for each in forms)
    if np.isfinite(values).all() and normalized != (kind != "logits"):
        raise OutputError(
            f"The scores were {kind} in the probe but not in this call: another argument changes them. Try: adapt a "
            "separate model for each value, sita.adapt(model, example=…)."
        )


def _contradiction(kind: str, expected: str, values: np.ndarray) -> OutputError:
    return OutputError(
        f"scores={kind!r}: expected values {expected}; received values from {values.min():.3g} to {values.max():.3g} "
        "on random images. Try: leave scores= out, and check it with sita.describe."
    )


def _sums_to_one(values: np.ndarray, axis: int) -> bool:
    return bool(values.min() >= -_TOLERANCE and np.abs(values.sum(axis=axis) - 1).max() <= _TOLERANCE)
