"""The Backend protocol, and the choice of the backend for a model."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from .engine import Answer
from .errors import BackendImportError, InputError, ModelError, expect_integer, install
from .ops import Ops
from .outputs import ScoresLayout
from .recipe import Recipe
from .selection import Layers
from .state import Adaptation, Settings

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "sita_adapters.backends"
"""The entry-point group. An entry's name is the package that the backend's models inherit their classes from."""


class Backend(Protocol):
    """The operations that each framework implements."""

    ops: Ops
    label: str  # the framework's name, and for Keras its own backend
    export_formats: tuple[str, ...]

    def adapt(self, model: Any, recipe: Recipe, settings: Settings, layers: Layers, example: Any) -> Any:
        """Return an adapted clone that shares the model's weights. The model is not modified."""

    def unwrap(self, adapted: Any) -> Any:
        """Return a plain clone of an adapted model that shares its weights."""

    def adaptation_of(self, model: Any) -> Adaptation | None:
        """Return the Adaptation of an adapted model; None for a plain one."""

    def observing(self, adapted: Any) -> AbstractContextManager[object]:
        """Return a context in which calls of an adapted model have concrete values; it yields the Adaptation."""

    def call(self, model: Any, images: np.ndarray, *, channels_last: bool = False) -> Any:
        """Return any model's output for numpy images in its own layout, or with the channels last."""

    def run(self, adapted: Any, images: np.ndarray, *, channels_last: bool = False) -> Answer:
        """Return an adapted model's Answer for such images. The framework may compile the call."""

    def write(self, adapted: Any, path: Path, format: str, example: Any, diagnostics: bool) -> tuple[int | None, ...]:
        """Write an adapted model to a file for any number of images; return the shape of its input."""


def backend_of(model: Any) -> Backend:
    """Return the backend of the first class in the model's inheritance order that belongs to a framework.

    It reads the names of the classes' modules and imports no framework. The order matters: under Keras' torch backend,
    a Keras layer is also a torch.nn.Module, but its Keras classes come first.
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
                    f"Try: {install(package)}."
                ) from error
    frameworks = [name for name in sorted(installed) if find_spec(name) is not None]
    received, hint = f"an object of type {type(model).__qualname__}", "build the model, and load weights into it, first"
    if isinstance(model, type):
        received, hint = f"the class {model.__name__}", "make an instance of it"
    if not frameworks:
        received, hint = f"{received}, and no such framework is installed", f"{install('torch')}, or [keras]"
    raise ModelError(f"Expected a {' or '.join(frameworks or installed)} model; received {received}. Try: {hint}.")


@functools.cache
def _installed() -> dict[str, EntryPoint]:
    """Return the installed backends. Cached, because the search takes 10 ms, as long as a call of a small model."""
    from importlib.metadata import entry_points  # here, because importing it takes as long as the whole library

    return {entry.name: entry for entry in entry_points(group=GROUP)}


def adaptation_of(adapted: Any) -> Adaptation:
    """Return the Adaptation of an adapted model; raise a ModelError if the model is plain."""
    adaptation = backend_of(adapted).adaptation_of(adapted)
    if adaptation is None:
        raise ModelError(
            f"Expected a model that sita.adapt returned; received a plain {type(adapted).__name__}. "
            "Try: adapted = sita.adapt(model)."
        )
    return adaptation


def run_batches(
    adapted: Any, images: np.ndarray, batch_size: Any, *, channels_last: bool = False
) -> Iterator[tuple[np.ndarray, ScoresLayout]]:
    """Run an adapted model on numpy images; yield each batch's scores, with the images first, and their layout."""
    backend, size = backend_of(adapted), expect_integer("batch_size", batch_size, 1, InputError)
    for start in range(0, len(images), size):
        answer = backend.run(adapted, images[start : start + size], channels_last=channels_last)
        yield backend.ops.to_numpy(answer.scores), answer.layout.require_scores()
