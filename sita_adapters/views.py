"""The augmented views of an image that statistics are estimated from.

A View is a fixed sequence of steps. What is random in it (an angle, a colour factor) is drawn once, from a seed,
when the view is made: the same image always gives the same answer, in every framework, and a graph that runs the
view holds no random operation. A step computes on the arrays of any framework through a `Canvas`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from .arrays import Array, Arrays
from .errors import InputError, RecipeError, suggestion
from .inputs import Inputs

Frame: TypeAlias = Literal["square", "oblong", "line", "point"]
"""What an input's spatial sizes allow: four-fold symmetry, two-fold, a reversal, or nothing."""

Augmentation: TypeAlias = "str | Callable[[Array], Array]"
Augment: TypeAlias = "Augmentation | Sequence[Augmentation | Sequence[Augmentation]]"


def frame_of(sizes: Sequence[int]) -> Frame:
    """Return the frame of an input with these spatial sizes, of which the last two are an image's."""
    if len(sizes) >= 2:
        return "square" if sizes[-2] == sizes[-1] else "oblong"
    return "line" if len(sizes) == 1 else "point"


@dataclass(frozen=True)
class Canvas:
    """How a framework's image arrays are laid out, and what computes on them.

    `axes` are the spatial axes (height and width, or the length alone), counted from the end as `channel` is.
    """

    arrays: Arrays
    channel: int
    axes: tuple[int, ...]
    inputs: Inputs | None = None


class Step(Protocol):
    """One operation on a batch of images, that gives a batch of the same shape."""

    @property
    def lossless(self) -> bool:
        """Whether pixels only change places."""

    @property
    def moves_pixels(self) -> bool:
        """Whether what is seen at a place moves to another."""

    @property
    def dimensions(self) -> int:
        """How many spatial axes it needs."""

    def apply(self, x: Array, canvas: Canvas) -> Array:
        """Return the images after this step."""


@dataclass(frozen=True)
class Flip:
    """Reverse the height (axis 0) or the width (axis −1)."""

    axis: Literal[0, -1]
    lossless = True
    moves_pixels = True
    dimensions = 1

    def apply(self, x: Array, canvas: Canvas) -> Array:
        """Return the flipped images."""
        return canvas.arrays.xp.flip(x, axis=canvas.axes[self.axis])


@dataclass(frozen=True)
class Transpose:
    """Exchange height and width: the reflection in the main diagonal."""

    lossless = True
    moves_pixels = True
    dimensions = 2

    def apply(self, x: Array, canvas: Canvas) -> Array:
        """Return the transposed images."""
        height, width = (x.shape[axis] for axis in canvas.axes)
        if height != width:
            raise InputError(
                f"A quarter turn or transposition needs square images; received {height}×{width}. "
                "Give views that keep the shape: 'vflip', 'hflip', 'rot180'."
            )
        return canvas.arrays.xp.swapaxes(x, *canvas.axes)


@dataclass(frozen=True)
class Rotate:
    """Turn counter-clockwise about the centre: bilinear, with the border mirrored (…2 1 0 1 2…)."""

    degrees: float
    lossless = False
    moves_pixels = True
    dimensions = 2

    def apply(self, x: Array, canvas: Canvas) -> Array:
        """Return the rotated images."""
        first, second = sorted(axis % len(x.shape) for axis in canvas.axes)
        before, after = tuple(x.shape[:first]), tuple(x.shape[second + 1 :])
        indices, weights = rotation_taps(x.shape[first], x.shape[second], self.degrees)
        flat = canvas.arrays.xp.reshape(x, (*before, -1, *after))
        turned = 0.0
        for index, weight in zip(indices, weights, strict=True):
            taken = canvas.arrays.xp.take(flat, canvas.arrays.indices(index, x), axis=first)
            turned = turned + taken * canvas.arrays.constant(weight.reshape(-1, *[1] * len(after)), x)
        return canvas.arrays.xp.reshape(turned, tuple(x.shape))


@dataclass(frozen=True)
class Blur:
    """Smooth with a Gaussian of this deviation in pixels, cut off at 4σ, the border mirrored."""

    sigma: float
    lossless = False
    moves_pixels = False
    dimensions = 1

    def apply(self, x: Array, canvas: Canvas) -> Array:
        """Return the blurred images."""
        for axis in canvas.axes:
            matrix = canvas.arrays.constant(blur_matrix(x.shape[axis], self.sigma).T, x)
            last = canvas.arrays.xp.swapaxes(x, axis, -1)
            x = canvas.arrays.xp.swapaxes(canvas.arrays.xp.matmul(last, matrix), axis, -1)
        return x


