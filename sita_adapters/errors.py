"""The library's errors. `SitaError` catches all of them. Each subclass is also a built-in error, such as ValueError."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from numbers import Real
from typing import Any


class SitaError(Exception):
    """The base class of every error in this library."""


class SitaWarning(UserWarning):
    """The result is correct, but may not be what the caller expects."""


class ModelError(SitaError, ValueError):
    """The model cannot be adapted, or it violates the contract (docs/contract.md)."""


class BackendImportError(SitaError, ImportError):
    """The backend for this model cannot be imported."""


class RecipeError(SitaError, ValueError):
    """A recipe, or an argument of `adapt` that changes it, is out of range or contradictory."""


class InputError(SitaError, ValueError):
    """An argument or an image is not what was expected."""


class OutputError(SitaError, ValueError):
    """The model's output, or an argument that describes it, is not what was expected."""


class SharedWeightsError(SitaError, RuntimeError):
    """The operation would change the weights or statistics that the adapted model shares with the source model."""


class ExportError(SitaError, ValueError):
    """The adapted model cannot be written to this file."""


SECOND_MODEL = "adapt a second model for these inputs, sita.adapt(model, example=…)"
"""What to try if a model works in another way on some inputs."""


def install(*extras: str) -> str:
    """Return the commands that install extras, from an index and from a checkout: the package isn't on PyPI yet."""
    wanted = f"[{','.join(extras)}]"
    return f"pip install 'sita-adapters{wanted}' (in a checkout: pip install '.{wanted}')"


def expect_integer(name: str, value: Any, least: int, error: type[SitaError]) -> int:
    """Return an integer of any type except bool; raise an error if it is not an integer or below `least`."""
    number = None if isinstance(value, bool) or not hasattr(value, "__index__") else operator.index(value)
    if number is None or number < least:
        raise error(f"{name}: expected an integer of at least {least}; received {value!r}.")
    return number


def expect_number(name: str, value: Any, above: float = 0.0, most: float = 1e30) -> float:
    """Return a number, but no bool; raise a RecipeError unless it is above one limit and at most the other."""
    number = float(value) if isinstance(value, Real) and value is not True and value is not False else math.nan
    if not above < number <= most:
        raise RecipeError(f"{name}: expected a number above {above:g}, at most {most:g}; received {value!r}.")
    return number


def expect_one_of(name: str, value: Any, allowed: Sequence[str | bool], error: type[SitaError] | None = None) -> None:
    """Raise an error (by default a RecipeError) if a value is not one of these strings or bools."""
    if not isinstance(value, type(allowed[0])) or value not in allowed:
        expected, hint = " or ".join(map(repr, allowed)), suggestion(str(value), map(str, allowed))
        raise (error or RecipeError)(f"{name}: expected {expected}; received {value!r}.{hint}")


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return ` Did you mean 'ops'?`, or an empty string if no known word is similar. Case does not matter."""
    originals = {each.lower(): each for each in known}
    close = get_close_matches(word.lower(), originals, n=1)
    return f" Did you mean {originals[close[0]]!r}?" if close else ""
