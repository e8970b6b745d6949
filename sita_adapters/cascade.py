"""cascade(): adapt only what the source model is unsure of."""

from __future__ import annotations

import threading
from typing import Any

from .backend import backend_of
from .errors import AlreadyAdaptedError, NotAdaptedError, RecipeError


class Tally:
    """How many images a cascade was called on, and how many of them went on to the adapted model. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Begin to count again."""
        with self._lock:
            self.images = self.adapted = 0

    def add(self, images: int, adapted: int) -> None:
        """Count a call."""
        with self._lock:
            self.images += images
            self.adapted += adapted

    @property
    def share(self) -> float:
        """The part of the images that went on; 0 before the first."""
        return self.adapted / self.images if self.images else 0.0

    def __str__(self) -> str:
        return f"{self.adapted} of {self.images} images adapted ({100 * self.share:.1f} %)"

    def __getstate__(self) -> dict[str, int]:
        return {"images": self.images, "adapted": self.adapted}

    def __setstate__(self, state: dict[str, int]) -> None:
        self.__init__()  # type: ignore[misc]
        self.add(**state)


def cascade(model: Any, adapted: Any, *, entropy: float, scores: str | None = None) -> Any:
    """Return what runs the source model first, and the adapted one on the images that it is unsure of.

    - `entropy`: in nats; images above it go on. Where a model answers for every pixel, the mean over them counts.
    - `scores`: what the source model puts out; None: what the adapted one does.

    It is called as the model (Keras: `cascade(x)`, `predict` and `predict_on_batch`), and its `tally` says how many
    images went on. It reads values to decide, so it runs as it is and cannot be compiled or exported as one graph.

    >>> fast = sita.cascade(model, sita.adapt(model), entropy=0.1)
    >>> fast(images), fast.tally
    """
    if isinstance(entropy, bool) or not isinstance(entropy, int | float) or not entropy >= 0:
        raise RecipeError(f"entropy: expected a number of nats of at least 0; received {entropy!r}.")
    backend = backend_of(adapted)
    backend.describe(adapted)
    try:
        backend_of(model).describe(model)
    except NotAdaptedError:
        return backend.cascade(model, adapted, float(entropy), scores)
    raise AlreadyAdaptedError(
        "model: expected the plain source model, to run first; received an adapted one. Remedy: "
        "cascade(model, sita.adapt(model), entropy=…)."
    )
