"""The values that the page shows for one image: both answers, and how the adapted model reached its own."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import sita_adapters as sita
from sita_adapters.inputs import ENCODINGS, ImageLayout
from sita_adapters.observe import Observation
from sita_adapters.ops import NUMPY
from sita_adapters.plan import Plan
from sita_adapters.recipe import Recipe
from sita_adapters.shift import ByShift, Rule

from ..methods import Prediction
from ..models.loaded import LoadedModel
from ..predictor import check_answer


@dataclass(frozen=True)
class Candidate:
    """A row that may answer: its λ, view, label, confidence and entropy, and its share in the answer.

    For a segmentation model, `label` is None, and the other values are means over the pixels.
    """

    prior: str
    view: str
    label: int | None
    confidence: float
    entropy: float
    share: float


@dataclass(frozen=True, eq=False)
class Look:
    """All values that the page shows for an image.

    `shifts` holds one shift per layer, in the order in which the `layers` ran: in the "source" model, in the "adapted"
    row if a rule sets λ, and for the "clean" image if this one is corrupted. `priors` is None unless a rule sets λ.
    """

    pixels: np.ndarray
    source: Prediction
    adapted: Prediction
    recipe: Recipe
    rows: int
    seconds: float
    candidates: tuple[Candidate, ...]
    layers: tuple[str, ...]
    shifts: Mapping[str, np.ndarray]
    priors: np.ndarray | None
    views: Mapping[str, np.ndarray]


_MEASURING = Recipe(name="measuring", priors=ByShift(strength=1e-6), n_views=0)
"""The source model, except for a millionth: its layers report the shift that they see."""


class Viewer:
    """Looks at images in bytes (h, w, 3), at the size that the model takes. Each recipe is adapted on first use."""

    def __init__(self, loaded: LoadedModel, recipes: Mapping[str, Recipe]) -> None:
        loaded.require_inputs()
        self.loaded, self.recipes = loaded, recipes
        self._adapted: dict[str | None, Any] = {}

    def look(self, pixels: np.ndarray, recipe: str, clean: np.ndarray | None = None) -> Look:
        """Return the values to show for an image under this recipe; `clean` is the image before corruption."""
        loaded = self.loaded
        images = loaded.encode(np.stack([pixels] if clean is None else [pixels, clean]))
        image = images[:1]
        adapted, measuring = self._adapt(recipe, image), self._adapt(None, image)
        start = time.perf_counter()
        with sita.observe(adapted) as observation:
            answer = loaded.predict(adapted, image)
        seconds = time.perf_counter() - start
        check_answer(Prediction(answer), loaded)
        with sita.observe(measuring) as measured:
            loaded.run(measuring, images)
        shifts, priors = dict(zip(("source", "clean"), measured.layer_shifts[:, 0], strict=False)), None
        rules = [index for index, prior in enumerate(observation.candidates) if isinstance(prior, Rule)]
        if rules:
            shifts["adapted"] = observation.layer_shifts[0, rules[0]]
            priors = observation.layer_priors[0, rules[0]]
        plan = observation.plan
        return Look(
            pixels,
            source=Prediction(loaded.predict(loaded.model, image)[0]),
            adapted=Prediction(answer[0]),
            recipe=self.recipes[recipe],
            rows=plan.rows,
            seconds=seconds,
            candidates=_candidates(observation, plan, self.recipes[recipe]),
            layers=measured.layers,
            shifts=shifts,
            priors=priors,
            views={} if self.recipes[recipe].resample else _apply_views(pixels, plan),  # which are not the Plan's
        )

    def _adapt(self, recipe: str | None, image: np.ndarray) -> Any:
        """Return the model under one of the recipes; None: under the one that measures the source model's shift."""
        if recipe not in self._adapted:
            adapted = self.loaded.adapt(_MEASURING if recipe is None else self.recipes[recipe])
            self.loaded.run(adapted, image)  # the first call probes the model, and is not timed
            self._adapted[recipe] = adapted
        return self._adapted[recipe]


def _candidates(observation: Observation, plan: Plan, recipe: Recipe) -> tuple[Candidate, ...]:
    """Return the candidates in the order of their rows; of label maps, means over the pixels."""
    labels, kept = observation.labels[0], observation.kept[0]
    entropies, confidences, shares = (
        values.reshape(len(values), -1).mean(axis=1)
        for values in (observation.entropies[0], observation.confidences[0], kept / kept.sum(axis=0))
    )
    if recipe.combine == "mix":
        shares = observation.weights[0]
    return tuple(
        Candidate(
            prior="by shift" if isinstance(prior, Rule) else "1 (source)" if prior == 1 else f"{prior:.3g}",
            view="drawn from the image"
            if recipe.resample and plan.view_of_row[row]
            else plan.views[plan.view_of_row[row]].name,
            label=int(labels[index]) if labels.ndim == 1 else None,
            confidence=float(confidences[index]),
            entropy=float(entropies[index]),
            share=float(shares[index]),
        )
        for index, (row, prior) in enumerate(zip(plan.candidates, observation.candidates, strict=True))
    )


def _apply_views(pixels: np.ndarray, plan: Plan) -> dict[str, np.ndarray]:
    """Return the augmented views of an image that ran, in bytes, by name."""
    layout = ImageLayout(NUMPY, -1, (-3, -2), ENCODINGS["unit"])
    views = [plan.views[index] for index in sorted({*plan.view_of_row} - {0})]
    seen = {view.name: view.apply(pixels[None] / np.float32(255), layout)[0] for view in views}
    return {name: np.round(255 * np.clip(values, 0, 1)).astype(np.uint8) for name, values in seen.items()}
