"""The predictions that `sita predict` shows: of a model, source and adapted, or of an exported file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sita_adapters.errors import InputError, OutputError, SitaError
from sita_adapters.inputs import read_inputs
from sita_adapters.recipe import Task, read_recipe
from sita_adapters.runtimes import SUFFIXES, ExportedFile, format_of, open_exported, run_checked
from sita_adapters.shift import ByShift

from ..methods import SOURCE, Method, Prediction, open_recipe, prepare, to_probabilities
from ..models.loaded import LoadedModel, Size


@dataclass(frozen=True, eq=False)
class Answer:
    """An image, and what the adapted and the source model predict for it: p (…, classes) and λ (…) of one image.

    An exported file does not contain the source model, and does not report λ.
    """

    path: Path
    adapted: Prediction
    source: Prediction | None = None

    @property
    def classes(self) -> int:
        """How many classes the model has."""
        return int(self.adapted.probabilities.shape[-1])

    @property
    def changed(self) -> float:
        """Whether the label differs from the source model's; of label maps, the share of pixels."""
        return 0.0 if self.source is None else float((self.adapted.labels != self.source.labels).mean())


class ModelPredictor:
    """A model, source and adapted."""

    def __init__(self, loaded: LoadedModel, name: str) -> None:
        recipe = open_recipe(name, loaded.task)
        self.loaded, self.recipe = loaded, str(recipe)
        self._prior = np.nan if isinstance(recipe.lambdas[0], ByShift) else recipe.lambdas[0]
        self._source = prepare(Method(SOURCE, read_recipe(SOURCE, {}, loaded.task)), loaded)
        self._adapted = prepare(Method(f"adapted: {name}", recipe), loaded)

    def predict(self, path: Path, pixels: np.ndarray) -> Answer:
        """Return what the two models predict for an image in bytes (h, w, 3)."""
        image = self.loaded.encode(pixels[None])
        try:
            source, adapted = self._source.predict(image), self._adapted.predict(image)
        except SitaError:
            raise
        except Exception as error:
            raise InputError(
                f"{self.loaded.spec} failed on {path}, an image of {pixels.shape[1]} × {pixels.shape[0]}: {error}. "
                "Remedy: --size of its images."
            ) from error
        check_shape(adapted, self.loaded)
        priors = np.full(adapted.labels.shape, self._prior) if adapted.priors is None else adapted.priors
        return Answer(path, Prediction(adapted.probabilities[0], priors[0]), Prediction(source.probabilities[0]))


@dataclass(frozen=True, eq=False)
class FilePredictor:
    """An exported file, which does not contain the source model."""

    loaded: LoadedModel
    recipe: str
    file: ExportedFile

    def predict(self, path: Path, pixels: np.ndarray) -> Answer:
        """Return what the file predicts for an image in bytes (h, w, 3)."""
        first, card = _channels_first(self.file), self.file.card
        image = self.loaded.encode(pixels[None])
        outputs = run_checked(self.file, np.ascontiguousarray(np.moveaxis(image, -1, 1) if first else image))
        class_axis = card.class_axis if card else (1 if first else -1)
        raw = np.moveaxis(outputs[card.scores_place if card else 0], class_axis, -1)
        scores = card.scores if card else _guess_scores(raw)
        if scores.startswith("sigmoid"):
            raise OutputError(f"Expected one label per image or pixel; {self.loaded.spec} has a sigmoid per label.")
        predicted = Prediction(to_probabilities(raw, scores))
        check_shape(predicted, self.loaded)
        return Answer(path, Prediction(predicted.probabilities[0]))


def check_shape(predicted: Prediction, loaded: LoadedModel) -> None:
    """Raise unless there are scores of at least two classes for every image, or every pixel of it."""
    shape = predicted.probabilities.shape[1:]
    expected = 3 if loaded.task == "segmentation" else 1
    if len(shape) != expected or shape[-1] < 2:
        remedy = {1: "--task classification", 3: "--task segmentation"}.get(len(shape), "another model")
        raise OutputError(
            f"Expected scores of at least two classes for {'every pixel' if expected == 3 else 'the image'}; "
            f"{loaded.spec} returned shape {shape} for one image. Remedy: {remedy}."
        )


def is_exported(spec: str) -> bool:
    """Whether a spec is an exported file; raise where it is named like one but does not exist."""
    path = Path(spec)
    if path.suffix.lower() in SUFFIXES and path.suffix and not path.exists():
        raise InputError(f"Expected an exported file; {spec!r} does not exist. Remedy: sita export MODEL --out {spec}.")
    return format_of(path) is not None


def open_file(
    spec: str, *, weights: str | None, inputs: str | None, size: int | None, task: Task | None, crop: float | None
) -> FilePredictor:
    """Open an exported file. Its card says how images are encoded, unless the options do."""
    if weights is not None:
        raise InputError(f"--weights: {spec} has its weights in it. Remedy: leave the option out.")
    path = Path(spec)
    file = open_exported(path, format_of(path) or "onnx")
    card, own_size = file.card, _size(file)
    if size is not None and own_size not in (None, size):
        raise InputError(
            f"--size: {spec} was made for images of {own_size}; received {size}. Remedy: leave it out, or export the "
            f"model with --size {size}."
        )
    loaded = LoadedModel(
        spec,
        None,
        read_inputs(inputs) or (card.inputs if card else None),
        own_size or size,
        crop or (card.crop if card else 1.0),
        task or ("segmentation" if card and card.task == "segmentation" else "classification"),
        card.scores if card else None,
        weights=f"in the file, {card.model}, {card.weights}" if card and card.model else "in the file",
        names=card.names if card else (),
    )
    if loaded.inputs is None:
        raise InputError(
            f"{spec} does not say how its pixels are encoded. Remedy: --inputs NAME, or export it with sita export."
        )
    return FilePredictor(loaded, card.recipe if card else "as exported", file)


def _channels_first(file: ExportedFile) -> bool:
    shape = file.input_shape
    return shape is not None and len(shape) == 4 and shape[1] == 3 and shape[-1] != 3


def _size(file: ExportedFile) -> Size:
    """Return the height and width that a file takes; None where it does not say."""
    shape = file.input_shape
    if shape is None or len(shape) != 4:
        return None
    height, width = shape[2:] if _channels_first(file) else shape[1:3]
    if height is None or width is None:
        return None
    return height if height == width else (height, width)


def _guess_scores(raw: np.ndarray) -> str:
    """Guess what the scores of a file without a card are."""
    sums_to_one = bool((raw >= 0).all()) and bool(np.allclose(raw.sum(axis=-1), 1.0, atol=1e-3))
    return "probabilities" if sums_to_one else "logits"
