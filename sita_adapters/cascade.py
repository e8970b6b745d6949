"""cascade(): adapt only what the source model is unsure of."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .backend import backend_of, read_adaptation
from .errors import AlreadyAdaptedError, OutputError, RecipeError
from .ops import Array, Ops
from .outputs import Selector, find_scores, flatten, rebuild
from .voting import Scores, entropy, read_scores


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


@dataclass
class CascadeRule:
    """Which images go on to the adapted model: those whose entropy exceeds a threshold, in nats."""

    threshold: float
    scores: Scores
    output: Selector
    tally: Tally = field(default_factory=Tally)

    def apply(self, output: Any, batch: list[Array], run_adapted: Callable[[list[Array]], Any], ops: Ops) -> Any:
        """Return the source model's output on a batch, in which unsure images have the adapted model's answer."""
        count = batch[0].shape[0]
        arrays = [array for _, array in flatten(output, ops.is_array)]
        scores = arrays[self._scores_place(output, count, ops)]
        unsure = np.flatnonzero(self._entropies(scores, ops) > self.threshold)
        self.tally.add(count, len(unsure))
        if not len(unsure):
            return output
        adapted = flatten(run_adapted([ops.take_entries(array, unsure) for array in batch]), ops.is_array)
        merged = [
            ops.put_entries(array, unsure, new) if _has_size(array, count) and _has_size(new, len(unsure)) else array
            for array, (_, new) in zip(arrays, adapted, strict=True)
        ]
        return rebuild(output, iter(merged), ops.is_array)

    def _scores_place(self, output: Any, count: int, ops: Ops) -> int:
        def eligible(array: Array) -> bool:
            classes = self.scores.startswith("sigmoid") or (len(array.shape) > 1 and array.shape[ops.class_axis] > 1)
            return _has_size(array, count) and classes and ops.is_float(array)

        place = find_scores(output, self.output, ops.is_array, eligible)
        array = flatten(output, ops.is_array)[place][1]
        if not eligible(array):
            raise OutputError(
                f"Expected scores {ops.scores_layout} of two classes or more for each of {count} images; received "
                f"shape {tuple(array.shape)}. Remedy: say where they are, with adapt(…, output=…), or that each label "
                "is true or not by itself, with adapt(…, scores='sigmoid')."
            )
        return place

    def _entropies(self, scores: Array, ops: Ops) -> np.ndarray:
        """Return each image's entropy, the mean over its pixels or labels."""
        class_axis = ops.class_axis - (len(scores.shape) if ops.class_axis > 0 else 0)
        found = ops.to_numpy(entropy(ops.precise(scores), scores=self.scores, class_axis=class_axis, xp=ops.xp))
        return np.asarray(found.reshape(len(found), -1).mean(axis=1))

    def __str__(self) -> str:
        return f"entropy > {self.threshold:g} nats; {self.tally}"


def _has_size(array: Array, size: int) -> bool:
    return len(array.shape) > 0 and array.shape[0] == size


def cascade(model: Any, adapted: Any, *, entropy: float, scores: str | None = None) -> Any:
    """Return what runs the source model first, and the adapted one on the images that it is unsure of.

    - `entropy`: in nats; images above it go on. Where a model answers for every pixel, the mean over them counts.
    - `scores`: what the source model puts out; None: what the adapted one does.

    It is called as the model (Keras: `cascade(x)`, `predict` and `predict_on_batch`), and its `tally` says how many
    images went on. It reads values to decide, so it cannot be compiled or exported as one graph.

    >>> fast = sita.cascade(model, sita.adapt(model), entropy=0.1)
    >>> fast(images), fast.tally
    """
    if isinstance(entropy, bool) or not isinstance(entropy, int | float) or not entropy >= 0:
        raise RecipeError(f"entropy: expected a number of nats of at least 0; received {entropy!r}.")
    adaptation = read_adaptation(adapted)
    if backend_of(model).adaptation_of(model) is not None:
        raise AlreadyAdaptedError(
            "model: expected the plain source model, to run first; received an adapted one. Remedy: "
            "cascade(model, sita.adapt(model), entropy=…)."
        )
    rule = CascadeRule(float(entropy), read_scores(scores, adaptation.scores), adaptation.output)
    return backend_of(adapted).cascade(model, adapted, rule)
