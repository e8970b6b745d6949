"""A model's output: an array, or tuples, dicts and records of them; and what the probe established about it."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from .errors import OutputError
from .ops import Array
from .voting import Scores

Selector: TypeAlias = "str | int | Callable[[Any], Any] | None"
"""Which part of an output is the scores: a key or field, a position, or a function of the output that returns it."""

IsArray: TypeAlias = Callable[[Any], bool]


@dataclass(frozen=True)
class ScoresLayout:
    """Which of an output's arrays is the scores, what they are, and the class axis, counted from the end."""

    index: int
    kind: Scores
    class_axis: int


@dataclass(frozen=True)
class OutputLayout:
    """What the probe established about a model for one kind of input."""

    paths: tuple[str, ...]  # the arrays of the output, in the order of `flatten`
    axes: tuple[int | None, ...]  # for each array the axis of the images; None for a constant
    scores: ScoresLayout | None  # the class scores; None if no array is known to be these
    why_no_scores: str = ""  # and what a caller can do about it
    has_integers: bool = False  # whether any array holds integers or truth values, which have no mean
    entries_per_row: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # for each call of each adapted layer
    channel_axes: Mapping[str, int] = field(
        default_factory=dict
    )  # of layers whose axis isn't the framework's usual one
    notes: tuple[str, ...] = ()  # what `describe` tells about the model
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
        made = copy.copy(output)  # an OrderedDict, a ModelOutput, a dataclass: with whatever else it carries
        if isinstance(output, Mapping):
            for key, part in output.items():
                made[key] = inner(f".{key}", part)
            return made
        if dataclasses.is_dataclass(output) and not isinstance(output, type):
            for each in dataclasses.fields(output):
                if hasattr(output, each.name):  # frozen or not: nobody has seen the copy yet
                    object.__setattr__(made, each.name, inner(f".{each.name}", getattr(output, each.name)))
            return made
    except TypeError as error:
        why = f", which cannot be rebuilt with other tensors ({error})"
    raise OutputError(
        f"The model returns an object of type {type(output).__name__}{f' at {path}' if path else ''}{why}. Expected "
        "tensors, or tuples, lists, dicts, named tuples and dataclasses of them. Try: adapt a module that returns such."
    )


def check_selector(selector: Any) -> None:
    """Raise an OutputError unless this is a key, a position or a function."""
    if isinstance(selector, bool) or not (isinstance(selector, str | int | None) or callable(selector)):
        raise OutputError(f"output: expected a key, a position, or a function of the output; received {selector!r}.")


def select(output: Any, selector: Selector, is_array: IsArray) -> Any:
    """Return the part of an output that a selector names; None if there is none."""
    if callable(selector):
        return selector(output)
    if isinstance(selector, int):
        with contextlib.suppress(KeyError, IndexError, TypeError):
            return output[selector]
    named: dict[Any, Any] = dict(leaves(output, is_array))
    return named.get(selector)
