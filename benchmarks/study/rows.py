"""One forward pass per row, which several recipes share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import sita_adapters as sita
from sita_adapters import Recipe
from sita_adapters.backend import adaptation_of, backend_of
from sita_adapters.combining import CandidateMeasurement, confidence, mix_scores, mix_weights
from sita_adapters.inputs import ImageLayout
from sita_adapters.observe import Observation
from sita_adapters.ops import NUMPY
from sita_adapters.recipe import Task, resolve_recipe
from sita_adapters.views import FILTERS, View
from sita_adapters.voting import Scores, probabilities
from sita_workbench.models.loaded import LoadedModel

PREVIOUS = "previous auto"
"""The default before the weights went by confidence alone: u_s = d_0² · c_s, u_a = D² · c_a."""

_SOURCE_SHIFT = 0.05  # d_0

MIXES = {
    "auto": ("source", "rule"),
    "restore": ("source", *FILTERS),
    PREVIOUS: ("source", "rule"),
}
"""The rows that a recipe mixes. Every other recipe's answer is the row of its name."""

ROWS = {"source": 1, "bn": 1, "shift": 1, "calibrated": 1, "auto": 2, "restore": 3, PREVIOUS: 2}
"""How many rows a recipe runs per image."""


def calibrate(loaded: LoadedModel, images: np.ndarray) -> Recipe:
    """Return the recipe that `sita.calibrate` measures on clean images in bytes."""
    x = np.ascontiguousarray(loaded.arrange(loaded.encode(images)))
    return sita.calibrate(loaded.model, x, task=loaded.task, inputs=loaded.inputs, scores=loaded.scores)


def adapt_rows(loaded: LoadedModel, more: Mapping[str, Recipe]) -> dict[str, Any]:
    """Return a network adapted for each row of the cheap recipes, and with the recipes in `more`."""
    found = {name: loaded.adapt(name) for name in ("source", "bn", "shift")}
    rule = loaded.adapt(Recipe(priors=sita.RECIPES["auto"].prior_values[1], n_views=0))
    found |= dict.fromkeys(("rule", *FILTERS), rule)
    return found | {name: loaded.adapt(recipe) for name, recipe in more.items()}


def run_adapted(adapted: Any, x: np.ndarray) -> tuple[np.ndarray, Observation]:
    """Return the scores (N, …, classes) of an adapted model on encoded images, and what it observed."""
    backend = backend_of(adapted)
    with sita.observe(adapted) as seen:
        answer = backend.run(adapted, x, channels_last=True)
    return np.moveaxis(backend.ops.to_numpy(answer.scores), answer.layout.require_scores().class_axis, -1), seen


def run_rows(adapted: Mapping[str, Any], x: np.ndarray, task: Task) -> Ran:
    """Run every row on encoded images (N, h, w, channels); the rows named after a filter on filtered images."""
    scores, shifts = {}, {}
    for name, model in adapted.items():
        layout = ImageLayout(NUMPY, channel=-1, axes=(-3, -2), inputs=adaptation_of(model).settings.inputs)
        view = View(name, FILTERS.get(name, ()))
        scores[name], seen = run_adapted(model, view.apply(x, layout))
        if name != "source":
            shifts[name] = seen.shifts[:, 0]
    return Ran(scores, shifts, seen.layout.require_scores().kind, task)


@dataclass(frozen=True)
class Ran:
    """What the rows returned for N images: scores (N, …, classes), and D (N,) of all rows but the source."""

    scores: dict[str, np.ndarray]
    shifts: dict[str, np.ndarray]
    kind: Scores
    task: Task

    def probabilities(self, recipe: str) -> np.ndarray:
        """Return p (N, …, classes) of a recipe; for sigmoid scores, of each label."""
        names = MIXES.get(recipe, (recipe,))
        scores = self.scores[names[0]]
        if len(names) > 1:
            every = np.stack([self.scores[name] for name in names], axis=1)
            scores = mix_scores(every, self.weights(recipe), self.kind, -1, NUMPY)
        return probabilities(scores.astype(np.float64), self.kind, -1)

    def weights(self, recipe: str) -> np.ndarray:
        """Return the weight (N, P) of each row that a recipe mixes."""
        names = MIXES[recipe]
        confidences = np.stack([self.confidences(name) for name in names], axis=1)
        if recipe == PREVIOUS:
            shifts = self.shifts["rule"].astype(confidences.dtype)
            u = confidences * np.stack([np.full_like(shifts, _SOURCE_SHIFT), shifts], axis=1) ** 2
            return np.asarray(u / u.sum(axis=1, keepdims=True))
        measured = [None if name == "source" else _measurement(self.shifts[name]) for name in names]
        weight = resolve_recipe(recipe, {}, self.task).adapted_weight
        return np.asarray(mix_weights(measured, confidences, weight, NUMPY))

    def confidences(self, row: str) -> np.ndarray:
        """Return the confidence (N,) of a row, e^−H."""
        return np.asarray(confidence(self.scores[row][:, None], self.kind, -1, NUMPY)[:, 0])


def _measurement(shifts: np.ndarray) -> CandidateMeasurement:
    """Return what the mix needs to know of a row: its shift."""
    return CandidateMeasurement((), shifts, shifts[:, None], None)
