"""calibrate(): measure a recipe for a model on the user's own clean images, without labels."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from .api import adapt
from .backend import adaptation_of, backend_of
from .corrupted import corrupt
from .errors import InputError, SitaWarning
from .inputs import Inputs
from .observe import observe
from .ops import Array, Ops
from .outputs import ScoresLayout, Selector
from .recipe import RECIPES, Recipe, Task
from .reliability import ByReliability, ChannelSpread, fingerprint_of
from .selection import Layers
from .shift import LayerStatistics, Rule
from .voting import Scores

CAUTIONS = (1.0, 2.0, 4.0, 8.0, 16.0)
"""The values of k to choose from. The smallest that changes few outputs on clean images is chosen."""

MOST_MOVED = 0.25
"""Without class scores: the largest share of the distance between two images' outputs that adaptation may move one."""

_BATCH = 16

_COMPARED = 64
"""How many images are compared if there are no class scores: detectors return large arrays."""


class _Recorder(Rule):
    """A prior of 1 that keeps what every layer measures: per image and channel, the offset and the log ratio."""

    def __init__(self) -> None:
        self.layers: dict[str, _Recorded] = {}

    def priors(self, layer: LayerStatistics, ops: Ops) -> tuple[Array, Array]:
        measured = (layer.means, layer.variances, layer.source_mean, layer.source_variance)
        mean, variance, source_mean, source_variance = (ops.to_numpy(each).astype(np.float64) for each in measured)
        epsilon = float(ops.to_numpy(layer.epsilon) if ops.is_array(layer.epsilon) else layer.epsilon)
        known = self.layers.setdefault(layer.name, _Recorded(fingerprint_of(source_mean, source_variance)))
        known.offsets.append(((mean - source_mean) / np.sqrt(source_variance + epsilon))[:, 0])
        known.log_ratios.append(np.log((variance + epsilon) / (source_variance + epsilon))[:, 0])
        ones = 1 + 0 * layer.divergence
        return ones, ones

    def spreads(self) -> dict[str, ChannelSpread]:
        """Return the variances over all images."""
        return {
            name: ChannelSpread(
                each.fingerprint, np.concatenate(each.offsets).var(axis=0), np.concatenate(each.log_ratios).var(axis=0)
            )
            for name, each in self.layers.items()
        }


@dataclass
class _Recorded:
    """What one layer measured."""

    fingerprint: tuple[float, ...]
    offsets: list[np.ndarray] = field(default_factory=list)
    log_ratios: list[np.ndarray] = field(default_factory=list)


