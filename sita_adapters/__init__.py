"""Single-image test-time adaptation for trained BatchNorm models: `sita.adapt(model)`.

>>> import sita_adapters as sita
>>> adapted = sita.adapt(model)
>>> prediction = adapted(images)
"""

from .api import adapt, describe, unwrap
from .calibrate import calibrate
from .compare import compare
from .errors import SitaError, SitaWarning
from .export import export
from .inputs import Inputs
from .observe import observe
from .recipe import Recipe
from .recipes import RECIPES
from .shift import ByShift
from .version import __version__

__all__ = [
    "RECIPES",
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
