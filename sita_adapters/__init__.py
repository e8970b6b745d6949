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
from .cascade import cascade
from .compare import Comparison, compare
from .description import Description
from .errors import (
    AlreadyAdaptedError,
    BackendImportError,
    BatchStatisticsError,
    BypassError,
    CloneError,
    ExportError,
    FusedModelError,
    InputError,
    LayersError,
    NoBatchNormError,
    NotAdaptedError,
    NotObservedError,
    OutputError,
    RecipeError,
    ScriptedModelError,
    SharedWeightsError,
    SitaError,
    SitaWarning,
    UninitialisedModelError,
    UnknownModelError,
)
from .export import Exported, export
from .inputs import Inputs
from .observe import Seen, Summary, observe
from .recipe import RECIPES, Recipe
from .shift import ByShift
from .version import __version__

__all__ = [
    "RECIPES",
    "AlreadyAdaptedError",
    "BackendImportError",
    "BatchStatisticsError",
    "ByShift",
    "BypassError",
    "CloneError",
    "Comparison",
    "Description",
    "ExportError",
    "Exported",
    "FusedModelError",
    "InputError",
    "Inputs",
    "LayersError",
    "NoBatchNormError",
    "NotAdaptedError",
    "NotObservedError",
    "OutputError",
    "Recipe",
    "RecipeError",
    "ScriptedModelError",
    "Seen",
    "SharedWeightsError",
    "SitaError",
    "SitaWarning",
    "Summary",
    "UninitialisedModelError",
    "UnknownModelError",
    "__version__",
    "adapt",
    "calibrate",
    "cascade",
    "compare",
    "describe",
    "export",
    "observe",
    "unwrap",
]

# Keras loads a saved adapted model only if its classes are registered. Importing the backend registers them.
if "keras" in sys.modules:
    with contextlib.suppress(ImportError):
        importlib.import_module("sita_keras")
