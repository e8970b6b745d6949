"""The Backend protocol, and which backend owns a model."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from .description import Description
from .errors import BackendImportError, UnknownModelError
from .inputs import Inputs
from .outputs import Selector
from .recipe import Recipe
from .selection import Layers
from .voting import Scores

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


@dataclass(frozen=True, eq=False)
class Written:
    """An exported file: what it takes (None: any number), and what it must answer.

    `batches` are images, in several numbers, and the adapted model's outputs on them in the file's order. Which of
    the outputs the scores are is `scores_place`; None where none is known to be.
    """

    input_shape: tuple[int | None, ...]
    batches: tuple[tuple[np.ndarray, list[np.ndarray]], ...]
    scores_place: int | None


class Backend(Protocol):
    """What a framework's adapter does. Everything else is the core's."""

    export_formats: tuple[str, ...]

    def adapt(self, model: Any, recipe: Recipe, settings: Settings) -> Any:
        """Return an adapted model that shares the weights of this one, which stays as it was."""

    def describe(self, adapted: Any) -> Description:
        """Return what was done to an adapted model."""

    def unwrap(self, adapted: Any) -> Any:
        """Return a plain model that shares the weights of the adapted one."""

    def observing(self, adapted: Any) -> AbstractContextManager[object]:
        """Make an adapted model tell of its votes while inside; gives the object that it tells them in the name of."""

    def cascade(self, model: Any, adapted: Any, threshold: float, scores: str | None) -> Any:
        """Return what runs the model, and the adapted one on the images whose entropy exceeds the threshold."""

    def scores_of(self, model: Any) -> Scores:
        """Return what a plain model's scores are, as `adapt` would read them."""

    def export(self, adapted: Any, path: Path, format: str, example: Any) -> Written:
        """Write an adapted model to a file of this format, for any number of images such as the example's."""

    def runner(self) -> Runner:
        """Return what runs this framework's models on numpy arrays."""


class Runner(Protocol):
    """Runs a framework's models on numpy arrays."""

    class_axis: int

    @property
    def label(self) -> str:
        """What a reader is told."""

    def arrange(self, name: str, model: Any, images: np.ndarray) -> np.ndarray:
        """Return images (N, h, w, channels) with their axes as the model takes them."""

    def run(self, model: Any, batch: np.ndarray) -> np.ndarray:
        """Return the model's scores, computed the way it would be run in earnest."""


def backend_of(model: Any) -> Backend:
    """Return the backend whose framework the model's nearest ancestor class comes from.

    Read off the names of the classes' modules: no framework is imported to find out. The order of the ancestors settles
    what several could claim: under Keras' torch backend a Keras layer is a torch.nn.Module too, but further up.
    """
    installed = {entry.name: entry for entry in entry_points(group=GROUP)}
    for ancestor in type(model).__mro__:
        package = ancestor.__module__.partition(".")[0]
        if package in installed:
            try:
                return cast("Backend", installed[package].load())
            except ImportError as error:
                raise BackendImportError(
                    f"{type(model).__name__} belongs to the {package} backend, which cannot be imported: {error}. "
                    f"Remedy: pip install 'sita-adapters[{package}]'."
                ) from error
    raise UnknownModelError(
        f"Expected a model of an installed backend ({', '.join(sorted(installed)) or 'none is installed'}); "
        f"received {_name(model)}.{_hint(model)}"
    )


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