@dataclass(frozen=True)
class Colour:
    """Brightness, contrast and saturation by these factors, in this order, each clipped to the pixel range.

    On RGB intensities u in [0, 1] with luma l: u · f, f · u + (1 − f) · mean(l), and f · u + (1 − f) · l.
    """

    brightness: float
    contrast: float
    saturation: float
    order: tuple[str, ...] = ("brightness", "contrast", "saturation")
    lossless = False
    moves_pixels = False
    dimensions = 0

    def apply(self, x: Array, canvas: Canvas) -> Array:
        """Return the images with distorted colours, in the encoding they came in."""
        inputs, xp, channels = canvas.inputs, canvas.arrays.xp, x.shape[canvas.channel]
        assert inputs is not None  # check_inputs
        if channels not in (1, 3):
            raise InputError(f"Colour distortion expects images of 1 or 3 channels; received {channels}.")
        if len(inputs.mean) not in (1, channels) or len(inputs.std) not in (1, channels):
            raise InputError(
                f"Colour distortion expects inputs= with a mean and std for each of the {channels} channels, or one "
                f"for all; received mean={inputs.mean}, std={inputs.std}."
            )

        def per_channel(values: Sequence[float]) -> Array:
            column = np.asarray(values, dtype=np.float32).reshape(-1, *[1] * (-canvas.channel - 1))
            return canvas.arrays.constant(column, x)

        luma = _LUMA if inputs.order == "rgb" else _LUMA[::-1]
        luma_weights = per_channel(luma if channels == 3 else (1.0,))
        mean, std = per_channel(inputs.mean), per_channel(inputs.std)
        u = (x * std + mean) / inputs.white
        for name in self.order:
            factor = getattr(self, name)
            if name == "brightness":
                u = u * factor
            else:
                grey = xp.sum(u * luma_weights, axis=canvas.channel, keepdims=True)
                if name == "contrast":
                    grey = xp.mean(grey, axis=canvas.axes, keepdims=True)
                u = u * factor + grey * (1 - factor)
            u = xp.clip(u, 0.0, 1.0)
        return (u * inputs.white - mean) / std


@dataclass(frozen=True)
class Custom:
    """A caller's own function on a batch of images, in the framework's own arrays."""

    function: Callable[[Array], Array]
    lossless = False
    moves_pixels = False  # as far as we know: that is its author's to see to
    dimensions = 0

    def apply(self, x: Array, canvas: Canvas) -> Array:
        """Return what the function makes of the images, which must keep their shape and kind."""
        made = self.function(x + 0)  # a copy: one that works in place must not change the image itself
        name = getattr(self.function, "__name__", repr(self.function))
        if getattr(made, "shape", None) != x.shape or getattr(made, "dtype", None) != x.dtype:
            raise InputError(
                f"The augmentation {name} must return images of the shape and dtype it was given, "
                f"{tuple(x.shape)} {x.dtype}; it returned {type(made).__name__} of "
                f"{tuple(getattr(made, 'shape', ()))} {getattr(made, 'dtype', '')}."
            )
        return made


@dataclass(frozen=True)
class View:
    """A named sequence of steps; no steps at all is the image itself."""

    name: str
    steps: tuple[Step, ...] = ()

    @property
    def lossless(self) -> bool:
        """Whether pixels only change places."""
        return all(step.lossless for step in self.steps)

    @property
    def moves_pixels(self) -> bool:
        """Whether what is seen at a place moves to another."""
        return any(step.moves_pixels for step in self.steps)

    def apply(self, x: Array, canvas: Canvas) -> Array:
        """Return this view of every image of the batch x."""
        for step in self.steps:
            x = step.apply(x, canvas)
        return x

    def move(self, x: Array, canvas: Canvas) -> Array:
        """Return what belongs to the images place by place (a mask), with every place where this view has it."""
        for step in self.steps:
            if step.moves_pixels:
                x = step.apply(x, canvas)
        return x


IMAGE = View("image")
"""The image as it came."""

SYMMETRIES: dict[str, tuple[Step, ...]] = {
    "rot90": (Transpose(), Flip(0)),
    "rot270": (Transpose(), Flip(-1)),
    "transpose": (Transpose(),),
    "vflip": (Flip(0),),
    "hflip": (Flip(-1),),
    "rot180": (Flip(0), Flip(-1)),
    "antitranspose": (Transpose(), Flip(0), Flip(-1)),
}
"""The symmetries of the square other than the identity, in the order in which they are taken."""

