"""calibrate(): measure a recipe for a model on the user's own clean images, without labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from .api import adapt
from .backend import adaptation_of, backend_of
from .corrupted import corrupt
from .errors import InputError, OutputError
from .inputs import Inputs
from .observe import observe
from .ops import NUMPY, Array, Ops
from .outputs import ScoresLayout, Selector
from .recipe import RECIPES, Recipe, Task
from .reliability import ByReliability, ChannelSpread, fingerprint_of
from .selection import Layers
from .shift import LayerStatistics, Rule
from .voting import Scores, to_logits

MOVEMENT = 0.15
"""How far outputs on clean images move, as a share of the distance between the outputs for two images."""

_CAUTIONS = (0.1, 100.0)
"""The smallest and the largest k."""

_STEPS = 4
"""How often k is changed at most."""

_CLOSE = 0.1
"""A movement that differs from the wanted one by less than this share is accepted."""

_BATCH, _COMPARED, _NUMBERS = 16, 64, 10_000
"""How many images run at once; how many outputs are compared, and how many numbers of each."""


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
        found = {}
        for name, each in self.layers.items():
            pair = (np.concatenate(each.offsets).var(axis=0), np.concatenate(each.log_ratios).var(axis=0))
            if not np.isfinite(pair).all():
                expected = "images for which the model computes finite features"
                raise InputError(f"images: expected {expected}; those of layer {name!r} are not. Try: other images.")
            found[name] = ChannelSpread(each.fingerprint, *pair)
        return found


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
    movement: float = MOVEMENT,
    progress: Callable[[float], None] | None = None,
    task: Task = "classification",
    inputs: Inputs | str | None = None,
    scores: Scores | Literal["none"] | None = None,
    output: Selector = None,
    class_axis: int | None = None,
    layers: Layers = None,
    max_rows: int | None = None,
) -> Recipe:
    """Return a recipe with one row, measured on clean images like those that the model was trained on.

    A channel whose statistics vary from one clean image to the next says little about shift, and then follows an image
    less (`ByReliability`). How much less, k, is set such that outputs on clean images hardly move.

    Args:
        model: A plain model.
        images: About 128 clean images (N, …), encoded as the model expects; at least 16.
        labels: The true labels, (N, …), if you have them. The notes then tell accuracy instead of agreement.
        movement: How far adaptation may move the outputs on clean images, as a share of the distance between the
            outputs for two images (class scores as logits; medians over images). A larger share adapts more.
        progress: A function that is called with the fraction completed, from 0 to 1.
        task, inputs, scores, output, class_axis, layers, max_rows: As for `adapt`.

    Returns:
        The recipe 'calibrated'. Its `notes` say what was measured.

    Raises:
        SitaError: The images or labels are not usable, or the model cannot be adapted.

    Example:
        >>> recipe = sita.calibrate(model, clean_images)
        >>> print(recipe.notes)
        >>> adapted = sita.adapt(model, recipe)
    """
    if not isinstance(movement, int | float) or isinstance(movement, bool) or not 0 < movement <= 1:
        raise InputError(f"movement: expected a share above 0, at most 1; received {movement!r}.")
    pixels, truth = _check_images(model, images, labels)
    settings: dict[str, Any] = {"task": task, "inputs": inputs, "scores": scores, "output": output}
    settings |= {"class_axis": class_axis, "layers": layers, "max_rows": max_rows}
    step = -(-len(pixels) // _COMPARED)
    some = pixels[::step]
    runs = _Runs(model, settings, progress, total=len(pixels) + 5 * len(some))
    recorder = _Recorder()
    every = runs.run(Recipe(priors=recorder, n_views=0), pixels)
    _check_labels(truth, every.labels)
    source, rule = every.thin(step), ByReliability(layers=recorder.spreads())
    tried: list[tuple[float, float]] = []  # (k, movement)
    while True:
        recipe = Recipe(name="calibrated", priors=rule, n_views=0)
        adapted = runs.run(recipe, some)
        tried.append((rule.caution, source.movement(adapted)))
        caution = _next_caution(tried, movement)
        if caution is None:
            break
        rule = replace(rule, caution=caution)
    notes = f"k = {rule.caution:.3g} moves the outputs for {len(some)} clean images by {tried[-1][1]:.1%}."
    if source.labels is not None:
        wanted = source.labels if truth is None else truth[::step]
        notes += runs.describe_gain(recipe, some, wanted, [source, adapted])
    runs.finish()
    return replace(recipe, notes=notes)


def _next_caution(tried: Sequence[tuple[float, float]], wanted: float) -> float | None:
    """Return the next k to try, from each k and its movement so far; None if the latest is close enough.

    The movement is about a power of k: close to k^−½ at first, then the power that the latest two show.
    """
    caution, movement = tried[-1]
    if len(tried) > _STEPS or abs(movement / wanted - 1) < _CLOSE or movement == 0.0:
        return None
    power = -0.5
    if len(tried) > 1 and tried[-2][1] not in (0.0, movement):
        power = math.log(movement / tried[-2][1]) / math.log(caution / tried[-2][0])
    step = (wanted / movement) ** (1 / min(power, -0.2))
    after = min(max(caution * step, _CAUTIONS[0]), _CAUTIONS[1])
    return None if after == caution else after


@dataclass(frozen=True)
class _Outputs:
    """What a recipe returned for N images: labels (N, …), if there are class scores, and numbers (N, F)."""

    labels: np.ndarray | None
    numbers: list[np.ndarray]  # centered logits; without class scores, those of each floating-point array

    def thin(self, step: int) -> _Outputs:
        """Return the outputs for every image whose position is a multiple of `step`."""
        return _Outputs(None if self.labels is None else self.labels[::step], [each[::step] for each in self.numbers])

    def movement(self, other: _Outputs) -> float:
        """Return the median over images of ‖y − y'‖, relative to that between images; the mean over all arrays."""
        moved = []
        for own, others in zip(self.numbers, other.numbers, strict=True):
            apart = float(np.median(np.linalg.norm(own - np.roll(own, 1, axis=0), axis=1)))
            moved.append(float(np.median(np.linalg.norm(own - others, axis=1))) / max(apart, 1e-30))
        if not np.isfinite(moved).all():
            raise OutputError("Expected finite outputs for the clean images; received others. Try: other images.")
        return float(np.mean(moved)) if moved else 0.0


