"""observe(): record what an adapted model measures and decides. It costs nothing while nobody observes."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from .backend import backend_of
from .diagnostics import Diagnostics, global_observers, thread_observers
from .errors import InputError, SitaError
from .ops import Ops, SymbolicError
from .recipe import Prior, prior_text
from .shift import ByShift
from .voting import probabilities

_lock = threading.Lock()


class Observation:
    """What an adapted model measured and decided, in the order of its calls.

    There are N images with P candidates each. If a model answers for every pixel, arrays have the pixels' axes at their
    end, and images of one size are expected; labels with a sigmoid each have theirs.
    """

    def __init__(self) -> None:
        self._calls: list[Mapping[str, np.ndarray | None]] = []
        self._candidates: tuple[Prior, ...] | None = None
        self._layers: tuple[str, ...] = ()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Number of images observed."""
        return sum(len(call["priors"]) for call in list(self._calls))  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return f"Observation({len(self)} images)" if self._candidates is None else f"Observation({self.summary()!r})"

    @property
    def candidates(self) -> tuple[Prior, ...]:
        """λ of each of the P candidates, or the rule that sets it."""
        if self._candidates is None:
            raise SitaError(
                "Nothing was observed. Expected calls of the adapted model inside `with sita.observe(adapted)`, in the "
                "same thread and not of a compiled copy. Try: all_threads=True records every thread."
            )
        return self._candidates

    @property
    def entropies(self) -> np.ndarray:
        """Entropy of each candidate, in nats: (N, P, …)."""
        return self._all("entropies")

    @property
    def kept(self) -> np.ndarray:
        """Whether each candidate was among the most confident, which vote: (N, P, …)."""
        return self._all("kept")

    @property
    def votes(self) -> np.ndarray:
        """Number of kept candidates with the same label as each: (N, P, …)."""
        return self._all("votes")

    @property
    def labels(self) -> np.ndarray:
        """Label of each candidate: (N, P, …)."""
        return self._all("labels")

    @property
    def confidences(self) -> np.ndarray:
        """Probability that each candidate gave to its label: (N, P, …)."""
        return self._all("confidences")

    @property
    def answers(self) -> np.ndarray:
        """Label of the answer: (N, …)."""
        return self._all("answers")

    @property
    def priors(self) -> np.ndarray:
        """λ of the most confident candidate, "the chosen prior": (N, …); the mean over the layers if a rule sets it.

        Near 1, the image is like the training images.
        """
        priors, chosen = self._all("priors"), self.entropies.argmin(axis=1)
        return np.asarray(priors[np.arange(len(priors)).reshape(-1, *[1] * (chosen.ndim - 1)), chosen])

    @property
    def shifts(self) -> np.ndarray:
        """D, how far each candidate's statistics are from the source's over all layers: (N, P); NaN for λ = 1."""
        return self._all("shifts")

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the L layer calls that measured a shift, in the order in which they ran."""
        _ = self.candidates
        return self._layers

    @property
    def layer_priors(self) -> np.ndarray:
        """λ of each candidate in each layer call, if a rule sets it: (N, P, L)."""
        if not any(isinstance(prior, ByShift) for prior in self.candidates):
            raise SitaError(
                "layer_priors: no rule sets λ; it is the same in all layers (`priors`). Try: a recipe with "
                "priors=sita.ByShift(), such as 'auto'."
            )
        return self._all("layer_priors")

    @property
    def layer_shifts(self) -> np.ndarray:
        """d, the shift that each candidate measured in each layer call (see `ByShift`): (N, P, L); NaN for λ = 1."""
        return self._all("layer_shifts")

    def summary(self) -> Summary:
        """Return the figures to monitor. Print it for a text."""
        candidates, priors, entropies = self.candidates, self.priors, self.entropies
        first = entropies.argmin(axis=1)
        places = {prior: [place for place, other in enumerate(candidates) if other == prior] for prior in candidates}
        source = candidates.index(1.0) if 1.0 in candidates else None
        return Summary(
            images=len(self),
            mean_prior=float(priors.mean()),
            chosen={prior: float(np.isin(first, places[prior]).mean()) for prior in sorted(places, key=_least)},
            mean_entropy=float(entropies.min(axis=1).mean()),
            unanimous=float(np.where(self.kept, self.labels == self.answers[:, None], True).all(axis=1).mean()),
            changed=None if source is None else float((self.labels[:, source] != self.answers).mean()),
        )

    def _all(self, name: str) -> np.ndarray:
        _ = self.candidates
        parts = [part for call in list(self._calls) if (part := call[name]) is not None]
        if len(parts) < len(self._calls):
            raise SitaError(
                f"{name}: the model's output has no class scores, or the recipe measures no such thing. Try: "
                "sita.adapt(model, output=…, scores=…), which say where the scores are and what they are."
            )
        if len({part.shape[1:] for part in parts}) > 1:
            sizes = ", ".join(sorted({str(part.shape[1:]) for part in parts}))
            raise InputError(
                f"{name}: images of different sizes were observed ({sizes}), which one array cannot hold. "
                "Try: observe each size separately."
            )
        return np.concatenate(parts)

    def _append(self, diagnostics: Diagnostics, ops: Ops) -> None:
        values = _to_numpy(diagnostics, ops)
        layers = next((each.layers for each in diagnostics.measured if each is not None), ())
        with self._lock:
            if self._candidates not in (None, diagnostics.candidates):
                raise InputError(
                    f"Images with {len(diagnostics.candidates)} candidates came after some with "
                    f"{len(self._candidates or ())}: an image's shape decides its views. Try: observe each shape "
                    "separately."
                )
            self._candidates, self._layers = diagnostics.candidates, layers
            self._calls.append(values)


@dataclass(frozen=True)
class Summary:
    """How far images are from what the source model knows.

    Shares are of images, or of pixels if each gets a label.

    Attributes:
        images: Number of images.
        mean_prior: Mean λ of the most confident candidate.
        chosen: How often each candidate was the most confident.
        mean_entropy: Mean entropy of the most confident candidate, in nats.
        unanimous: Share on which all voting candidates had the label of the answer.
        changed: Share whose label is not the source model's; None if λ = 1 is not a candidate.
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
            f"entropy        {self.mean_entropy:.3f} nats on average, of the most confident candidate",
            f"unanimous      {100 * self.unanimous:.1f} %",
        ]
        if self.changed is not None:
            lines.append(f"changed        {100 * self.changed:.1f} % of labels differ from the source model's")
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class _Observer:
    """Records the calls of one adaptation."""

    key: object
    observation: Observation

    def append(self, diagnostics: Diagnostics, ops: Ops) -> None:
        try:
            self.observation._append(diagnostics, ops)
        except SymbolicError as error:
            raise refuse_compiled("The adapted model") from error


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
        observer = _Observer(key, Observation())
        with _lock:
            group.observers = (*group.observers, observer)
        try:
            yield observer.observation
        finally:
            with _lock:
                group.observers = tuple(other for other in group.observers if other is not observer)


