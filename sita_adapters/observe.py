"""observe(): record what the candidates of an adapted model decide. It costs nothing while nobody observes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from .backend import backend_of
from .errors import InputError, NotObservedError, SitaError
from .ops import Array, Ops
from .plan import Plan
from .recipe import Prior, prior_text
from .shift import ByShift
from .voting import Scores, Verdict, near_ties, probabilities


@dataclass(frozen=True)
class _Vote:
    """One vote of N images, in numpy: candidates on axis 1, no class axis."""

    entropies: np.ndarray
    kept: np.ndarray
    votes: np.ndarray
    labels: np.ndarray
    confidences: np.ndarray
    answers: np.ndarray
    layer_priors: np.ndarray | None
    layer_shifts: np.ndarray | None


@dataclass(frozen=True)
class LayerPriors:
    """λ of N images' P candidates in L layers, (N, P, L), and the layers' names in the order in which they ran.

    `shifts` (N, P, L) is what λ was set by, where somebody observes.
    """

    names: tuple[str, ...]
    values: Array
    shifts: Array | None = None


class Seen:
    """The votes of the images that an adapted model was called on, in the order of the calls.

    P candidates decide on each of N images. Where a model answers for every pixel, each array has the pixels' axes at
    its end, and images of one size are expected; where it gives several labels with a sigmoid each, it has theirs.
    """

    def __init__(self) -> None:
        self._votes: list[_Vote] = []
        self._candidates: tuple[Prior, ...] | None = None
        self._layers: tuple[str, ...] = ()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """How many images were seen."""
        return sum(len(vote.entropies) for vote in list(self._votes))

    @property
    def candidates(self) -> tuple[Prior, ...]:
        """λ of each of the P candidates, or the rule that sets it."""
        if self._candidates is None:
            raise NotObservedError(
                "Nothing was observed yet. Expected calls of the adapted model inside `with sita.observe(adapted)`, in "
                "the same thread (all_threads=True records every thread), and not of a compiled copy of it."
            )
        return self._candidates

    @property
    def entropies(self) -> np.ndarray:
        """How uncertain each candidate was, in nats: (N, P, …)."""
        return self._all("entropies")

    @property
    def kept(self) -> np.ndarray:
        """Whether each candidate was among the most certain, which decide: (N, P, …)."""
        return self._all("kept")

    @property
    def votes(self) -> np.ndarray:
        """How many of the kept candidates said the same as each: (N, P, …)."""
        return self._all("votes")

    @property
    def labels(self) -> np.ndarray:
        """What each candidate said: (N, P, …)."""
        return self._all("labels")

    @property
    def confidences(self) -> np.ndarray:
        """The probability that each candidate gave to what it said: (N, P, …)."""
        return self._all("confidences")

    @property
    def answers(self) -> np.ndarray:
        """What was decided: (N, …)."""
        return self._all("answers")

    @property
    def priors(self) -> np.ndarray:
        """λ of the most certain candidate, «the chosen prior»: (N, …). Near 1, the image is like the source's.

        Where a rule sets it, the mean over the layers.
        """
        chosen = self.entropies.argmin(axis=1)
        if not self._layers:
            return np.asarray(np.asarray(self.candidates)[chosen])
        means = self.layer_priors.mean(axis=2)
        return np.asarray(means[np.arange(len(means)).reshape(-1, *[1] * (chosen.ndim - 1)), chosen])

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of the L layers that set λ by a rule, in the order in which they ran; empty without one."""
        _ = self.candidates
        return self._layers

    @property
    def layer_priors(self) -> np.ndarray:
        """λ of each candidate in each layer, where a rule sets it: (N, P, L)."""
        if not self.layers:
            raise NotObservedError(
                "layer_priors: no rule sets λ, so that it is the same in all layers (`priors`). Expected a recipe with "
                "priors=sita.ByShift(), as 'auto' has."
            )
        return self._all("layer_priors")

    @property
    def layer_shifts(self) -> np.ndarray:
        """How far each candidate's statistics are from the source's in each layer, where a rule asks: (N, P, L).

        The mean over channels of KL(N(μ, σ²) ‖ N(μ_s, σ_s²)), as in `ByShift`. NaN of a candidate with λ = 1, which
        needs none: with priors=ByShift(strength=1e-6) it is what the source model sees.
        """
        _ = self.layer_priors
        return self._all("layer_shifts")

    @property
    def near_ties(self) -> np.ndarray:
        """Whether rounding could have decided otherwise, as another framework or machine may: (N, …)."""
        return near_ties(self.entropies, self.kept, self.labels)

    def summary(self) -> Summary:
        """Return what to keep an eye on. Print it for a text."""
        candidates, priors = self.candidates, self.priors
        first = self.entropies.argmin(axis=1)
        places = {prior: [place for place, other in enumerate(candidates) if other == prior] for prior in candidates}
        chosen = {prior: float(np.isin(first, places[prior]).mean()) for prior in sorted(places, key=_least)}
        entropies, kept, labels, answers = self.entropies, self.kept, self.labels, self.answers
        agree = np.where(kept, labels == answers[:, None], True).all(axis=1)
        source = candidates.index(1.0) if 1.0 in candidates else None
        return Summary(
            images=len(self),
            mean_prior=float(priors.mean()),
            chosen=chosen,
            mean_entropy=float(entropies.min(axis=1).mean()),
            unanimous=float(agree.mean()),
            changed=None if source is None else float((labels[:, source] != answers).mean()),
        )

    def _all(self, name: str) -> np.ndarray:
        _ = self.candidates
        parts = [getattr(vote, name) for vote in list(self._votes)]
        if len({part.shape[1:] for part in parts}) > 1:
            sizes = ", ".join(sorted({str(part.shape[1:]) for part in parts}))
            raise InputError(
                f"{name}: images of different sizes were observed ({sizes}), which one array cannot hold. "
                "Remedy: observe each size by itself."
            )
        return np.concatenate(parts)

    def _append(self, vote: _Vote, candidates: tuple[Prior, ...], layers: tuple[str, ...]) -> None:
        with self._lock:
            if self._candidates not in (None, candidates):
                raise InputError(
                    f"Images with {len(candidates)} candidates came after some with {len(self._candidates or ())}: an "
                    "image's shape decides its views. Remedy: observe each shape by itself."
                )
            self._candidates, self._layers = candidates, layers
            self._votes.append(vote)


