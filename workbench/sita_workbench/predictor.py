"""A model that answers for batches of images: a live one, adapted, or an exported file.

Both return the scores, λ, and the source model's scores if λ = 1 is a candidate, in one run. The commands treat them
alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

import sita_adapters as sita
from sita_adapters.backend import adaptation_of
from sita_adapters.errors import InputError, OutputError, SitaError
from sita_adapters.recipe import DEFAULT, Recipe
from sita_adapters.voting import Scores, probabilities

from .exported.runtimes import OnnxFile, first_line
from .methods import Prediction, open_recipe
from .models.loaded import LoadedModel


class NoAnswerError(InputError):
    """The model returned NaN for an image."""


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions for N images: p (N, …, classes) and λ (N, …) of the adapted model, p of the source model.

    - `adapted.priors` and `source` are None if an exported file returns neither.
    - `rows`: how many rows ran for each image, (N,); 0 if a file does not store it.
    """

    adapted: Prediction
    source: Prediction | None
    rows: np.ndarray


class Predictor(Protocol):
    """Answers for images (N, h, w, 3) in uint8, all of one size. A square image costs `rows`, if that is known."""

    loaded: LoadedModel
    recipe: str
    rows: int

    @property
    def description(self) -> str | None:
        """The live model in words."""

    def answer(self, pixels: np.ndarray) -> Predictions:
        """Return an answer for every image, which does not depend on the others."""


def open_predictor(loaded: LoadedModel, recipe: Recipe | str | None = None, *, with_source: bool = True) -> Predictor:
    """Return the predictor for a loaded model.

    - `recipe`: a recipe, its name or its file, for a live model. An exported file contains its recipe.
    - `with_source`: also run the source model if λ = 1 is not a candidate.
    """
    loaded.require_inputs()
    if loaded.file is None:
        return ModelPredictor(loaded, recipe or DEFAULT, with_source=with_source)
    if recipe is not None:
        raise InputError(
            f"--recipe: {loaded.spec} contains the recipe that it was exported with; received {str(recipe)!r}. "
            "Try: omit --recipe, or export the model again (sita export --recipe)."
        )
    return FilePredictor(loaded, loaded.file)


class ModelPredictor:
    """A live model, source and adapted."""

    def __init__(self, loaded: LoadedModel, recipe: Recipe | str, *, with_source: bool = True) -> None:
        opened = recipe if isinstance(recipe, Recipe) else open_recipe(recipe, loaded.task)
        self.loaded, self.recipe = loaded, str(opened)
        self._adapted = loaded.adapt(opened)
        self._adaptation = adaptation_of(self._adapted)
        # With one candidate and a fixed λ, there are no diagnostics to compute.
        self._prior = None if opened.candidate_count > 1 or opened.rule else opened.prior_values[0]
        # Of the ensemble every candidate is the source model, each on a view; the first is on the image itself.
        self._runs_source = with_source and not opened.has_source
        self.rows = sita.describe(self._adapted).rows + self._runs_source

    @property
    def description(self) -> str | None:
        """What `sita.describe` says now: after the first answer, also what the probe established."""
        return str(sita.describe(self._adapted))

    def answer(self, pixels: np.ndarray) -> Predictions:
        """Return an answer for every image."""
        images = self.loaded.encode(pixels)
        try:
            found = self._adapt(images)
            if self._runs_source:
                source = Prediction(self.loaded.predict(self.loaded.model, images))
                found = replace(found, source=source, rows=1 + found.rows)
        except SitaError:
            raise
        except Exception as error:
            raise InputError(
                f"{self.loaded.spec} failed on an image of {pixels.shape[2]} × {pixels.shape[1]}: {error}. "
                "Try: --size with the size of its images."
            ) from error
        check_answer(found.adapted, self.loaded)
        return found

    def _adapt(self, images: np.ndarray) -> Predictions:
        """Adapt to every image; the source model's answer is there if it is among the candidates."""
        if self._prior is not None:
            answer = Prediction(self.loaded.predict(self._adapted, images))
            priors = np.full(answer.labels.shape, self._prior)
            rows = np.full(len(images), self._adaptation.plan_of(images.shape[1:3]).rows)
            return Predictions(Prediction(answer.probabilities, priors), answer if self._prior == 1.0 else None, rows)
        with sita.observe(self._adapted) as seen:
            p = self.loaded.predict(self._adapted, images)
        source, scores = None, seen.layout.require_scores()
        if seen.plan.source_candidate is not None:
            source = _predicted(seen.source, scores.class_axis, scores.kind)
        return Predictions(Prediction(p, seen.priors), source, np.full(len(images), seen.plan.rows))


class FilePredictor:
    """An exported file. With diagnostics it returns λ and the source model's answer; without, neither."""

    description: str | None = None

    def __init__(self, loaded: LoadedModel, file: OnnxFile) -> None:
        assert file.metadata is not None  # as `load_model` makes sure
        self.loaded, self.file, self.metadata = loaded, file, file.metadata
        self.recipe, self.rows = file.metadata.recipe, file.metadata.rows or 1

    def answer(self, pixels: np.ndarray) -> Predictions:
        """Return an answer for every image."""
        kind, axis = self.metadata.scores, self.metadata.class_axis
        if kind is None or kind.startswith("sigmoid"):
            raise OutputError(f"Expected one label per image or pixel; {self.loaded.spec} has {kind or 'no scores'}.")
        images = self.loaded.encode(pixels)
        arranged = np.ascontiguousarray(np.moveaxis(images, -1, 1) if self.file.channels_first else images)
        try:
            named = self.file.run(arranged)
        except Exception as error:
            raise InputError(
                f"{self.file.path} expected images of shape {self.file.input_shape}; on {arranged.shape} it failed: "
                f"{first_line(error)}"
            ) from error
        adapted = _predicted(named[self.metadata.scores_name], axis, kind)
        check_answer(adapted, self.loaded)
        told = {name: named[name] for name in self.metadata.diagnostics}
        source = _predicted(told["source"], axis, kind) if "source" in told else None
        rows = np.full(len(pixels), self.metadata.rows or 0)
        return Predictions(replace(adapted, priors=told.get("prior")), source, rows)


def _predicted(scores: np.ndarray, class_axis: int, kind: Scores) -> Prediction:
    return Prediction(probabilities(np.moveaxis(scores, class_axis, -1).astype(np.float64), kind, -1))


def check_answer(predicted: Prediction, loaded: LoadedModel) -> None:
    """Raise unless there are scores of at least two classes for every image, or every pixel of it, without NaN."""
    shape = predicted.probabilities.shape[1:]
    expected = 3 if loaded.task == "segmentation" else 1
    if len(shape) != expected or shape[-1] < 2:
        other = {1: "--task classification", 3: "--task segmentation"}.get(len(shape), "another model")
        raise OutputError(
            f"Expected scores of at least two classes for {'every pixel' if expected == 3 else 'the image'}; "
            f"{loaded.spec} returned shape {shape} for one image. Try: {other}."
        )
    if np.isnan(predicted.probabilities).any():
        raise NoAnswerError(
            f"{loaded.spec} returned NaN. Try: check the image and its encoding (--inputs); if every image fails, "
            "check the weights."
        )