def calibrate(
    model: Any,
    images: Any,
    labels: Any = None,
    *,
    min_agreement: float = 0.9,
    progress: Callable[[float], None] | None = None,
    task: Task = "classification",
    inputs: Inputs | str | None = None,
    scores: Scores | Literal["none"] | None = None,
    output: Selector = None,
    class_axis: int | None = None,
    layers: Layers = None,
    max_rows: int | None = None,
) -> Recipe:
    """Return a recipe with one row for a model, measured on clean images like those that it was trained on.

    A channel whose statistics vary from one clean image to the next says little about shift, and then follows an image
    less (`ByReliability`). How much less, k, is the smallest of a few values that keeps enough predictions on the clean
    images. Without class scores, the outputs on clean images may move only by a small share of the distance between
    the outputs for two images.

    Args:
        model: A plain model.
        images: About 128 clean images (N, …), encoded as the model expects; at least 16.
        labels: The true labels, (N, …), if you have them. The notes then tell the accuracy.
        min_agreement: The share of the source model's predictions on the clean images that must stay the same.
        progress: A function that is called with the fraction completed, from 0 to 1.
        task, inputs, scores, output, class_axis, layers, max_rows: As for `adapt`.

    Returns:
        The recipe 'calibrated'. Its `notes` say what was measured. If no k keeps enough predictions, the recipe
        'source', with a warning.

    Raises:
        SitaError: The images or labels are not usable, or the model cannot be adapted.

    Example:
        >>> recipe = sita.calibrate(model, clean_images)
        >>> print(recipe.notes)
        >>> adapted = sita.adapt(model, recipe)
    """
    if not isinstance(min_agreement, int | float) or min_agreement is True or not 0 < min_agreement <= 1:
        raise InputError(f"min_agreement: expected a share above 0, at most 1; received {min_agreement!r}.")
    pixels, truth = _check_images(model, images, labels)
    settings: dict[str, Any] = {"task": task, "inputs": inputs, "scores": scores, "output": output}
    settings |= {"class_axis": class_axis, "layers": layers, "max_rows": max_rows}
    runs = _Runs(model, settings, progress, 3 * len(pixels))
    recorder = _Recorder()
    source = runs.predict(Recipe(priors=recorder, n_views=0), pixels)
    _check_labels(truth, source.labels)
    spreads, least = recorder.spreads(), min_agreement if source.labels is not None else 1 - MOST_MOVED
    for caution in CAUTIONS:
        recipe = Recipe(name="calibrated", priors=ByReliability(layers=spreads, caution=caution), n_views=0)
        clean = runs.predict(recipe, pixels)
        agreement = source.agreement(clean)
        if agreement >= least:
            break
    else:
        recipe = _refuse(agreement, least)
    notes = _describe_agreement(agreement, len(pixels), source.labels is not None)
    if source.labels is not None and recipe.name == "calibrated":
        notes += runs.describe_gain(recipe, pixels, source.labels if truth is None else truth, [source, clean])
    runs.finish()
    return replace(recipe, notes=notes)


@dataclass(frozen=True)
class _Predicted:
    """What a recipe returned for N images: labels (N, …); without class scores, all numbers of the first images."""

    labels: np.ndarray | None
    outputs: list[np.ndarray]  # (n, F), of each array of floating-point numbers

    def agreement(self, other: _Predicted) -> float:
        """Return the share of equal labels; without class scores, 1 minus the share by which outputs moved.

        ‖y − y'‖ is relative to the distance between the outputs for two images: medians over images, and the mean over
        the arrays.
        """
        if self.labels is not None:
            return float((self.labels == other.labels).mean())
        moved = []
        for own, others in zip(self.outputs, other.outputs, strict=True):
            spread = float(np.median(np.linalg.norm(own - np.roll(own, 1, axis=0), axis=1)))
            moved.append(float(np.median(np.linalg.norm(own - others, axis=1))) / max(spread, 1e-30))
        return 1 - float(np.mean(moved)) if moved else 1.0


