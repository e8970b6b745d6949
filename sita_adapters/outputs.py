"""What a model puts out: an array, or tuples, dicts and records of them. Which of them the scores are, and the rest."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from .errors import OutputError
from .ops import Array

Selector: TypeAlias = "str | int | Callable[[Any], Any] | None"
"""Which part of an output the scores are: a key or field, a position, or a function of the output that returns it."""

IsArray: TypeAlias = Callable[[Any], bool]

USUAL_NAMES = ("logits", "out")
"""What scores are called in the outputs of transformers and torchvision."""

_BARE = (type(None), bool, int, float, complex, str, bytes)


def flatten(output: Any, is_array: IsArray) -> list[tuple[str, Array]]:
    """Return every array of an output with the path to it, as a reader of an error would write it."""
    return [(path, value) for path, value in _walk(output, "", is_array) if is_array(value)]


def flatten_all(output: Any, is_array: IsArray) -> list[tuple[str, Any]]:
    """Return every array, number, text and None of an output with the path to it."""
    return list(_walk(output, "", is_array))


def rebuild(output: Any, arrays: Iterator[Array], is_array: IsArray) -> Any:
    """Return an output of the same type and make, with these arrays in the order of `flatten`."""
    try:
        return _rebuild(output, arrays, is_array)
    except TypeError as error:
        raise OutputError(
            f"The model's {type(output).__name__} cannot be made again with other tensors in it: {error}. Expected "
            "tensors, or tuples, lists, dicts, named tuples and dataclasses of them. Remedy: adapt a module that "
            "returns one of these."
        ) from error


def _rebuild(output: Any, arrays: Iterator[Array], is_array: IsArray) -> Any:  # noqa: PLR0911 (one for each type)
    if is_array(output):
        return next(arrays)
    if isinstance(output, Mapping):
        changed = {key: _rebuild(part, arrays, is_array) for key, part in output.items()}
        if type(output) is dict:
            return changed
        made: Any = copy.copy(output)  # an OrderedDict, a ModelOutput: with whatever else it carries
        for key, part in changed.items():
            made[key] = part
        return made
    if isinstance(output, tuple) and hasattr(output, "_fields"):
        return type(output)(*(_rebuild(part, arrays, is_array) for part in output))
    if isinstance(output, list | tuple):
        return type(output)([_rebuild(part, arrays, is_array) for part in output])
    if _is_record(output):
        made = copy.copy(output)
        for field in dataclasses.fields(output):
            if hasattr(output, field.name):
                # A frozen one has just been made, and nobody has seen it yet.
                object.__setattr__(made, field.name, _rebuild(getattr(output, field.name), arrays, is_array))
        return made
    return output


def find_scores(output: Any, selector: Selector, is_array: IsArray, is_eligible: Callable[[Array], bool]) -> int:
    """Return the position, in the order of `flatten`, of the scores to vote on.

    Without a selector: the output itself, the part with a usual name, or the only eligible array.
    """
    found = flatten(output, is_array)
    if selector is not None:
        paths = [path for path, _ in found]
        if selector in paths:
            return paths.index(str(selector))
        return _position(_selected(output, selector), found, selector)
    if is_array(output):
        return 0
    named = [name for name in USUAL_NAMES if is_array(part := _part(output, name)) and not _counts(part)]
    eligible = [place for place, (_, array) in enumerate(found) if is_eligible(array)]
    if len(named) == 1:
        return _position(_part(output, named[0]), found, named[0])
    if not named and len(eligible) == 1:
        return eligible[0]
    names = ", ".join(named or [found[place][0] for place in eligible])
    if names:
        raise OutputError(
            f"The model's {type(output).__name__} has several parts that could be the scores to vote on: {names}. "
            f"Remedy: say which, with output= (a key, a position, or a function of the output)."
        )
    raise OutputError(
        f"Found no scores (N, classes, …) to vote on in the model's {type(output).__name__}"
        f"{_listed(found)}. Remedy: say where they are, with output=, or take a recipe with one prior ('augbn')."
    )


def check_selector(selector: Any) -> None:
    """Raise an OutputError unless this is a key, a position or a function."""
    if selector is not None and (
        isinstance(selector, bool) or not (isinstance(selector, str | int) or callable(selector))
    ):
        raise OutputError(
            f"output: expected a key, a position, or a function of the output that returns its scores; "
            f"received {selector!r}."
        )


def _walk(output: Any, path: str, is_array: IsArray) -> Iterator[tuple[str, Any]]:
    if is_array(output):
        yield path or "the output", output
    elif isinstance(output, Mapping):
        for key, part in output.items():
            yield from _walk(part, f"{path}.{key}" if path else str(key), is_array)
    elif isinstance(output, list | tuple):
        names = getattr(output, "_fields", None)
        for place, part in enumerate(output):
            step = f".{names[place]}" if names else f"[{place}]"
            yield from _walk(part, f"{path}{step}".lstrip("."), is_array)
    elif _is_record(output):
        for field in dataclasses.fields(output):
            yield from _walk(getattr(output, field.name, None), f"{path}.{field.name}".lstrip("."), is_array)
    elif isinstance(output, _BARE):
        yield path or "the output", output
    else:
        raise OutputError(
            f"The model returns {'' if not path else f'at {path} '}an object of type {type(output).__name__}, which "
            "cannot be looked into. Expected tensors, or tuples, lists, dicts, named tuples and dataclasses of them. "
            "Remedy: adapt a module that returns one of these."
        )


def _counts(array: Array) -> bool:
    """Whether an array is of integers or truth values: labels, not scores."""
    return any(kind in str(array.dtype) for kind in ("int", "bool"))


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _part(output: Any, key: str | int) -> Any:
    """Return what an output has under a name or at a position; None where it has nothing there."""
    if isinstance(output, Mapping):
        return output.get(key)
    if isinstance(key, str):
        return getattr(output, key, None) if _is_record(output) or hasattr(output, "_fields") else None
    return output[key] if isinstance(output, list | tuple) and -len(output) <= key < len(output) else None


def _selected(output: Any, selector: Selector) -> Any:
    if callable(selector):
        return selector(output)
    assert selector is not None
    return _part(output, selector)


def _position(part: Any, found: list[tuple[str, Array]], selector: Any) -> int:
    for place, (_, array) in enumerate(found):
        if array is part:
            return place
    what = "nothing" if part is None else f"a {type(part).__name__} that is no tensor of the output"
    raise OutputError(f"output={selector!r} gives {what}{_listed(found)}. Remedy: name the tensor of scores.")


def _listed(found: list[tuple[str, Array]]) -> str:
    parts = ", ".join(path for path, _ in found)
    return f" (its tensors: {parts})" if parts else " (it holds no tensor)"