class _Runs:
    """Runs recipes of a model on numpy images, and reports progress."""

    def __init__(
        self, model: Any, settings: dict[str, Any], progress: Callable[[float], None] | None, total: int
    ) -> None:
        self.model, self.settings, self.progress = model, settings, progress
        self.total, self.done, self.shown, self.channel_axis = total, 0, 0.0, 1

    def run(self, recipe: Recipe, pixels: np.ndarray) -> _Outputs:
        """Return what a recipe returns for these images."""
        adapted = adapt(self.model, recipe, **self.settings)
        backend, recorder = backend_of(adapted), recipe.rule if isinstance(recipe.rule, _Recorder) else None
        self.channel_axis = adaptation_of(adapted).channel_axis
        labels: list[np.ndarray] = []
        numbers: list[list[np.ndarray]] = []
        with nullcontext() if recorder is None else observe(adapted):  # a compiled Keras model has no values
            if recorder is not None:
                backend.run(adapted, pixels[:1])
                recorder.layers.clear()  # of the random images of the probe, too
            for start in range(0, len(pixels), _BATCH):
                answer = backend.run(adapted, pixels[start : start + _BATCH])
                if (layout := answer.layout.scores) is not None:
                    values = backend.ops.to_numpy(answer.scores).astype(np.float32)
                    labels.append(_labels(values, layout))
                    arrays = [_centered_logits(values, layout)]
                else:
                    pairs = zip(answer.arrays, answer.layout.axes, answer.layout.floats, strict=True)
                    arrays = [backend.ops.to_numpy(array) for array, axis, known in pairs if axis is not None and known]
                numbers.append([_flat(each) for each in arrays])
                self._advance(min(_BATCH, len(pixels) - start))
        try:
            joined = [np.concatenate(each) for each in zip(*numbers, strict=True)]
            return _Outputs(np.concatenate(labels) if labels else None, joined)
        except ValueError as error:
            raise OutputError(
                f"Expected outputs of one size for all images; received several ({error}). Try: calibrate the module "
                "before the one that selects detections."
            ) from error

    def describe_gain(self, recipe: Recipe, pixels: np.ndarray, wanted: np.ndarray, clean: Sequence[_Outputs]) -> str:
        """Return a table of what the source and the recipe predict as wanted, on clean images and corrupted copies."""
        channel = self.channel_axis % pixels.ndim
        copies = list(corrupt(pixels, [axis for axis in range(1, pixels.ndim) if axis != channel]))
        images, of_image = (np.concatenate(each) for each in zip(*copies, strict=True))
        self.total = self.done + 2 * len(images)
        lines = [f"{'clean':>7}  {'corrupted':>9}  % of predictions as wanted"]
        for each, name, known in zip((RECIPES["source"], recipe), ("source", recipe.name), clean, strict=True):
            assert known.labels is not None
            right = np.equal(self.run(each, images).labels, wanted[of_image])  # type: ignore[arg-type]
            share = float(np.equal(known.labels, wanted).mean())
            lines.append(f"{100 * share:>6.1f}%  {100 * float(right.mean()):>8.1f}%  {name}")
        return "\n".join(["", *lines])

    def finish(self) -> None:
        """Report that nothing is left to run."""
        self._advance(self.total - self.done)

    def _advance(self, rows: int) -> None:
        self.done += rows
        self.total = max(self.total, self.done)
        self.shown = max(self.shown, self.done / self.total)  # more steps may be needed than was expected
        if self.progress is not None:
            self.progress(self.shown)


def _centered_logits(scores: np.ndarray, layout: ScoresLayout) -> np.ndarray:
    """Return logits with a mean of 0 over the classes: models with and without a softmax then agree."""
    z = to_logits(scores, layout.kind, NUMPY)
    z = np.clip(z, -1e4, 1e4)  # a class may be masked by −∞
    return np.asarray(z if layout.kind.startswith("sigmoid") else z - z.mean(layout.class_axis, keepdims=True))


def _flat(values: np.ndarray) -> np.ndarray:
    """Return about ten thousand numbers of each image, evenly spaced: (N, F)."""
    flat = values.reshape(len(values), -1).astype(np.float64)
    return flat[:, :: max(1, flat.shape[1] // _NUMBERS)]


def _labels(scores: np.ndarray, layout: ScoresLayout) -> np.ndarray:
    """Return the predicted labels (N, …); for sigmoid scores, whether each label is true."""
    if layout.kind.startswith("sigmoid"):
        return scores > (0.5 if layout.kind == "sigmoid_probabilities" else 0.0)
    return np.asarray(scores.argmax(layout.class_axis))


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