class _Runs:
    """Runs recipes of a model on numpy images, and reports progress."""

    def __init__(
        self, model: Any, settings: dict[str, Any], progress: Callable[[float], None] | None, total: int
    ) -> None:
        self.model, self.settings, self.progress = model, settings, progress
        self.total, self.done, self.channel_axis = total, 0, 1

    def predict(self, recipe: Recipe, pixels: np.ndarray) -> _Predicted:
        """Return what a recipe returns for these images."""
        adapted = adapt(self.model, recipe, **self.settings)
        backend, recorder = backend_of(adapted), recipe.rule if isinstance(recipe.rule, _Recorder) else None
        self.channel_axis = adaptation_of(adapted).channel_axis
        labels: list[np.ndarray] = []
        outputs: list[list[np.ndarray]] = []
        with nullcontext() if recorder is None else observe(adapted):  # a compiled Keras model has no values
            if recorder is not None:
                backend.run(adapted, pixels[:1])
                recorder.layers.clear()  # of the random images of the probe, too
            for start in range(0, len(pixels), _BATCH):
                answer = backend.run(adapted, pixels[start : start + _BATCH])
                if answer.layout.scores is not None:
                    labels.append(_labels(backend.ops.to_numpy(answer.scores), answer.layout.scores))
                elif start < _COMPARED:
                    pairs = zip(answer.arrays, answer.layout.axes, answer.layout.floats, strict=True)
                    some = [backend.ops.to_numpy(array) for array, axis, known in pairs if axis is not None and known]
                    outputs.append([each.reshape(len(each), -1).astype(np.float64) for each in some])
                self._advance(min(_BATCH, len(pixels) - start))
        joined = [np.concatenate(each) for each in zip(*outputs, strict=True)]
        return _Predicted(np.concatenate(labels) if labels else None, joined)

    def describe_gain(self, recipe: Recipe, pixels: np.ndarray, wanted: np.ndarray, clean: Sequence[_Predicted]) -> str:
        """Return a table of what the source and the recipe predict as wanted, on clean images and corrupted copies."""
        channel = self.channel_axis % pixels.ndim
        copies = list(corrupt(pixels, [axis for axis in range(1, pixels.ndim) if axis != channel]))
        images, of_image = (np.concatenate(each) for each in zip(*copies, strict=True))
        self.total = self.done + 2 * len(images)
        lines = [f"{'clean':>7}  {'corrupted':>9}  % of predictions as wanted"]
        for each, name, known in zip((RECIPES["source"], recipe), ("source", recipe.name), clean, strict=True):
            right = self.predict(each, images).labels == wanted[of_image]
            lines.append(
                f"{100 * float((known.labels == wanted).mean()):>6.1f}%  {100 * float(right.mean()):>8.1f}%  {name}"
            )
        return "\n".join(["", *lines])

    def finish(self) -> None:
        """Report that nothing is left to run."""
        self._advance(self.total - self.done)

    def _advance(self, rows: int) -> None:
        self.done += rows
        self.total = max(self.total, self.done)
        if self.progress is not None:
            self.progress(self.done / self.total)


def _labels(scores: np.ndarray, layout: ScoresLayout) -> np.ndarray:
    """Return the predicted labels (N, …); for sigmoid scores, whether each label is true."""
    if layout.kind.startswith("sigmoid"):
        return scores > (0.5 if layout.kind == "sigmoid_probabilities" else 0.0)
    return scores.argmax(layout.class_axis)


def _check_images(model: Any, images: Any, labels: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """Return images and labels as numpy arrays, after checking the images."""
    ops = backend_of(model).ops
    try:
        pixels, truth = (np.asarray(ops.to_numpy(each) if ops.is_array(each) else each) for each in (images, labels))
    except ValueError as error:
        raise InputError(f"images, labels: expected one size; received {error}. Try: resize the images.") from error
    finite = pixels.dtype.kind in "fiub" and bool(np.isfinite(pixels).all())
    if not finite or pixels.ndim < 2 or len(pixels) < 16:
        what = f"{pixels.shape}, {pixels.dtype}{'' if finite else ', with values that are not finite numbers'}"
        raise InputError(f"images: expected 16 or more, of finite numbers; received {what}.")
    return pixels, None if labels is None else truth


def _check_labels(truth: np.ndarray | None, predicted: np.ndarray | None) -> None:
    """Raise unless labels, if there are any, have the shape of the predicted ones."""
    if truth is None:
        return
    if predicted is None:
        raise InputError("labels: the model returns no class scores to compare them with. Try: leave labels out.")
    if truth.dtype.kind not in "iub" or truth.shape != predicted.shape:
        raise InputError(f"labels: expected integers, {predicted.shape}; received {truth.dtype}, {truth.shape}.")


def _describe_agreement(agreement: float, count: int, of_labels: bool) -> str:
    what = f"{agreement:.1%} of the source model's predictions stay the same"
    if not of_labels:
        what = f"outputs move by {1 - agreement:.1%} of the distance between those for two images"
    return f"On {count} clean images, {what}."


def _refuse(agreement: float, least: float) -> Recipe:
    """Return the recipe that does not adapt, with a warning."""
    warnings.warn(
        f"Even the most cautious recipe keeps {agreement:.0%} of the outputs on these images; {least:.0%} are required. "
        "The recipe 'source', which does not adapt, was chosen. Try: a lower min_agreement=, or images like those in "
        "training.",
        SitaWarning,
        stacklevel=3,
    )
    return RECIPES["source"]
