"""observe(): record what an adapted model measures and decides. It costs nothing while nobody observes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .backend import backend_of
from .diagnostics import Diagnostics, Measured, global_observers, thread_observers
from .errors import InputError, SitaError
from .ops import Ops, SymbolicError
from .recipe import Prior, prior_text
from .voting import probabilities

_lock = threading.Lock()

_ARRAYS = (
    *("entropies", "kept", "votes", "labels", "confidences", "answers"),
    *("candidate_priors", "shifts", "layer_priors", "layer_shifts"),
)


@dataclass(eq=False, repr=False)
class Observation:
    """What an adapted model measured and decided, in the order of its calls: N images with P candidates each.

    If a model answers for every pixel, arrays have the pixels' axes at their end; sigmoid labels have theirs.

    Attributes:
        entropies: Entropy of each candidate, in nats: (N, P, …).
        kept: Whether each candidate was among the most confident, which vote: (N, P, …).
        votes: Number of kept candidates with the same label as each: (N, P, …).
        labels: Label of each candidate: (N, P, …).
        confidences: Probability that each candidate gave to its label: (N, P, …).
        answers: Label of the answer: (N, …).
        candidate_priors: λ of each candidate, the mean over the layers if a rule sets it: (N, P).
        shifts: D, how far each candidate's statistics are from the source's, over all layers: (N, P); NaN for λ = 1.
        layer_priors: λ of each candidate in each of L layer calls, if a rule sets it: (N, P, L).
        layer_shifts: d, the shift that each candidate measured in each layer call: (N, P, L); NaN for λ = 1.
        layers: Names of the L layer calls, in the order in which they ran.
    """

    entropies: np.ndarray = field(init=False)
    kept: np.ndarray = field(init=False)
    votes: np.ndarray = field(init=False)
    labels: np.ndarray = field(init=False)
    confidences: np.ndarray = field(init=False)
    answers: np.ndarray = field(init=False)
    candidate_priors: np.ndarray = field(init=False)
    shifts: np.ndarray = field(init=False)
    layer_priors: np.ndarray = field(init=False)
    layer_shifts: np.ndarray = field(init=False)
    layers: tuple[str, ...] = ()
    _candidates: tuple[Prior, ...] = ()
    _calls: list[dict[str, np.ndarray | None]] = field(default_factory=list)

    def __getattr__(self, name: str) -> np.ndarray:
        if name not in _ARRAYS:
            raise AttributeError(name)
        _ = self.candidates
        found = [array for call in self._calls if (array := call[name]) is not None]
        if len(found) < len(self._calls):
            raise SitaError(
                f"{name}: the output has no known class scores, or the recipe measures no such thing (only a rule, as "
                "in 'auto', sets λ in each layer). Try: sita.adapt(model, output=…, scores=…)."
            )
        if len({array.shape[1:] for array in found}) > 1:
            raise InputError(f"{name}: images of different sizes were observed. Try: observe each size separately.")
        return np.concatenate(found)

    def __len__(self) -> int:
        """Number of images observed."""
        return sum(len(array) for call in self._calls if (array := call["candidate_priors"]) is not None)

    def __repr__(self) -> str:
        return f"Observation of {len(self)} images with {len(self._candidates)} candidates each"

    @property
    def candidates(self) -> tuple[Prior, ...]:
        """λ of each of the P candidates, or the rule that sets it."""
        if not self._calls:
            raise SitaError(
                "Nothing was observed. Expected calls of the adapted model inside `with sita.observe(adapted)`, in the "
                "same thread and not of a compiled copy. Try: all_threads=True records every thread."
            )
        return self._candidates

    @property
    def priors(self) -> np.ndarray:
        """λ of the most confident candidate, the chosen prior: (N, …). Near 1, an image is like the training images."""
        chosen = self.entropies.argmin(axis=1)
        return np.asarray(self.candidate_priors[np.arange(len(chosen)).reshape(-1, *[1] * (chosen.ndim - 1)), chosen])

    def summary(self) -> str:
        """Return the figures to monitor, as a text. Shares are of images, or of pixels if each gets a label."""
        candidates, labels, answers, first = self.candidates, self.labels, self.answers, self.entropies.argmin(axis=1)
        shares = [(prior, float((first == place).mean())) for place, prior in enumerate(candidates)]
        chosen = ", ".join(f"{prior_text(prior)}: {100 * share:.0f} %" for prior, share in shares)
        unanimous = np.where(self.kept, labels == answers[:, None], True).all(axis=1).mean()
        lines = [
            f"images         {len(self)}",
            f"chosen prior   {self.priors.mean():.3f} on average ({chosen})",
            f"entropy        {self.entropies.min(axis=1).mean():.3f} nats on average, of the most confident candidate",
            f"unanimous      {100 * unanimous:.1f} %",
        ]
        if 1.0 in candidates:
            changed = (labels[:, candidates.index(1.0)] != answers).mean()
            lines.append(f"changed        {100 * changed:.1f} % of labels differ from the source model's")
        return "\n".join(lines)

    def append(self, diagnostics: Diagnostics, ops: Ops) -> None:
        """Record one call."""
        try:
            ops.to_numpy(diagnostics.zeros)
        except SymbolicError as error:
            raise refuse_compiled("The adapted model") from error
        values = _to_numpy(diagnostics, ops)
        if self._calls and self._candidates != diagnostics.candidates:
            raise InputError("Images of another shape have other candidates. Try: observe each shape separately.")
        with _lock:
            self.layers = next((each.layers for each in diagnostics.measured if each is not None), ())
            self._candidates = diagnostics.candidates
            self._calls = [*self._calls, values]


@contextmanager
def observe(adapted: Any, *, all_threads: bool = False) -> Iterator[Observation]:
    """Record what an adapted model measures and decides inside a `with` block.

    Args:
        adapted: A model that `adapt` returned. A Keras model runs uncompiled inside the block: a compiled graph has no
            values to record.
        all_threads: Record the calls of every thread, not only of this one.

    Yields:
        The observation, which grows with every call.

    Example:
        >>> with sita.observe(adapted) as observation:
        ...     adapted(images)
        >>> print(observation.summary())
    """
    group: Any = global_observers if all_threads else thread_observers
    with backend_of(adapted).observing(adapted) as key:
        observer = key, Observation()
        with _lock:
            group.observers = (*group.observers, observer)
        try:
            yield observer[1]
        finally:
            with _lock:
                group.observers = tuple(other for other in group.observers if other is not observer)


def _to_numpy(diagnostics: Diagnostics, ops: Ops) -> dict[str, np.ndarray | None]:
    """Return the values of the diagnostics, candidates on axis 1 and without a class axis."""
    values: dict[str, np.ndarray | None] = dict.fromkeys(_ARRAYS)
    for name in ("shifts", "layer_shifts", "layer_priors"):
        values[name] = _stacked(diagnostics.measured, name, ops)
    if values["layer_priors"] is not None:
        values["layer_priors"] = np.nan_to_num(values["layer_priors"], nan=1.0)
    values["candidate_priors"] = ops.to_numpy(diagnostics.candidate_priors(ops))
    vote, layout = diagnostics.vote, diagnostics.layout
    if vote is None or layout is None:
        return values
    for name, kind in (("entropies", float), ("kept", bool), ("votes", np.int64), ("labels", np.int64)):
        values[name] = ops.to_numpy(diagnostics.without_classes(getattr(vote, name), ops.xp)).astype(kind)
    likely = probabilities(ops.to_numpy(ops.precise(diagnostics.scores)), layout.kind, layout.class_axis)
    answer = ops.to_numpy(diagnostics.answer)
    if layout.kind.startswith("sigmoid"):
        values["confidences"] = np.maximum(likely, 1 - likely)
        values["answers"] = (answer > (0.5 if layout.kind == "sigmoid_probabilities" else 0.0)).astype(np.int64)
    else:
        values["confidences"], values["answers"] = likely.max(layout.class_axis), answer.argmax(layout.class_axis)
    return values


def _stacked(measured: list[Measured | None], name: str, ops: Ops) -> np.ndarray | None:
    """Return what was measured for every candidate, (N, P, …); NaN for λ = 1."""
    arrays = [None if (array := getattr(each, name, None)) is None else ops.to_numpy(array) for each in measured]
    known = next((array for array in arrays if array is not None), None)
    if known is None:
        return None
    return np.stack([np.full_like(known, np.nan) if array is None else array for array in arrays], axis=1)


def refuse_compiled(what: str) -> SitaError:
    """Return the error for observing a model that is compiled or exported."""
    return SitaError(
        f"{what} is observed while it is compiled or exported, when it has no values to record. "
        "Try: observe calls of the adapted model itself, uncompiled."
    )
