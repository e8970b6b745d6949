"""What one look at an image computes: both answers, and how the adapted one came about."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

import sita_adapters as sita
from sita_adapters.backend import adaptation_of
from sita_adapters.combining import SOURCE_SHIFT, mix_weights
from sita_adapters.inputs import ENCODINGS
from sita_adapters.observe import Observation
from sita_adapters.ops import NUMPY
from sita_adapters.plan import Plan
from sita_adapters.recipe import Recipe, Task, prior_text
from sita_adapters.shift import ByShift, Rule
from sita_adapters.views import ImageLayout, View, spatial_kind

from ..methods import Prediction
from ..models.loaded import LoadedModel
from ..predictor import FilePredictor, check_answer


@dataclass(frozen=True)
class Candidate:
    """A row that may answer: its λ and view, what it said of the image, how sure it was, and what that counted for.

    Of a segmentation model `label` is None, and the rest is the mean over the pixels. `share` is its part in the
    answer: a vote, or a weight.
    """

    prior: str
    number: float | None
    view: str
    label: int | None
    confidence: float
    entropy: float
    share: float

    @property
    def kept(self) -> bool:
        """Whether it had a part in the answer."""
        return self.share > 0


@dataclass(frozen=True, eq=False)
class Depth:
    """Layer by layer, in the order in which they ran: the shift that the source model sees, and what λ was set to.

    `clean_shifts` is of the image before it was corrupted; None where it was not. `adapted_shifts` is what the adapted
    row sees; None, as `priors` is, where no rule sets λ.
    """

    layers: tuple[str, ...]
    source_shifts: np.ndarray
    clean_shifts: np.ndarray | None = None
    adapted_shifts: np.ndarray | None = None
    priors: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Look:
    """All that is shown of an image. What an exported file does not put out is None or empty."""

    pixels: np.ndarray
    adapted: Prediction
    source: Prediction | None
    recipe: str
    rows: int
    seconds: float
    candidates: tuple[Candidate, ...] = ()
    combine: str = ""
    depth: Depth | None = None
    views: tuple[tuple[str, np.ndarray], ...] = ()


class Viewer(Protocol):
    """Looks at images in bytes (h, w, 3), at the size that the model takes."""

    loaded: LoadedModel
    recipes: tuple[str, ...]
    """The names to choose from; none where the recipe is in a file."""

    def look(self, pixels: np.ndarray, recipe: str, clean: np.ndarray | None = None) -> Look:
        """Return what is to be shown of an image; `clean` is the same before it was corrupted."""


def open_viewer(loaded: LoadedModel, recipes: dict[str, Recipe]) -> Viewer:
    """Return what looks at images with a live model under these recipes, or with an exported file under its own."""
    loaded.require_inputs()
    return ModelViewer(loaded, recipes) if loaded.file is None else FileViewer(loaded)


_GAUGE = Recipe(name="gauge", priors=ByShift(strength=1e-6), n_views=0)
"""The source model, but for a millionth: its layers say what shift they see."""


class ModelViewer:
    """A live model, adapted by each recipe when it is first asked for."""

    def __init__(self, loaded: LoadedModel, recipes: dict[str, Recipe]) -> None:
        self.loaded, self.recipes = loaded, tuple(recipes)
        self._known, self._adapted = {**recipes, _GAUGE.name: _GAUGE}, dict[str, Any]()
        self._lock = threading.Lock()

    def look(self, pixels: np.ndarray, recipe: str, clean: np.ndarray | None = None) -> Look:
        """Return what is to be shown of an image under this recipe; `clean` is the same before it was corrupted."""
        images = self.loaded.encode(np.stack([pixels] if clean is None else [pixels, clean]))
        image = images[:1]
        with self._lock:
            adapted, gauge = self._adapt(recipe, image), self._adapt(_GAUGE.name, image)
            start = time.perf_counter()
            with sita.observe(adapted) as observation:
                answer = Prediction(self.loaded.predict(adapted, image)[0])
            seconds = time.perf_counter() - start
            source = Prediction(self.loaded.predict(self.loaded.model, image)[0])
            with sita.observe(gauge) as source_observation:
                self.loaded.run(gauge, images)
        plan, _ = adaptation_of(adapted).plan_for(spatial_kind(pixels.shape[:2]))
        check_answer(Prediction(answer.probabilities[None]), self.loaded)
        opened = self._known[recipe]
        return Look(
            pixels,
            answer,
            source,
            str(opened),
            plan.rows,
            seconds,
            _candidates(observation, plan, opened),
            _combined(opened, self.loaded.task),
            _depth(observation, source_observation),
            _apply_views(pixels, plan),
        )

    def _adapt(self, recipe: str, image: np.ndarray) -> Any:
        if recipe not in self._adapted:
            adapted = self.loaded.adapt(self._known[recipe])
            self.loaded.run(adapted, image)  # the first call probes the model, and is not timed
            self._adapted[recipe] = adapted
        return self._adapted[recipe]


class FileViewer:
    """An exported file. It returns the source model's answer and λ if it was written with diagnostics."""

    recipes: tuple[str, ...] = ()

    def __init__(self, loaded: LoadedModel) -> None:
        assert loaded.file is not None
        self.loaded, self._predictor = loaded, FilePredictor(loaded, loaded.file)
        self._lock = threading.Lock()

    def look(self, pixels: np.ndarray, recipe: str, clean: np.ndarray | None = None) -> Look:
        """Return what is to be shown of an image; the recipe is the file's."""
        with self._lock:
            start = time.perf_counter()
            found = self._predictor.answer(pixels[None])
            seconds = time.perf_counter() - start
        priors = None if found.adapted.priors is None else found.adapted.priors[0]
        adapted = Prediction(found.adapted.probabilities[0], priors)
        source = None if found.source is None else Prediction(found.source.probabilities[0])
        return Look(pixels, adapted, source, self._predictor.recipe, int(found.rows[0]), seconds)


