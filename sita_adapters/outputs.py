"""A model's output: its arrays, and which of them holds the class scores, inferred from values.

The probe has the outputs of a few random images. Scores that are non-negative and sum to 1 along exactly one axis are
probabilities. Scores whose exponentials do so are log-probabilities. All others are logits, unless all are in [0, 1].
Values cannot distinguish embeddings from logits: `describe` prints what was assumed.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from .errors import OutputError
from .ops import Array
from .voting import Scores

if TYPE_CHECKING:
    from .engine import Adaptation, Settings

Selector: TypeAlias = "str | int | Callable[[Any], Any] | None"
"""Which part of an output holds the scores: a key or field, a position, or a function of the output that returns it."""

IsArray: TypeAlias = Callable[[Any], bool]


@dataclass(frozen=True)
class ScoresLayout:
    """The class scores in an output: the index of the array, the kind of scores, and the class axis from the end."""

    index: int
    kind: Scores
    class_axis: int


@dataclass(frozen=True)
class OutputLayout:
    """What the probe established about a model for one kind of input."""

    paths: tuple[str, ...]  # the arrays of the output, in the order of `flatten`
    axes: tuple[int | None, ...]  # the batch dimension of each array; None for a constant
    scores: ScoresLayout | None  # the class scores; None if there are none, or if they are unclear
    why_no_scores: str = ""  # the reason, and what to try
    has_integers: bool = False  # whether any array is not floating-point; then nothing is averaged
    entries_per_row: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # for each call of each adapted layer
    channel_axes: Mapping[str, int] = field(
        default_factory=dict
    )  # of layers whose axis isn't the framework's usual one
    notes: tuple[str, ...] = ()  # notes on the model that `describe` prints
    aligned: tuple[bool, ...] = ()  # for each tensor argument beside the images, whether it has one entry per image

    @property
    def calls(self) -> int:
        """The number of calls of adapted layers in one forward pass."""
        return sum(map(len, self.entries_per_row.values()))

    def require_scores(self) -> ScoresLayout:
        """Return the scores; raise an OutputError if there are none."""
        if self.scores is None:
            raise OutputError(self.why_no_scores)
        return self.scores


def flatten(output: Any, is_array: IsArray) -> list[tuple[str, Array]]:
    """Return every array of an output with its path. An array that occurs twice is listed once."""
    found: dict[int, tuple[str, Array]] = {}
    for path, leaf in leaves(output, is_array):
        if is_array(leaf):
            found.setdefault(id(leaf), (path, leaf))
    return list(found.values())


def leaves(output: Any, is_array: IsArray) -> list[tuple[str, Any]]:
    """Return every array, number, string and None of an output with its path."""
    found: list[tuple[str, Any]] = []

    def note(path: str, leaf: Any) -> Any:
        found.append((path or "the output", leaf))
        return leaf

    _map(output, "", is_array, note)
    return found


def rebuild(output: Any, arrays: Sequence[Array], is_array: IsArray) -> Any:
    """Return an output of the same type and structure with these arrays, in the order of `flatten`."""
    new = {id(old): array for (_, old), array in zip(flatten(output, is_array), arrays, strict=True)}
    return _map(output, "", is_array, lambda _, leaf: new.get(id(leaf), leaf))


def _map(output: Any, path: str, is_array: IsArray, function: Callable[[str, Any], Any]) -> Any:
    """Return an output with a function of (path, leaf) applied to its leaves: arrays, numbers, strings and None."""
    if is_array(output) or isinstance(output, int | float | complex | str | bytes | None):
        return function(path, output)

    def inner(step: str, part: Any) -> Any:
        return _map(part, f"{path}{step}".lstrip("."), is_array, function)

    why = ""
    try:
        if type(output) is dict:
            return {key: inner(f".{key}", part) for key, part in output.items()}
        if isinstance(output, tuple) and hasattr(output, "_fields"):
            return type(output)(*(inner(f".{name}", part) for name, part in zip(output._fields, output, strict=True)))
        if isinstance(output, list | tuple):
            return type(output)([inner(f"[{index}]", part) for index, part in enumerate(output)])
        made = copy.copy(output)  # an OrderedDict, a ModelOutput or a dataclass, with its other attributes
        if isinstance(output, Mapping):
            for key, part in output.items():
                made[key] = inner(f".{key}", part)
            return made
        if dataclasses.is_dataclass(output) and not isinstance(output, type):
            for each in dataclasses.fields(output):
                if hasattr(output, each.name):  # bypasses frozen=True: the copy is not shared yet
                    object.__setattr__(made, each.name, inner(f".{each.name}", getattr(output, each.name)))
            return made
    except TypeError as error:
        why = f", which cannot be rebuilt with other tensors ({error})"
    raise OutputError(
        f"The model returns an object of type {type(output).__name__}{f' at {path}' if path else ''}{why}. Expected "
        "tensors, or tuples, lists, dicts, named tuples and dataclasses of these. Try: adapt a module returning these."
    )


def check_selector(selector: Any) -> None:
    """Raise an OutputError unless this is a key, a position or a function."""
    if isinstance(selector, bool) or not (isinstance(selector, str | int | None) or callable(selector)):
        raise OutputError(f"output: expected a key, a position, or a function of the output; received {selector!r}.")


def select(output: Any, selector: Selector, is_array: IsArray) -> Any:
    """Return the part of an output that a selector names; None if there is none."""
    if callable(selector):
        return selector(output)
    if isinstance(selector, int) and isinstance(output, list | tuple | Mapping):
        with contextlib.suppress(KeyError, IndexError):
            return output[selector]
    named: dict[Any, Any] = dict(leaves(output, is_array))
    return named.get(selector)


class _Unclear(Exception):
    """The scores, or their kind, cannot be inferred. The message says why, and what to try."""


def resolve_scores(
    output: Any, values: Sequence[np.ndarray | None], adaptation: Adaptation, is_array: IsArray
) -> tuple[ScoresLayout | None, str]:
    """Return the layout of the scores, or None and the reason; raise an OutputError if values contradict the settings.

    `values` has the values of each array of the output, with the images first; None if an array is a constant.
    """
    try:
        index, scores = _find(output, values, adaptation.settings, is_array)
        last = scores.ndim == 2 or adaptation.channel_axis == -1
        unknown = scores.ndim == 3 and not last and "signal" not in adaptation.kinds  # an image's queries, perhaps
        kind, axis = _resolve(scores, adaptation.settings, None if unknown else scores.ndim - 1 if last else 1)
    except _Unclear as why:
        return None, str(why)
    return ScoresLayout(index, kind, axis - scores.ndim), ""


def _find(
    output: Any, values: Sequence[np.ndarray | None], settings: Settings, is_array: IsArray
) -> tuple[int, np.ndarray]:
    """Return the index and values of the scores: the selected array, a known name, or the only eligible array."""
    paths, arrays = zip(*flatten(output, is_array), strict=True)
    axes = 1 if (settings.scores or "").startswith("sigmoid") else 2
    floats = {index: array for index, array in enumerate(values) if array is not None and array.dtype.kind == "f"}
    eligible = {index: array for index, array in floats.items() if array.size and array.ndim >= axes}
    # transformers and torchvision name the scores "logits" and "out"
    found = [index for index in eligible if paths[index] in ("logits", "out")] or list(eligible)
    if settings.output is not None:
        part = select(output, settings.output, is_array)
        found = [index for index in eligible if arrays[index] is part]
        if not found:
            what = "nothing" if part is None else f"a {type(part).__name__} that is not a tensor of the output"
            if names := [path for path, array in zip(paths, arrays, strict=True) if array is part]:
                what = f"{names[0]}, which does not hold floating-point scores with one entry per image"
            others = ", ".join(path for path in paths if path not in names)
            advice = f"one of {others}" if len(paths) > 1 else "leave output= out"
            raise OutputError(f"output={settings.output!r} gives {what}. Try: {advice}.")
    if not found:
        raise _Unclear(
            f"Found no class scores (N, classes, …) in the model's {type(output).__name__}, which has "
            f"{', '.join(paths)}. Try: a recipe that needs none ('auto', 'augbn'), or adapt a module that returns them."
        )
    if len(found) > 1:
        raise _Unclear(
            f"Several outputs could be the class scores: {', '.join(paths[index] for index in found)}. Try: output= "
            "with a key, a position, or a function of the output."
        )
    return found[0], eligible[found[0]]


def _resolve(values: np.ndarray, settings: Settings, usual: int | None) -> tuple[Scores, int]:
    """Return the kind and class axis of scores (N, …); `usual` is the framework's class axis of logits, if known."""
    said, shape = settings.scores, f"(N, {', '.join(map(str, values.shape[1:]))})"
    in_unit_interval = bool(values.min() >= 0.0 and values.max() <= 1.0)
    if said == "sigmoid" or (said == "sigmoid_probabilities" and in_unit_interval):
        return said, values.ndim - 1
    axes = [axis for axis in range(1, values.ndim) if values.shape[axis] > 1]
    if (given := settings.class_axis) is not None and said != "sigmoid_probabilities":
        axes = [axis for axis in axes if given in (axis, axis - values.ndim)]
        if not axes:
            raise OutputError(f"class_axis: expected an axis of {shape} with at least two classes; received {given}.")
        usual = axes[0]
    kinds = normalized(values, axes)
    found = [(kind, axis) for kind, axis in kinds if said in (None, kind)]
    if (said == "logits" and kinds) or (said not in (None, "logits") and not found):
        expected = {"logits": "that are not normalized", "sigmoid_probabilities": "from 0 to 1"}
        raise OutputError(
            f"scores={said!r}: expected values {expected.get(said, 'that sum to 1 along one axis')}; received values "
            f"from {values.min():.3g} to {values.max():.3g} on random images. Try: leave scores= out."
        )
    if len(found) == 1:
        return found[0]
    if found:
        raise _Unclear(f"Scores of shape {shape} sum to 1 along several axes. Try: class_axis=.")
    if said is None and (not axes or in_unit_interval):
        raise _Unclear(
            f"Scores of shape {shape} have {'values from 0 to 1 that do not sum to 1' if axes else 'a single class'}: "
            "whether these are logits or probabilities is unclear. Try: scores='sigmoid' or 'sigmoid_probabilities' if "
            "labels are independent, 'logits' if they are logits."
        )
    if usual not in axes:
        raise _Unclear(f"The class axis of scores of shape {shape} is unclear. Try: class_axis=, or scores='sigmoid'.")
    return "logits", usual


def normalized(values: np.ndarray, axes: Iterable[int]) -> list[tuple[Scores, int]]:
    """Return the pairs of kind and axis for which values (N, …) are normalized."""
    forms: dict[Scores, np.ndarray] = {"probabilities": values, "log_probabilities": np.exp(np.minimum(values, 1.0))}
    rounding = 5e-3  # of a sum in half precision
    sums = [
        (kind, axis, form.sum(axis=axis)) for kind, form in forms.items() for axis in axes if form.min() >= -rounding
    ]
    return [(kind, axis) for kind, axis, total in sums if np.abs(total - 1).max() <= rounding]