@dataclass(frozen=True)
class Summary:
    """A gauge of how far images are from what the source model knows.

    Shares are of images, or of their pixels where each gets a label. `chosen` is each prior's share; `mean_entropy`
    the most certain candidates', in nats; `unanimous` the share on which all kept candidates said what was answered;
    `changed` the share whose answer is not the source model's (None where λ = 1 is not a candidate).
    """

    images: int
    mean_prior: float
    chosen: dict[Prior, float]
    mean_entropy: float
    unanimous: float
    changed: float | None

    def __str__(self) -> str:
        chosen = ", ".join(f"{prior_text(prior)}: {100 * share:.0f} %" for prior, share in self.chosen.items())
        lines = [
            f"images         {self.images}",
            f"chosen prior   {self.mean_prior:.3f} on average ({chosen})",
            f"entropy        {self.mean_entropy:.3f} nats, of the most certain candidate, on average",
            f"unanimous      {100 * self.unanimous:.1f} %",
        ]
        if self.changed is not None:
            lines.append(f"changed        {100 * self.changed:.1f} % of answers are not the source model's")
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class _Observer:
    """Records the votes of one adaptation."""

    key: object
    seen: Seen


class _ThreadObservers(threading.local):
    """Those of this thread. A plain thread-local, which compilers can follow."""

    observers: tuple[_Observer, ...] = ()


class _GlobalObservers:
    """Those of all threads. Replaced as a whole, so that readers need no lock."""

    observers: tuple[_Observer, ...] = ()


_thread_observers, _global_observers = _ThreadObservers(), _GlobalObservers()
_lock = threading.Lock()


@contextmanager
def observe(adapted: Any, *, all_threads: bool = False) -> Iterator[Seen]:
    """Record what an adapted model decides while inside.

    Calls in this thread are recorded, so that each thread of a server observes its own; `all_threads` records those of
    every thread. A Keras model runs uncompiled meanwhile, since a compiled graph has no values to record.

    >>> with sita.observe(adapted) as seen:
    ...     adapted(images)
    >>> print(seen.summary())
    """
    group = _global_observers if all_threads else _thread_observers
    with backend_of(adapted).observing(adapted) as key:
        observer = _Observer(key, Seen())
        with _lock:
            group.observers = (*group.observers, observer)
        try:
            yield observer.seen
        finally:
            with _lock:
                group.observers = tuple(other for other in group.observers if other is not observer)


def _least(prior: Prior) -> float:
    return 1 - prior.strength if isinstance(prior, ByShift) else prior


def is_observed(key: object) -> bool:
    """Whether the votes of this adaptation are recorded in this thread."""
    return any(observer.key is key for observer in (*_thread_observers.observers, *_global_observers.observers))


def record_vote(
    key: object,
    candidates: Array,
    verdict: Verdict,
    plan: Plan,
    layer_priors: LayerPriors | None,
    *,
    class_axis: int,
    scores: Scores,
    ops: Ops,
) -> None:
    """Record a vote on the scores of candidates (B, P, …) for all who observe this adaptation."""
    each_label = scores.startswith("sigmoid")

    def plain(array: Array) -> np.ndarray:
        values = ops.to_numpy(array)
        return values if each_label else values.squeeze(class_axis)

    answer = ops.to_numpy(verdict.scores)
    if each_label:
        decided = (answer > (0.5 if scores == "sigmoid_probabilities" else 0.0)).astype(np.int64)
    else:
        decided = answer.argmax(class_axis)
    vote = _Vote(
        plain(verdict.entropies),
        plain(verdict.kept).astype(bool),
        plain(verdict.votes).astype(np.int64),
        plain(verdict.labels).astype(np.int64),
        _confidences(ops.to_numpy(candidates), scores, class_axis),
        decided,
        None if layer_priors is None else ops.to_numpy(layer_priors.values),
        None if layer_priors is None else ops.to_numpy(layer_priors.shifts),
    )
    layers = () if layer_priors is None else layer_priors.names
    for observer in (*_thread_observers.observers, *_global_observers.observers):
        if observer.key is key:
            observer.seen._append(vote, tuple(plan.priors[row] for row in plan.candidate_rows), layers)


def _confidences(candidates: np.ndarray, scores: Scores, class_axis: int) -> np.ndarray:
    """Return the probability of the likeliest class; of labels with a sigmoid each, that of what is said of each."""
    likely = probabilities(candidates, scores, class_axis)
    return np.asarray(np.maximum(likely, 1 - likely) if scores.startswith("sigmoid") else likely.max(axis=class_axis))


def refuse_compiled(what: str) -> SitaError:
    """Return the error for a model that is observed where votes have no values."""
    return NotObservedError(
        f"{what} is observed while it is compiled or exported, where votes are symbols without values. "
        "Remedy: observe calls of the adapted model itself, uncompiled."
    )