_FITTING: dict[Frame, tuple[str, ...]] = {
    "square": tuple(SYMMETRIES),
    "oblong": ("vflip", "hflip", "rot180"),
    "line": ("hflip",),
    "point": (),
}

_DIMENSIONS: dict[Frame, int] = {"square": 2, "oblong": 2, "line": 1, "point": 0}
_RANDOM = ("rotate", "blur", "colour")
_PAPER = ("colour", "rotate", "transpose", "hflip", "vflip")
PRESETS = ("lossless", "paper", "paper_segmentation")
NAMES = (*SYMMETRIES, *_RANDOM)
"""The single augmentations that a caller can name."""

_LUMA = (0.299, 0.587, 0.114)


def make_views(augment: Augment, count: int, seed: int, frame: Frame) -> tuple[View, ...]:
    """Return the `count` views of an input of this frame; fewer where a preset has no more that fit it."""
    if augment == "lossless":
        if count and not _FITTING[frame]:
            raise InputError(
                "Views need something to turn or flip; this input has no spatial axes. "
                "Remedy: a recipe without views ('bn'), or augment= with a function of your own."
            )
        return tuple(View(name, SYMMETRIES[name]) for name in _FITTING[frame][:count])
    random = np.random.default_rng(seed)
    if augment in ("paper", "paper_segmentation"):
        if frame in ("line", "point"):
            raise InputError(
                f"augment={augment!r} turns images, which have a height and a width; this input is a {frame}."
            )
        if augment == "paper_segmentation":
            return tuple(_draw_segmentation_view(random) for _ in range(count))
        return tuple(_draw_paper_view(random, frame) for _ in range(count))
    entries: Sequence[Any] = [augment] * count if isinstance(augment, str) or callable(augment) else augment
    views = tuple(_compose(entry, random) for entry in entries[:count])
    for view in views:
        if any(step.dimensions > _DIMENSIONS[frame] for step in view.steps):
            raise InputError(
                f"The view {view.name!r} needs images with a height and a width; this input is a {frame}. "
                "Remedy: views of your own, as functions on a batch."
            )
    return views


def listed_views(augment: Augment) -> int | None:
    """How many views `augment` names; None where there are as many as one likes (a preset, or drawn for each)."""
    if isinstance(augment, str):
        return 1 if augment in SYMMETRIES else None
    return None if callable(augment) else len(augment)


def check_augment(augment: Augment, count: int | None) -> None:
    """Raise a RecipeError unless `augment` is a preset, known names, callables, or sequences of these."""
    if isinstance(augment, str) and augment in PRESETS:
        if augment == "lossless" and count is not None and count > len(SYMMETRIES):
            raise RecipeError(
                f"n_views={count}: a square has {len(SYMMETRIES)} lossless views; take fewer, or another augment=."
            )
        return
    entries: Sequence[Any] = [augment] if isinstance(augment, str) or callable(augment) else augment
    if not entries:
        raise RecipeError("augment: expected at least one augmentation; received an empty sequence.")
    for entry in entries:
        _compose(entry, np.random.default_rng(0))
    listed = listed_views(augment)
    if count is not None and listed is not None and count > listed:
        raise RecipeError(f"n_views={count}: augment= lists {listed}. List more, or leave n_views out.")


def check_inputs(views: Sequence[View], inputs: Inputs | None) -> None:
    """Raise a RecipeError where a view distorts colours and the pixels' encoding is not known."""
    if inputs is None and any(isinstance(step, Colour) for view in views for step in view.steps):
        raise RecipeError(
            "augment: colour distortion works on pixel intensities and needs to know how they are encoded; received no "
            "inputs=. Remedy: inputs='imagenet' or another name, or sita.Inputs(mean=…, std=…)."
        )


def _compose(entry: Any, random: np.random.Generator) -> View:
    """Make one view of a name, a callable, or a sequence of them applied one after the other."""
    parts = [entry] if isinstance(entry, str) or callable(entry) else list(entry)
    if not parts:
        raise RecipeError("augment: expected at least one step in every view; received an empty one.")
    steps: list[Step] = []
    names: list[str] = []
    for part in parts:
        if callable(part):
            steps.append(Custom(part))
            names.append(getattr(part, "__name__", type(part).__name__))
        elif part in SYMMETRIES:
            steps.extend(SYMMETRIES[part])
            names.append(part)
        elif part in _RANDOM:
            steps.append(_draw(part, random))
            names.append(part)
        elif part in PRESETS:
            raise RecipeError(f"augment: {part!r} is a whole set of views; give it alone, as augment={part!r}.")
        else:
            raise RecipeError(
                f"augment: expected {', '.join(map(repr, PRESETS))}, one of {', '.join(NAMES)}, or a callable on a "
                f"batch of images; received {part!r}.{suggestion(str(part), (*PRESETS, *NAMES))}"
            )
    return View("+".join(names), tuple(steps))


