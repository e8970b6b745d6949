"""A model's output: its arrays, their layout, and the same structure with other arrays."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from .errors import OutputError
from .ops import Array, Ops
from .voting import Scores

Selector: TypeAlias = "str | int | Callable[[Any], Any] | None"
"""Which part of an output holds the scores: a key or field, a position, or a function of the output that returns it."""

IsArray: TypeAlias = Callable[[Any], bool]

_ROOT = "the output"
"""The path of an output that is a single array."""


@dataclass(frozen=True)
class ScoresLayout:
    """The class scores in an output: the index of the array, the kind of scores, and the class axis from the end."""

    index: int
    kind: Scores
    class_axis: int


@dataclass(frozen=True)
class OutputLayout:
    """What the probe established about the output for one kind of input."""

    paths: tuple[str, ...]  # the arrays of the output, in the order of `flatten`
    axes: tuple[int | None, ...]  # the batch dimension of each array; None for a constant
    shapes: tuple[tuple[int, ...], ...]  # of the arrays, for two images
    floats: tuple[bool, ...]  # whether the arrays hold floating-point numbers
    scores: ScoresLayout | None  # the class scores; None if there are none, or if they are unclear
    why_no_scores: str = ""  # the reason, and what to try
    mixed: tuple[Scores | None, ...] = ()  # the kind of each array in a mix; (): one row supplies all of an image

    @property
    def selection_note(self) -> str:
        """What a mix does with an output without class scores, why, and what to try."""
        selects = "The shift selects the row that supplies all outputs of an image, usually the source's"
        return f"{selects}. {self.why_no_scores}"

    def require_scores(self) -> ScoresLayout:
        """Return the scores; raise an OutputError if there are none."""
        if self.scores is None:
            advice = "" if "Try:" in self.why_no_scores else " Try: leave scores= out, or 'auto', which needs none."
            raise OutputError(f"{self.why_no_scores}{advice}")
        return self.scores


def flatten(output: Any, is_array: IsArray) -> list[tuple[str, Array]]:
    """Return every array of an output with its path."""
    if is_array(output):
        return [(_ROOT, output)]
    return [(path, leaf) for path, leaf in leaves(output, is_array) if is_array(leaf)]


def leaves(output: Any, is_array: IsArray) -> list[tuple[str, Any]]:
    """Return every array, number, string and None of an output with its path."""
    found: list[tuple[str, Any]] = []

    def note(path: str, leaf: Any) -> Any:
        found.append((path or _ROOT, leaf))
        return leaf

    _map(output, "", is_array, note)
    return found


def changed_constants(output: Any, constants: Mapping[str, Any], same_shape: bool, ops: Ops) -> list[str]:
    """Return the paths of constants that differ from these; if images have another shape, of arrays that were empty."""
    changed = []
    for path, leaf in leaves(output, ops.is_array):
        if path not in constants:
            continue
        before, now = constants[path], leaf
        if ops.is_array(leaf):
            now = ops.to_numpy(leaf)
            if now.shape == before.shape and now.dtype.kind in "fc":
                tolerance = 1e-2 if "16" in str(leaf.dtype) else 1e-4
                differs = not np.allclose(now, before, tolerance, tolerance * np.abs(before).max(initial=0.0), True)
            else:
                differs = not np.array_equal(now, before)
            differs = differs and (same_shape or before.size == 0)
        else:
            differs = same_shape and repr(now) != repr(before)
        changed += [path] * differs
    return changed


def rebuild(output: Any, arrays: Sequence[Array], is_array: IsArray) -> Any:
    """Return an output of the same type and structure with these arrays, in the order of `flatten`."""
    if is_array(output):
        return arrays[0]
    remaining = iter(arrays)
    return _map(output, "", is_array, lambda _, leaf: next(remaining) if is_array(leaf) else leaf)


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
        fields = dataclasses.fields(output) if dataclasses.is_dataclass(output) else ()
        if fields or isinstance(output, Mapping):  # an OrderedDict, a ModelOutput or a dataclass
            made = copy.copy(output)  # with its other attributes
            names = [*output] if isinstance(output, Mapping) else [each.name for each in fields]
            _check_hidden(output, names, path, is_array)
            for name in names:
                if isinstance(output, Mapping):
                    made[name] = inner(f".{name}", output[name])
                elif hasattr(output, name):  # bypasses frozen=True: the copy is not shared yet
                    object.__setattr__(made, name, inner(f".{name}", getattr(output, name)))
            return made
    except TypeError as error:
        why = f", which cannot be rebuilt with other tensors ({error})"
    raise OutputError(
        f"The model returns an object of type {type(output).__name__}{f' at {path}' if path else ''}{why}. Expected "
        "tensors, or tuples, lists, dicts, named tuples and dataclasses of these. Try: adapt a module returning these."
    )


def _check_hidden(output: Any, names: Sequence[str], path: str, is_array: IsArray) -> None:
    """Raise if an object holds arrays beside its fields: they would be those of all rows."""
    attributes = getattr(output, "__dict__", {})  # there is none with __slots__
    if hidden := [name for name, value in attributes.items() if name not in names and is_array(value)]:
        raise OutputError(
            f"{type(output).__name__}{f' at {path}' if path else ''} holds tensors that are no fields of it: "
            f"{', '.join(hidden)}. Try: adapt a module that returns the fields only, and compute these from them."
        )


def check_selector(selector: Any) -> None:
    """Raise an OutputError unless this is a key, a position or a function."""
    if isinstance(selector, bool) or not (isinstance(selector, str | int | None) or callable(selector)):
        raise OutputError(f"output: expected a key, a position, or a function of the output; received {selector!r}.")


def part_of(output: Any, selector: Selector, is_array: IsArray) -> Any:
    """Return the part of an output that a selector names; None if there is none."""
    if callable(selector):
        with contextlib.suppress(LookupError, AttributeError):
            return selector(output)
        return None
    if isinstance(selector, int) and isinstance(output, list | tuple | Mapping):
        with contextlib.suppress(KeyError, IndexError):
            return output[selector]
    named: dict[Any, Any] = dict(leaves(output, is_array))
    return named.get(selector)
