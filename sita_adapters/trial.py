"""Trial: what is found out about a model by running it, before its first answer.

Which axis of an output holds the images, and whether images stay apart, cannot be seen from one call. So three made-up
images are run without adaptation, in three batches:

    [a, b]      [c, b, a]      [c, c]

An axis that is 2 long and then 3 is the images'. What belongs to an image, in the output and at every adapted layer,
must be the same wherever it is. A constant has no such axis and does not change. Whichever image is the largest, one
batch is without it, so that a maximum over the batch is found, too; and no order but the given one suits both a before
b and b before a, so that sorting is.

It takes the time of seven plain images, once for each signature of the inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from .errors import InputError, OutputError, SitaError
from .ops import Array, Ops
from .outputs import flatten, flatten_all

FIRST, SECOND, THIRD = (0, 1), (2, 1, 0), (2, 2)
"""Which of the made-up images are in the batches."""

WHOLE = -1
"""Stands for an axis where an array is one for the whole batch, and depends on its images: a loss."""

_SAMPLE = 512
"""So many values of each entry of a layer's input are compared."""

_MAGNIFIED = 20.0
"""Differences up to so many times what a shaken image makes are rounding: layers round, too, and not images alone."""

_LEAST_CONTRAST = 0.01
"""Made-up images differ at least by so much of the largest value, which is far more than rounding."""


@dataclass(frozen=True)
class Findings:
    """What is known of a model's output: for each of its arrays the path, and the axis of the images.

    None is a constant's, WHOLE that of an array which all images contribute to.

    `keeps_state` tells that an answer would depend on what earlier calls left in the model.
    """

    axes: tuple[tuple[str, int | None], ...]
    keeps_state: bool = False


class Runner(Protocol):
    """Runs a model on some of the made-up images, without adaptation.

    A `fresh` run starts from the state that the model has; any other goes on from what the last one left.
    """

    def __call__(self, which: Sequence[int], *, fresh: bool, seed: int, shaken: bool = False) -> Any:
        """Return the output; `shaken` images are off by a few roundings.

        Every adapted layer's input goes to the watcher that the runner was made with.
        """