def _draw(name: str, random: np.random.Generator) -> Step:
    """Draw one random step. The ranges are the paper's."""
    if name == "rotate":
        return Rotate(float(random.uniform(0.0, 360.0)))
    if name == "blur":
        return Blur(float(random.uniform(0.1, 2.0)))
    brightness, contrast, saturation = (float(factor) for factor in random.uniform(0.6, 1.4, size=3))
    order = tuple(str(name) for name in random.permutation(["brightness", "contrast", "saturation"]))
    return Colour(brightness, contrast, saturation, order)


def _draw_paper_view(random: np.random.Generator, frame: Frame) -> View:
    """Draw a view of the paper's set for classification: all five, shuffled, the reflections by chance ½.

    Every draw is made whatever the frame, so that a square and an oblong image meet the same view but for the
    transposition, which only a square survives.
    """
    steps = {name: (_draw(name, random),) if name in _RANDOM else SYMMETRIES[name] for name in _PAPER}
    used = {name: name in _RANDOM or bool(random.random() < 0.5) for name in _PAPER}
    order = [str(name) for name in random.permutation(_PAPER)]
    kept = [name for name in order if used[name] and not (name == "transpose" and frame != "square")]
    return View("+".join(kept), tuple(step for name in kept for step in steps[name]))


def _draw_segmentation_view(random: np.random.Generator) -> View:
    """Draw a view of the paper's set for segmentation: a blur and a rotation of at most 10°, in random order."""
    steps: dict[str, Step] = {"blur": _draw("blur", random), "rotate": Rotate(float(random.uniform(-10.0, 10.0)))}
    order = [str(name) for name in random.permutation(list(steps))]
    return View("+".join(order), tuple(steps[name] for name in order))


@lru_cache(maxsize=16)
def rotation_taps(height: int, width: int, degrees: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the four source pixels of every pixel of a rotated image, and their bilinear weights.

    Indices count along the flattened image: int64 (4, height · width); weights are float32 of the same shape.
    """
    angle = math.radians(degrees)
    y, x = np.mgrid[:height, :width].astype(np.float64)
    y, x = y - (height - 1) / 2, x - (width - 1) / 2
    source_y = _mirror(math.cos(angle) * y + math.sin(angle) * x + (height - 1) / 2, height)
    source_x = _mirror(math.cos(angle) * x - math.sin(angle) * y + (width - 1) / 2, width)
    top = np.clip(np.floor(source_y), 0, max(height - 2, 0)).astype(np.int64)
    left = np.clip(np.floor(source_x), 0, max(width - 2, 0)).astype(np.int64)
    down, right = source_y - top, source_x - left
    corners = [
        (top, left, (1 - down) * (1 - right)),
        (top, np.minimum(left + 1, width - 1), (1 - down) * right),
        (np.minimum(top + 1, height - 1), left, down * (1 - right)),
        (np.minimum(top + 1, height - 1), np.minimum(left + 1, width - 1), down * right),
    ]
    indices = np.stack([(row * width + column).ravel() for row, column, _ in corners])
    weights = np.stack([weight.ravel() for _, _, weight in corners])
    return indices, weights.astype(np.float32)


@lru_cache(maxsize=16)
def blur_matrix(size: int, sigma: float) -> np.ndarray:
    """Return the float32 (size, size) matrix that blurs a line of pixels, the border mirrored."""
    radius = max(1, math.ceil(4 * sigma))
    offsets = np.arange(-radius, radius + 1)
    kernel = np.exp(-0.5 * (offsets / sigma) ** 2)
    kernel /= kernel.sum()
    matrix = np.zeros((size, size))
    lines = np.arange(size)
    for offset, weight in zip(offsets, kernel, strict=True):
        columns = _mirror((lines + offset).astype(np.float64), size).astype(np.int64)
        np.add.at(matrix, (lines, columns), weight)
    return matrix.astype(np.float32)


def _mirror(position: np.ndarray, size: int) -> np.ndarray:
    """Fold positions outside [0, size − 1] back by mirroring at the border pixels' centres."""
    if size == 1:
        return np.zeros_like(position)
    period = 2.0 * (size - 1)
    folded = np.mod(position, period)
    return np.asarray(np.minimum(folded, period - folded))
