"""observe(): record what an adapted model measures and decides. It costs nothing outside an `observe` block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from .backend import backend_of
from .engine import Answer
from .errors import InputError, SitaError
from .ops import Ops, SymbolicError
from .outputs import OutputLayout
from .plan import Plan
from .recipe import Prior, prior_text
from .shift import Rule
from .state import thread

_INTEGERS = ("votes", "labels", "answers")
_ARRAYS = (
    *("entropies", "confidences", "kept", "candidate_priors", "weights", "shifts", "layer_priors", "layer_shifts"),
    *("source", *_INTEGERS),
)


class Observation:
    """What an adapted model measured and decided, in the order of its calls: N images with P candidates each.

    The trailing axes (…) are the pixels if the model predicts a label for every pixel, or the labels of sigmoid scores.

    Attributes:
        candidates: λ of each of the P candidates, or the rule that sets it.
        plan: The Plan of the latest call: its rows, views and candidates.
        layout: The layout of the output of the latest call.
        layers: Names of the layers, one for each of the L layer calls, in the order in which they ran.
        entropies: Entropy of each candidate, in nats: (N, P, …).
        kept: Whether each candidate is one of the most confident, which vote: (N, P, …).
        votes: Number of kept candidates with the same label as this candidate: (N, P, …).
        labels: Label of each candidate: (N, P, …).
        confidences: Probability that each candidate assigns to its label: (N, P, …).
        answers: Label of the answer: (N, …).
        candidate_priors: λ of each candidate; if a rule sets it, the mean over the layers: (N, P).
        weights: Weight of each candidate in a mix: (N, P). It is 1 for a row that supplies all outputs of its image.
        source: The source model's class scores, if λ = 1 is a candidate: (N, …), as the model returns them.
        shifts: D, the shift that each candidate measured over all layers: (N, P); NaN for λ = 1.
        layer_priors: λ of each candidate in each layer call, if a rule sets it: (N, P, L).
        layer_shifts: d, the shift that each candidate measured in each layer call: (N, P, L); NaN for λ = 1.
    """

    plan: Plan  # both are unknown before the first call
    layout: OutputLayout

    def __init__(self) -> None:
        self.candidates: tuple[Prior, ...] = ()
        self.layers: tuple[str, ...] = ()
        self._values: list[dict[str, np.ndarray]] = []

    def __getattr__(self, name: str) -> np.ndarray:
        if name not in (*_ARRAYS, "plan", "layout"):
            raise AttributeError(name)
        found = [values[name] for values in self._values if name in values]
        if not found or len(found) < len(self._values):
            raise SitaError(
                f"{name}: Nothing was observed, or not for this recipe or output. Try: call the adapted model itself "
                "in this block and thread; output= and scores= for class scores; a recipe that measures shift ('auto')."
            )
        if len({array.shape[1:] for array in found}) > 1:
            raise InputError(f"{name}: images of different sizes were observed. Try: observe each size separately.")
        return np.concatenate(found)

    def __len__(self) -> int:
        """Number of images observed."""
        return sum(len(values["candidate_priors"]) for values in self._values)

    def __repr__(self) -> str:
        return f"Observation of {len(self)} images with {len(self.candidates)} candidates each"

    @property
    def priors(self) -> np.ndarray:
        """λ of the most confident candidate: (N, …). A value near 1 means that the image is like those in training."""
        chosen = self.entropies.argmin(axis=1)
        return np.asarray(self.candidate_priors[np.arange(len(chosen)).reshape(-1, *[1] * (chosen.ndim - 1)), chosen])

    def summary(self) -> str:
        """Return the figures to monitor as text. Percentages are of images, or of pixels if each pixel gets a label."""
        labels, answers, first = self.labels, self.answers, self.entropies.argmin(axis=1)
        names = [prior_text(prior) for prior in self.candidates]
        means = [f": {mean:.3f} on average" for mean in self.candidate_priors.mean(axis=0)]
        rules = [isinstance(prior, Rule) for prior in self.candidates]
        priors = [name + rule * mean for name, rule, mean in zip(names, rules, means, strict=True)]
        shares = [f"{name}: {100 * (first == place).mean():.0f}%" for place, name in enumerate(names)]
        unanimous = (~self.kept | (labels == answers[:, None])).all(axis=1).mean()
        text = (
            f"images          {len(self)}\n"
            f"λ               {', '.join(priors)}\n"
            f"most confident  {', '.join(shares)}\n"
            f"entropy         {self.entropies.min(axis=1).mean():.3f} nats on average (of the most confident)\n"
            f"unanimous       {100 * unanimous:.1f}%"
        )
        if 1.0 not in self.candidates:
            return text
        changed = (labels[:, self.candidates.index(1.0)] != answers).mean()
        return f"{text}\nchanged         {100 * changed:.1f}% of labels differ from the source model's"

    def append(self, answer: Answer, ops: Ops) -> None:
        """Record one call."""
        diagnostics = answer.diagnostics
        assert diagnostics is not None  # the engine makes them for every observer
        try:
            values = {name: ops.to_numpy(array) for name, array in diagnostics.arrays.items()}
        except SymbolicError as error:
            raise SitaError("The model was observed during compilation or export. Try: call it uncompiled.") from error
        self.candidates, self.layers = diagnostics.candidates, diagnostics.layers
        assert answer.plan is not None
        self.plan, self.layout = answer.plan, answer.layout
        self._values.append(values | {name: values[name].astype(np.int64) for name in _INTEGERS if name in values})


@contextmanager
def observe(adapted: Any) -> Iterator[Observation]:
    """Record what an adapted model measures and decides inside a `with` block, in this thread.

    Args:
        adapted: A model that `adapt` returned. Inside the block, a Keras model runs uncompiled, because a graph has no
            values to record.

    Yields:
        An `Observation`. Every call of the model in the block adds to it.

    Raises:
        SitaError: The model is not adapted.

    Example:
        >>> with sita.observe(adapted) as observation:
        ...     adapted(images)
        >>> print(observation.summary())
    """
    with backend_of(adapted).observing(adapted) as key:
        observation = Observation()
        observer = key, observation
        thread.observers = (*thread.observers, observer)
        try:
            yield observation
        finally:
            thread.observers = tuple(other for other in thread.observers if other is not observer)
