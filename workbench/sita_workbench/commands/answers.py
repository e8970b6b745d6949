"""What a model says of an image, adapted and as it is."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sita_adapters.api import adapt, describe
from sita_adapters.backend import backend_of
from sita_adapters.errors import InputError, OutputError, SitaError
from sita_adapters.observation import observe
from sita_adapters.recipe import Recipe
from sita_adapters.voting import Scores, entropy, read_scores

from ..models.loading import Subject


@dataclass(frozen=True, eq=False)
class Said:
    """What one model said of one image: probabilities (classes,) or (h, w, classes), and what follows from them."""

    probabilities: np.ndarray
    labels: np.ndarray
    entropies: np.ndarray


@dataclass(frozen=True, eq=False)
class Answer:
    """An image, what the adapted and the source model said of it, and λ of the most certain candidate.

    An exported file has no source model to ask, and does not tell λ.
    """

    path: Path
    adapted: Said
    source: Said | None
    priors: np.ndarray | None

    @property
    def classes(self) -> int:
        """How many classes the model knows."""
        return int(self.adapted.probabilities.shape[-1])

    @property
    def changed(self) -> float:
        """Whether the label is another than the source's; of label maps, the share of pixels."""
        return 0.0 if self.source is None else float((self.adapted.labels != self.source.labels).mean())


class Asked:
    """The model, plain and adapted, ready to be asked."""

    def __init__(self, subject: Subject, recipe: str) -> None:
        self.subject = subject
        self._runner = backend_of(subject.model).runner()
        self._adapted = adapt(subject.model, recipe, task=subject.task, inputs=subject.inputs, scores=subject.scores)
        description = describe(self._adapted)
        self._recipe: Recipe = description.recipe
        self.recipe = str(description.recipe)
        self._scores = description.scores
        _check_kind(self._scores, subject)

    def answer(self, path: Path, pixels: np.ndarray) -> Answer:
        """Return what the two say of an image in bytes (h, w, 3)."""
        spec, model = self.subject.spec, self.subject.model
        batch = self._runner.arrange(spec, model, self.subject.encode(pixels[None]))
        votes = self._recipe.candidate_count > 1
        try:
            source = self._run(model, batch)
            with observe(self._adapted) if votes else nullcontext() as seen:
                adapted = self._run(self._adapted, batch)
        except SitaError:
            raise
        except Exception as error:
            raise InputError(
                f"{spec} failed on {path}, which it received as {batch.shape}: {error}. Remedy: --size of its images."
            ) from error
        priors = np.full(adapted.labels.shape, self._recipe.lambdas[0]) if seen is None else seen.priors[0]
        return Answer(path, adapted, source, np.asarray(priors))

    def _run(self, model: Any, batch: np.ndarray) -> Said:
        raw = np.moveaxis(self._runner.run(model, batch), self._runner.class_axis, -1)[0].astype(np.float64)
        return read_scores_of(raw, self._scores, self.subject)


def read_scores_of(raw: np.ndarray, scores: str, subject: Subject) -> Said:
    """Return what raw scores (…, classes) of one image say."""
    kind = _check_kind(scores, subject)
    expected = 3 if subject.task == "segmentation" else 1
    if raw.ndim != expected or raw.shape[-1] < 2:
        remedy = {1: "--task classification", 3: "--task segmentation"}.get(raw.ndim, "another model")
        raise OutputError(
            f"Expected scores of two classes or more for {'every pixel' if expected == 3 else 'the image'}; "
            f"{subject.spec} returned shape {raw.shape} for one. Remedy: {remedy}."
        )
    p = raw
    if kind == "logits":
        p = np.exp(raw - raw.max(axis=-1, keepdims=True))
        p /= p.sum(axis=-1, keepdims=True)
    return Said(p, raw.argmax(axis=-1), entropy(raw, scores=kind, class_axis=-1, xp=np)[..., 0])


def _check_kind(scores: str, subject: Subject) -> Scores:
    """Return what the scores are, unless each label is true or not by itself: then no label is the answer."""
    if scores.startswith("sigmoid"):
        raise OutputError(
            f"Expected a model of one label an image or pixel; {subject.spec} has labels with a sigmoid each."
        )
    return read_scores(scores, "logits")
