"""One forward pass per prior, whose rows several recipes share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import sita_adapters as sita
from sita_adapters import Recipe
from sita_adapters.backend import backend_of
from sita_adapters.combining import SOURCE_SHIFT, confidence, mix_scores, mix_weights
from sita_adapters.observe import Observation
from sita_adapters.ops import NUMPY
from sita_adapters.recipe import Prior
from sita_adapters.voting import Scores, probabilities
from sita_workbench.models.loaded import LoadedModel

MIXES = {
    "auto": ("source", "rule"),
    "auto3": ("source", "rule", "third"),
    "calibrated, mixed": ("source", "calibrated"),
}
"""The rows that a recipe mixes. Every other recipe's answer is the row of its name."""


def one_row(prior: Prior) -> Recipe:
    """Return the recipe of a single row."""
    return Recipe(priors=prior, n_views=0)


def adapt_rows(loaded: LoadedModel, more: Mapping[str, Recipe]) -> dict[str, Any]:
    """Return a network adapted once for each row of the cheap recipes, and with the recipes in `more`."""
    source, rule, third = sita.RECIPES["auto3"].prior_values
    recipes = {"source": one_row(source), "rule": one_row(rule), "third": one_row(third)}
    recipes |= {name: one_row(sita.RECIPES[name].prior_values[0]) for name in ("bn", "shift")}
    return {name: loaded.adapt(recipe) for name, recipe in {**recipes, **more}.items()}


def run_adapted(adapted: Any, x: np.ndarray) -> tuple[np.ndarray, Observation]:
    """Return the scores (N, …, classes) of an adapted model on encoded images, and what it observed."""
    backend = backend_of(adapted)
    with sita.observe(adapted) as seen:
        answer = backend.run(adapted, x, channels_last=True)
    return np.moveaxis(backend.ops.to_numpy(answer.scores), answer.layout.require_scores().class_axis, -1), seen


def run_rows(adapted: Mapping[str, Any], x: np.ndarray) -> Ran:
    """Run every row on encoded images."""
    scores, shifts = {}, {}
    for name, model in adapted.items():
        scores[name], seen = run_adapted(model, x)
        shifts[name] = np.full(len(x), SOURCE_SHIFT) if name == "source" else seen.shifts[:, 0]
    return Ran(scores, shifts, seen.layout.require_scores().kind)


def measure_clean_shifts(loaded: LoadedModel, images: np.ndarray) -> dict[str, float]:
    """Return the mean shift that every layer measures on clean images in bytes, as `sita.calibrate` does."""
    measuring = loaded.adapt(one_row(sita.ByShift(strength=1e-9)))
    every = [run_adapted(measuring, loaded.encode(image[None]))[1] for image in images]
    means = np.mean([seen.layer_shifts[0, 0] for seen in every], axis=0)
    return dict(zip(every[0].layers, means.tolist(), strict=True))


@dataclass(frozen=True)
class Ran:
    """What the rows returned for N images: scores (N, …, classes) and D (N,), of the source the constant d_0."""

    scores: dict[str, np.ndarray]
    shifts: dict[str, np.ndarray]
    kind: Scores

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
        shifts = np.stack([self.shifts[name] for name in names], axis=1)
        shifts[:, 0] *= np.sqrt(len(names) - 1)
        return mix_weights(shifts, np.stack([self.confidences(name) for name in names], axis=1), NUMPY)

    def confidences(self, row: str) -> np.ndarray:
        """Return the confidence (N,) of a row, e^−H."""
        return confidence(self.scores[row][:, None], self.kind, -1, NUMPY)[:, 0]
