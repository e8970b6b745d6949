"""The Backend protocol, and which backend owns a model."""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from .errors import BackendImportError, NotAdaptedError, UnknownModelError, install
from .inputs import Inputs
from .ops import Array, Ops
from .outputs import Selector, find_scores, flatten
from .recipe import Recipe
from .selection import Layers
from .voting import Scores

if TYPE_CHECKING:
    from .engine import Adaptation

GROUP = "sita_adapters.backends"
"""The entry-point group. An entry's name is the import package whose classes the backend's models descend from."""


@dataclass(frozen=True)
class Settings:
    """What belongs to the model rather than to the method."""

    inputs: Inputs | None = None
    scores: str | None = None
    output: Selector = None
    layers: Layers = None
    max_rows: int | None = None
    example: Any = None
    """What the model is called with: it is tried out on inputs like these at once, not at its first call."""


class Backend(Protocol):
    """What only a framework can do. Everything else is the core's."""

    ops: Ops
    export_formats: tuple[str, ...]

    @property
    def label(self) -> str:
        """The framework's name, and what it computes with."""

    def adapt(self, model: Any, recipe: Recipe, settings: Settings) -> Any:
        """Return an adapted clone that shares the weights of a model, which stays as it was."""

    def unwrap(self, adapted: Any) -> Any:
        """Return a plain clone of an adapted model, that shares its weights."""

    def adaptation_of(self, model: Any) -> Adaptation | None:
        """Return what makes a model an adapted one; None if it is a plain one."""

    def source_name(self, adapted: Any) -> str:
        """Return the name of the class that was adapted."""

    def scores_of(self, model: Any) -> Scores:
        """Return what a plain model's scores are, as `adapt` would read them."""

    def observing(self, adapted: Any) -> AbstractContextManager[object]:
        """Make an adapted model run so that its votes have values; give the key under which they are recorded."""

    def arrange(self, name: str, model: Any, images: np.ndarray) -> np.ndarray:
        """Return images (N, h, w, channels) with their axes as the model takes them."""

    def run(self, model: Any, batch: np.ndarray) -> Any:
        """Return the model's output for numpy images, computed the way it would be run in production."""

    def with_diagnostics(self, adapted: Any) -> Any:
        """Return a model that can be run and written, and returns by name what `gauge.name_outputs` does."""

    def read_example(self, adapted: Any, example: Any) -> np.ndarray:
        """Return at least two images to export an adapted model with."""

    def write(self, adapted: Any, path: Path, format: str, images: np.ndarray) -> None:
        """Write an adapted model to a file of this format, for any number of images of this size."""

    def file_outputs(self, output: Any) -> list[tuple[str, Array]]:
        """Return the arrays of an output, with their paths, in the order that an exported file has them in."""


def backend_of(model: Any) -> Backend:
    """Return the backend whose framework the model's nearest ancestor class comes from.

    Read off the names of the classes' modules: no framework is imported to find out. The order of the ancestors settles
    what several could claim: under Keras' torch backend a Keras layer is a torch.nn.Module too, but further up.
    """
    packages = [ancestor.__module__.partition(".")[0] for ancestor in type(model).__mro__]
    if not any(package in _installed() for package in packages):
        _installed.cache_clear()  # one may have been installed since
    installed = _installed()
    for package in packages:
        if package in installed:
            try:
                return cast("Backend", installed[package].load())
            except ImportError as error:
                raise BackendImportError(
                    f"{type(model).__name__} belongs to the {package} backend, which cannot be imported: {error}. "
                    f"Remedy: {install(package)}."
                ) from error
    frameworks = [name for name in sorted(installed) if find_spec(name) is not None]
    if not frameworks:
        raise UnknownModelError(
            f"Expected a model of {' or '.join(sorted(installed)) or 'a framework'}; received {_name(model)}, and no "
            f"such framework is installed. Remedy: {install('torch')}, or [keras]."
        )
    raise UnknownModelError(f"Expected a model of {' or '.join(frameworks)}; received {_name(model)}.{_hint(model)}")


@functools.cache
def _installed() -> dict[str, EntryPoint]:
    """Return the backends that are installed. Read once: to look through all packages takes 10 ms, as a small model."""
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def read_adaptation(adapted: Any) -> Adaptation:
    """Return what makes this model an adapted one; raise where it is a plain one."""
    adaptation = backend_of(adapted).adaptation_of(adapted)
    if adaptation is None:
        raise NotAdaptedError(
            f"Expected a model that sita.adapt returned; received a plain {type(adapted).__name__}. "
            "Remedy: adapted = sita.adapt(model)."
        )
    return adaptation


def run_scores(model: Any, batch: np.ndarray) -> np.ndarray:
    """Return a model's scores for numpy images with their axes as it takes them."""
    backend = backend_of(model)
    adaptation = backend.adaptation_of(model)
    selector = None if adaptation is None else adaptation.output
    is_array, output = backend.ops.is_array, backend.run(model, batch)
    place = find_scores(output, selector, is_array, lambda a: len(a.shape) > 1 and a.shape[0] == len(batch))
    return backend.ops.to_numpy(flatten(output, is_array)[place][1])


def _name(model: Any) -> str:
    if isinstance(model, type):
        return f"the class {model.__qualname__}"
    return f"an object of type {type(model).__module__}.{type(model).__qualname__}"


def _hint(model: Any) -> str:
    if isinstance(model, type):
        return " Make an instance of it first."
    if isinstance(model, dict):
        return " Weights alone are not a model: build the model and load them first."
    return ""