def _candidates(observation: Observation, plan: Plan, recipe: Recipe) -> tuple[Candidate, ...]:
    """Return the candidates in the order of their rows; of label maps, means over the pixels."""
    labels, kept = observation.labels[0], observation.kept[0]
    shares = kept / kept.sum(axis=0)
    each = observation.entropies[0], observation.confidences[0]
    means = [values.reshape(len(values), -1).mean(axis=1) for values in each]
    if recipe.combine == "mix":
        source_shift = SOURCE_SHIFT * np.sqrt(len(labels) - 1)
        shares = mix_weights(np.nan_to_num(observation.shifts[:1], nan=source_shift), np.exp(-means[0][None]), np)[0]
    means.append(shares.reshape(len(shares), -1).mean(axis=1))
    return tuple(
        Candidate(
            prior=prior_text(prior),
            number=None if isinstance(prior, Rule) else prior,
            view=plan.views[plan.view_of_row[row]].name,
            label=int(labels[place]) if labels.ndim == 1 else None,
            confidence=float(means[1][place]),
            entropy=float(means[0][place]),
            share=float(means[2][place]),
        )
        for place, (row, prior) in enumerate(zip(plan.candidates, observation.candidates, strict=True))
    )


def _combined(recipe: Recipe, task: Task) -> str:
    """Return what makes one answer of the candidates, in words."""
    if recipe.candidate_count == 1:
        return ""
    if recipe.combine == "vote":
        pixels = " at every pixel" if task == "segmentation" else ""
        return f"the {recipe.effective_top_k} most confident vote{pixels}"
    if recipe.combine == "mix":
        return "their outputs are mixed by the measured shift and their confidence"
    return "their probabilities are averaged"


def _depth(observation: Observation, gauge: Observation) -> Depth:
    """Return what the layers measured; `gauge` observed the image and, if there is one, the clean one."""
    source, *clean = gauge.layer_shifts[:, 0]
    found = Depth(gauge.layers, source, clean[0] if clean else None)
    rules = [place for place, prior in enumerate(observation.candidates) if isinstance(prior, Rule)]
    if not rules:
        return found
    rule = rules[0]
    return replace(found, adapted_shifts=observation.layer_shifts[0, rule], priors=observation.layer_priors[0, rule])


def _apply_views(pixels: np.ndarray, plan: Plan) -> tuple[tuple[str, np.ndarray], ...]:
    """Return the augmented views of an image in bytes, by name."""
    layout = ImageLayout(NUMPY, spatial_kind(pixels.shape[:2]), -1, (-3, -2), ENCODINGS["unit"])

    def apply(view: View) -> np.ndarray:
        seen = view.apply(pixels[None] / np.float32(255), layout)[0]
        return np.asarray(np.round(255 * np.clip(seen, 0, 1)).astype(np.uint8))

    return tuple((view.name, apply(view)) for view in plan.views[1:])
