"""Everything that can go wrong, each kind with a class of its own.

A message says what was expected, what came, and the remedy. Every class also derives from the builtin that a
careful caller would have caught anyway.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class SitaError(Exception):
    """The base of all errors of this library."""


class SitaWarning(UserWarning):
    """Something was done that the caller may not expect."""


class UnknownModelError(SitaError, TypeError):
    """No installed backend owns this model."""


class BackendImportError(SitaError, ImportError):
    """The backend that owns this model could not be imported."""


class NoBatchNormError(SitaError, ValueError):
    """There is no BatchNorm layer with running statistics to adapt."""


class FusedModelError(NoBatchNormError):
    """The BatchNorm layers were folded into their convolutions."""


class BatchStatisticsError(NoBatchNormError):
    """A layer normalises with the statistics of the whole batch, so that images would mix."""


class LayersError(SitaError, ValueError):
    """`layers=` names or picks nothing."""


class RecipeError(SitaError, ValueError):
    """A recipe's field is out of its range, or its fields contradict each other."""


class InputError(SitaError, ValueError):
    """The image is not what the adapted model can take."""


class OutputError(SitaError, ValueError):
    """The model's output holds no scores to choose by."""


class NotAdaptedError(SitaError, ValueError):
    """This model was not adapted."""


class AlreadyAdaptedError(SitaError, ValueError):
    """This model, or a part of it, is adapted already."""


class CloneError(SitaError, TypeError):
    """The model's structure cannot be copied."""


class ScriptedModelError(CloneError):
    """A compiled graph, in which hooks never fire."""


class UninitialisedModelError(CloneError):
    """A lazy layer that has no weights yet."""


class SharedWeightsError(SitaError, RuntimeError):
    """What was asked for would change the source model's weights or statistics."""


class BypassError(SitaError, RuntimeError):
    """An adapted layer ran outside a call of the adapted model, or none ran inside it."""


class ExportError(SitaError, ValueError):
    """The adapted model cannot be written to this file, or answers otherwise once it is."""


class NotObservedError(SitaError, RuntimeError):
    """Votes were asked for that nobody could have seen."""


def install(*extras: str) -> str:
    """Return how to install extras. It holds where the package is on no index, too: pip then asks the installed one."""
    wanted = f"[{','.join(extras)}]"
    return f"pip install 'sita-adapters{wanted}' (in a checkout: pip install '.{wanted}')"


def torchvision_hint(error: BaseException) -> str:
    """Return the remedy where torchvision, which timm imports as well, was built for another torch; else nothing."""
    if "torchvision::" not in str(error):
        return ""
    return (
        " Remedy: a torchvision that was built for the installed torch, or, before it and timm are imported, "
        "`import sita_workbench.models.torchvision_compat`."
    )


def suggestion(word: str, known: Iterable[str]) -> str:
    """` Did you mean 'ops'?`, or nothing where no known word comes close."""
    close = get_close_matches(word, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