class Witness:
    """Keeps a sample of what each adapted layer was given, in the order of the calls."""

    def __init__(self, ops: Ops) -> None:
        self.ops = ops
        self.layers: list[tuple[str, np.ndarray, float]] = []

    def watch(self, name: str, x: Array) -> None:
        """Keep a sample of every entry of a layer's input (N, …)."""
        if self.ops.is_traced(x):  # Keras traces some layers for their shapes alone
            return
        flat = self.ops.xp.reshape(x, (x.shape[0], -1))
        step = max(1, flat.shape[1] // _SAMPLE) | 1  # odd, so that it meets every channel and column
        self.layers.append((name, self.ops.to_numpy(flat[:, ::step]).astype(np.float64), _noise(x)))

    def take(self) -> list[tuple[str, np.ndarray, float]]:
        """Return what was kept, and start again."""
        taken, self.layers = self.layers, []
        return taken


@dataclass(frozen=True)
class _Run:
    images: Sequence[int]
    output: Any
    layers: list[tuple[str, np.ndarray, float]]
    room: float = 0.0
    """Differences of the output up to so much, relative to the largest, are rounding in any case."""


class _Apart(Exception):
    """Two runs differ where they should not."""

    def __init__(self, error: SitaError) -> None:
        super().__init__(str(error))
        self.error = error


def hold_trial(run: Runner, witness: Witness, model: str, images: Array) -> Findings:
    """Return what the runs of a model have in common; raise where an image's output depends on other images.

    `images` are what is to be run, for the errors.
    """
    ops = witness.ops

    def one(which: Sequence[int], *, fresh: bool, seed: int, shaken: bool = False) -> _Run:
        witness.take()
        try:
            output = run(which, fresh=fresh, seed=seed, shaken=shaken)
        except SitaError:
            raise
        except Exception as error:
            raise InputError(
                f"{model} fails on {len(which)} images of {images.dtype} and shape {tuple(images.shape[1:])}, on which "
                f"it is tried out: {type(error).__name__}: {error} Expected a model for any number of such images"
                f"{'' if ops.is_float(images) else ' (of floating-point images, unless it converts them itself)'}. "
                "Remedy: check their shape and type, or give an example, sita.adapt(model, example=images)."
            ) from error
        return _Run(which, output, witness.take())

    first = one(FIRST, fresh=True, seed=0)
    others = [one(which, fresh=False, seed=1) for which in (SECOND, THIRD)]
    try:
        return Findings(_compare_all([first, *others], ops))
    except _Apart as apart:
        return _explain(apart, [first, *others], one, model, ops)


def _explain(apart: _Apart, runs: list[_Run], one: Callable[..., _Run], model: str, ops: Ops) -> Findings:
    """Tell a model that keeps state, draws random numbers, or magnifies rounding from one that mixes images."""
    first = runs[0]
    if not _same(first.output, one(FIRST, fresh=True, seed=2).output, ops):
        raise InputError(
            f"{model} draws random numbers while it runs: the same images gave two outputs. An answer would change "
            "from call to call, and whether images mix cannot be told. Expected a model that is deterministic in "
            "evaluation mode. Remedy: switch its dropout or noise off."
        )
    fresh = [first, *(one(which, fresh=True, seed=1) for which in (SECOND, THIRD))]
    with suppress(_Apart):
        return Findings(_compare_all(fresh, ops), keeps_state=True)
    shaken = one(FIRST, fresh=True, seed=0, shaken=True)
    with suppress(_Apart):
        return Findings(_compare_all(_with_room(runs, shaken, ops), ops))
    with suppress(_Apart):
        return Findings(_compare_all(_with_room(fresh, shaken, ops), ops), keeps_state=True)
    raise apart.error


def _with_room(runs: list[_Run], shaken: _Run, ops: Ops) -> list[_Run]:
    """Return the runs with room for rounding, which a network may magnify, as far as a shaken image shows it.

    It differs with the size of a batch: other sums are taken in another order.
    """
    first = runs[0]
    layers = zip(first.layers, shaken.layers, strict=False)
    noises = [noise + _MAGNIFIED * _moved(x, y) for (_, x, noise), (_, y, _) in layers]
    outputs = zip(flatten(first.output, ops.is_array), flatten(shaken.output, ops.is_array), strict=False)
    values = (tuple(ops.to_numpy(each).astype(np.float64) for each in (x, y)) for (_, x), (_, y) in outputs)
    room = _MAGNIFIED * max((_moved(x, y) for x, y in values), default=0.0)
    return [
        replace(
            run, layers=[(name, x, noise) for (name, x, _), noise in zip(run.layers, noises, strict=False)], room=room
        )
        for run in runs
    ]


def _moved(x: np.ndarray, y: np.ndarray) -> float:
    """Return how far y is from x, relative to the largest of x."""
    if x.shape != y.shape or not x.size:
        return 0.0
    x, y = np.nan_to_num(x), np.nan_to_num(y)
    return float(np.abs(x - y).max()) / max(float(np.abs(x).max()), float(np.finfo(np.float64).tiny))


def _compare_all(runs: Sequence[_Run], ops: Ops) -> tuple[tuple[str, int | None], ...]:
    first, second, third = runs
    found = zip(_compare(first, second, ops), _compare(third, second, ops), strict=True)
    return tuple((path, WHOLE if other == WHOLE else axis) for (path, axis), (_, other) in found)


def _compare(two: _Run, three: _Run, ops: Ops) -> list[tuple[str, int | None]]:
    """Compare a run of two images with the one of three, in what they have in common."""
    _compare_layers(two, three)
    _compare_values(two.output, three.output, ops)
    pairs = zip(flatten(two.output, ops.is_array), flatten(three.output, ops.is_array), strict=True)
    return [(path, _axis_of_images(path, (x, y), (two, three), ops)) for (path, x), (_, y) in pairs]


def _agree(arrays: tuple[np.ndarray, np.ndarray], runs: tuple[_Run, _Run], noise: float) -> bool:
    """Whether the images of a run of two have the same entries in the run of three."""
    x, y = (array.reshape(len(run.images), -1) for array, run in zip(arrays, runs, strict=True))
    there = y[[runs[1].images.index(image) for image in runs[0].images]]
    return _equal(np.concatenate([y, there]), np.concatenate([y, x]), noise)  # as far as all three are from each other


def _compare_layers(two: _Run, three: _Run) -> None:
    if [name for name, *_ in two.layers] != [name for name, *_ in three.layers]:
        raise _Apart(
            InputError(
                "The model runs other layers for three images than for two, or in another order. Expected the same for "
                "any number of images."
            )
        )
    for (name, x, noise), (_, y, _) in zip(two.layers, three.layers, strict=True):
        parts, rest = divmod(len(x), len(FIRST))
        if rest or len(y) != parts * len(SECOND) or not parts:
            raise _Apart(
                InputError(
                    f"Layer {name!r} received {len(x)} leading entries for {len(FIRST)} images and {len(y)} for "
                    f"{len(SECOND)}: the model folds its batch in a way that cannot be followed. Expected as many for "
                    "every image. Remedy: leave the layer out with layers=."
                )
            )
        if not _agree((x, y), (two, three), noise):
            raise _Apart(
                InputError(
                    f"Images mix: what layer {name!r} receives for an image depends on the images beside it, or an "
                    "image's entries are apart from each other (the model concatenates batches, reorders them, or "
                    "folds time into them first). Expected an image's entries side by side, (N, T, …) reshaped to "
                    "(N·T, …). Remedy: fold them so, or leave the layer out with layers=."
                )
            )


def _compare_values(first: Any, second: Any, ops: Ops) -> None:
    """Raise unless the two outputs have the same make, and the same in them that is no array."""
    before, after = (dict(flatten_all(output, ops.is_array)) for output in (first, second))
    for path in sorted(before.keys() ^ after.keys()):
        raise _Apart(
            OutputError(
                f"The output has {path} for one number of images and not for another: a Python list with an entry for "
                "each image, perhaps, in which the views would have theirs, too. Expected tensors. Remedy: adapt a "
                "module that returns the scores as a tensor."
            )
        )
    for path, value in before.items():
        if not ops.is_array(value) and value != after[path] and not _is_nan(value):
            raise _Apart(
                OutputError(
                    f"The output has {value!r} at {path} for two images and {after[path]!r} for three: a number for "
                    "the whole batch, to which the views would contribute. Remedy: adapt a module that returns tensors "
                    "with an entry for each image."
                )
            )


def _axis_of_images(path: str, arrays: tuple[Array, Array], runs: tuple[_Run, _Run], ops: Ops) -> int | None:
    """Return the axis on which an output holds the images; None where it has nothing to do with them."""
    x, y = arrays
    here, there = tuple(map(int, x.shape)), tuple(map(int, y.shape))
    differing = [axis for axis, (i, j) in enumerate(zip(here, there, strict=False)) if i != j]
    values, others = (ops.to_numpy(each).astype(np.float64) for each in (x, y))
    if len(here) == len(there) and not differing:
        if _equal(values[None], others[None], _noise(x) + runs[0].room):
            return None
        return WHOLE
    if len(here) != len(there) or len(differing) > 1:
        raise _Apart(
            OutputError(
                f"Which axis of {path} holds the images is not clear: its shape is {here} for two images and {there} "
                "for three. Expected one axis with an entry for each image. Remedy: adapt a module that returns one."
            )
        )
    (axis,) = differing
    if (here[axis], there[axis]) != (len(FIRST), len(SECOND)):
        folded = here[axis] * len(SECOND) == there[axis] * len(FIRST)
        raise _Apart(
            OutputError(
                f"Expected an entry of {path} for each image; received shape {here} for two images and {there} for "
                f"three{', with more folded in' if folded else ''}. Remedy: adapt a module that "
                f"{'unfolds its batch again' if folded else 'puts out as many entries as there are images'}."
            )
        )
    by_image = np.moveaxis(values, axis, 0), np.moveaxis(others, axis, 0)
    if not _agree(by_image, runs, _noise(x) + runs[0].room):
        raise _Apart(
            OutputError(
                f"Images mix: {path} for an image depends on the images beside it, or comes in another order. An "
                "adapted answer would depend on its batch. Expected a model that treats every image by itself."
            )
        )
    return axis


def _same(first: Any, second: Any, ops: Ops) -> bool:
    for (_, x), (_, y) in zip(flatten(first, ops.is_array), flatten(second, ops.is_array), strict=False):
        values, others = (ops.to_numpy(each).astype(np.float64)[None] for each in (x, y))
        if values.shape != others.shape or not _equal(values, others, _noise(x)):
            return False
    return True


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _equal(x: np.ndarray, y: np.ndarray, noise: float) -> bool:
    """Whether the entries of two arrays are the same, but for rounding.

    Rounding is measured by the values, and by how far the entries are from each other: a difference that is nothing
    beside either is none.
    """
    x, y = np.nan_to_num(x), np.nan_to_num(y)
    if not x.size:
        return True
    spread = float(np.abs(x - x[:1]).max())
    return float(np.abs(x - y).max()) <= noise * float(np.abs(x).max()) + 1e-3 * spread


def _noise(x: Array) -> float:
    """Return how much rounding may make of a network's values in this precision, relative to the largest."""
    dtype = str(x.dtype)
    if "float64" in dtype or "float32" in dtype:
        return 1e-4
    return 3e-2 if "float16" in dtype and "bfloat16" not in dtype else 0.1 if "bfloat16" in dtype else 0.0


def made_up(like: np.ndarray, count: int = 3) -> np.ndarray:
    """Return so many images that differ much from each other, in the range of these, (N, …), and of their type.

    Each has a brightness, a few large areas, and noise.
    """
    finite = like[np.isfinite(like)] if np.issubdtype(like.dtype, np.floating) else like.reshape(-1)
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    if high - low < _LEAST_CONTRAST * max(abs(low), abs(high), 1.0):  # too alike for mixing to be seen
        low, high = min(low, 0.0), max(high, 0.0)
        if high - low < _LEAST_CONTRAST:
            low, high = (low, low + 1.0) if np.issubdtype(like.dtype, np.floating) else _range(like.dtype)
    random = np.random.default_rng(0)
    shape = like.shape[1:]
    made = np.empty((count, *shape))
    for image in made:
        areas = random.uniform(size=tuple(min(size, 3) for size in shape))
        for axis, size in enumerate(shape):
            areas = np.take(areas, np.arange(size) * areas.shape[axis] // max(size, 1), axis=axis)
        image[...] = (random.uniform() + areas + random.uniform(size=shape)) / 3
    made = low + (high - low) * made
    return made.astype(like.dtype) if np.issubdtype(like.dtype, np.floating) else np.rint(made).astype(like.dtype)


def shake(made: np.ndarray, precision: float) -> np.ndarray:
    """Return made-up images whose every value is off by up to four roundings of a precision; integers as they are."""
    if not np.issubdtype(made.dtype, np.floating):
        return made
    signs = np.random.default_rng(1).uniform(-1, 1, made.shape)
    return (made * (1 + 4 * precision * signs)).astype(made.dtype)


def _range(dtype: np.dtype) -> tuple[float, float]:
    return (0.0, 1.0) if dtype == np.bool_ else (0.0, min(255.0, float(np.iinfo(dtype).max)))


def checked_axes(found: Iterable[tuple[str, Array]], findings: Findings | None) -> list[int | None]:
    """Return the axis of the images for each array of an output; raise where the trial's output was another."""
    paths = [path for path, _ in found]
    if findings is None:
        return [0] * len(paths)
    if paths != [path for path, _ in findings.axes]:
        raise OutputError(
            f"The output has {', '.join(paths)} here, and had {', '.join(path for path, _ in findings.axes)} when the "
            "model was tried out. Expected the same parts for inputs of the same kind. Remedy: adapt it again, with an "
            "example of these inputs: sita.adapt(model, example=images)."
        )
    return [axis for _, axis in findings.axes]


def whole_error(path: str, array: Array) -> OutputError:
    """Return the error for an output that all images contribute to, where there are rows that are not images."""
    return OutputError(
        f"The output has a number for the whole batch ({path}), of shape {tuple(array.shape)}, that depends on its "
        "images: the model merges its batch, or computes a loss, to which the views would contribute. Remedy: adapt a "
        "model that puts out the scores alone, called without labels, and compute the loss from its answer."
    )
