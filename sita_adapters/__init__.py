"""Single-image test-time adaptation for trained BatchNorm models: `sita.adapt(model)`.

>>> import sita_adapters as sita
>>> adapted = sita.adapt(model)
>>> prediction = adapted(images)
"""

import contextlib
import importlib
import sys

from .api import adapt, describe, unwrap
from .calibrate import calibrate
from .compare import compare
from .errors import SitaError, SitaWarning
from .export import export
from .inputs import Inputs
from .observe import observe
from .recipe import RECIPES, Recipe
from .reliability import ByReliability
from .shift import ByShift
from .version import __version__

__all__ = [
    "RECIPES",
    "ByReliability",
    "ByShift",
    "Inputs",
    "Recipe",
    "SitaError",
    "SitaWarning",
    "__version__",
    "adapt",
    "calibrate",
    "compare",
    "describe",
    "export",
    "observe",
    "unwrap",
]


def __dir__() -> list[str]:
    return __all__


# Keras loads a saved adapted model only if its classes are registered, which importing the backend does.
if "keras" in sys.modules:
    with contextlib.suppress(ImportError):
        importlib.import_module("sita_keras")