def _to_numpy(diagnostics: Diagnostics, ops: Ops) -> dict[str, np.ndarray | None]:
    """Return the values of the diagnostics, candidates on axis 1 and without a class axis."""
    measured = diagnostics.measured
    shapes = {name: _stacked(measured, name, ops) for name in ("shift", "layer_shifts", "layer_priors")}
    values: dict[str, np.ndarray | None] = {
        "shifts": shapes["shift"],
        "layer_shifts": shapes["layer_shifts"],
        "layer_priors": None if shapes["layer_priors"] is None else np.nan_to_num(shapes["layer_priors"], nan=1.0),
    }
    vote, layout = diagnostics.vote, diagnostics.layout
    if vote is None or layout is None:
        count = next((len(ops.to_numpy(each.shift)) for each in measured if each is not None), 0)
        nothing = dict.fromkeys(("entropies", "kept", "votes", "labels", "confidences", "answers"))
        return {**values, **nothing, "priors": np.full((count, len(measured)), np.nan)}
    for name, kind in (("entropies", None), ("kept", bool), ("votes", np.int64), ("labels", np.int64)):
        array = ops.to_numpy(diagnostics.without_classes(getattr(vote, name), ops.xp))
        values[name] = array if kind is None else array.astype(kind)
    likely = probabilities(ops.to_numpy(ops.precise(diagnostics.scores)), layout.kind, layout.class_axis)
    answer = ops.to_numpy(diagnostics.answer)
    if layout.kind.startswith("sigmoid"):
        values["confidences"] = np.maximum(likely, 1 - likely)
        values["answers"] = (answer > (0.5 if layout.kind == "sigmoid_probabilities" else 0.0)).astype(np.int64)
    else:
        values["confidences"] = likely.max(axis=layout.class_axis)
        values["answers"] = answer.argmax(layout.class_axis)
    values["priors"] = ops.to_numpy(diagnostics.candidate_priors(ops, vote.entropies))
    return values


def _stacked(measured: list[Any], name: str, ops: Ops) -> np.ndarray | None:
    """Return what was measured for every candidate, (N, P, …); NaN for λ = 1."""
    arrays = [None if each is None or (array := getattr(each, name)) is None else ops.to_numpy(array) for each in measured]
    known = next((array for array in arrays if array is not None), None)
    if known is None:
        return None
    return np.stack([np.full_like(known, np.nan) if array is None else array for array in arrays], axis=1)


def _least(prior: Prior) -> float:
    return 1 - prior.strength if isinstance(prior, ByShift) else prior


def refuse_compiled(what: str) -> SitaError:
    """Return the error for observing a model that is compiled or exported."""
    return SitaError(
        f"{what} is observed while it is compiled or exported, when it has no values to record. "
        "Try: observe calls of the adapted model itself, uncompiled."
    )
