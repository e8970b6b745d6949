"""The augmented views of an image: the available views, and what each computes.

Random values in a view (an angle, a color factor) are drawn once, from a seed, when the view is created. The same image
therefore always gives the same answer, in every framework, and a graph contains no random operations.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np

from .errors import InputError, RecipeError, suggestion
from .filters import blur, median, mirror, sharpen
from .inputs import ImageLayout, Inputs
from .ops import Array

SpatialKind: TypeAlias = Literal["square", "rectangle", "signal"]
"""The shape of the last two spatial axes. A signal has fewer than two, so only a caller's functions apply to it."""

Augment: TypeAlias = "str | Callable[[Array], Array] | Sequence[str | Callable[[Array], Array]]"

Step: TypeAlias = tuple[Any, ...]
"""A function of a batch of images and their layout that returns images of the same shape, and its other arguments."""


def spatial_kind(sizes: Sequence[int]) -> SpatialKind:
    """Return the kind of an input with these spatial sizes. The last two are height and width."""
    return "signal" if len(sizes) < 2 else "square" if sizes[-2] == sizes[-1] else "rectangle"


@dataclass(frozen=True)
class View:
    """A named sequence of steps. The view without steps is the image itself."""

    name: str
    steps: tuple[Step, ...] = ()

    @property
    def lossless(self) -> bool:
        """Whether the view only rearranges pixels."""
        return all(function in (flip, transpose) for function, *_ in self.steps)

    @property
    def moves_pixels(self) -> bool:
        """Whether the view moves pixels. Custom functions are assumed not to move them."""
        return any(function in (flip, transpose, rotate) for function, *_ in self.steps)

    def apply(self, x: Array, layout: ImageLayout) -> Array:
        """Return this view of every image of the batch x."""
        for function, *arguments in self.steps:
            x = function(x, layout, *arguments)
        return x


IMAGE = View("image")


def flip(x: Array, layout: ImageLayout, axis: Literal[0, -1]) -> Array:
    """Reverse the height (axis 0) or the width (axis −1)."""
    return layout.ops.flip(x, axis=layout.axes[axis])


def transpose(x: Array, layout: ImageLayout) -> Array:
    """Exchange height and width: the reflection in the main diagonal."""
    height, width = (x.shape[axis] for axis in layout.axes)
    if height != width:
        raise InputError(
            f"A quarter turn or transposition needs square images; received {height}×{width}. "
            "Try: views that keep the shape ('vflip', 'hflip', 'rot180')."
        )
    return layout.ops.swapaxes(x, *layout.axes)


def rotate(x: Array, layout: ImageLayout, degrees: float) -> Array:
    """Turn counter-clockwise about the center: bilinear, with the border mirrored (…2 1 0 1 2…)."""
    ops = layout.ops
    first, second = sorted(axis % len(x.shape) for axis in layout.axes)
    height, width, after = x.shape[first], x.shape[second], tuple(x.shape[second + 1 :])
    indices, weights = ops.as_constants(rotation_taps, height, width, degrees)
    flat = ops.reshape(x, (-1, *x.shape[1:first], height * width, *after))  # N may be open in a graph
    turned = 0.0
    for index, weight in zip(indices, weights.reshape(4, -1, *[1] * len(after)), strict=True):
        turned = turned + ops.take(flat, ops.indices(index, x), axis=first) * ops.constant(weight, x)
    return ops.reshape(turned, (-1, *x.shape[1:]))


def color(x: Array, layout: ImageLayout, *changes: tuple[str, float]) -> Array:
    """Change brightness, contrast and saturation by factors f, in this order, each clipped to the pixel range.

    On RGB intensities u in [0, 1] with luma l: u · f, f · u + (1 − f) · mean(l), and f · u + (1 − f) · l.
    """
    inputs, ops, channels = layout.inputs, layout.ops, int(x.shape[layout.channel])
    assert inputs is not None  # check_inputs
    if channels not in (1, 3) or {len(inputs.mean), len(inputs.std)} - {1, channels}:
        raise InputError(
            "Color distortion expects images of 1 or 3 channels, and inputs= with a mean and std for each channel, "
            f"or one for all; received {channels} channels, mean={inputs.mean}, std={inputs.std}."
        )
    rgb = (0.299, 0.587, 0.114) if channels == 3 else (1.0,)
    values = (inputs.mean, inputs.std, rgb if inputs.order == "rgb" else rgb[::-1])
    mean, std, luma = (layout.per_channel(each, x) for each in values)
    u = (x * std + mean) / inputs.white
    for name, factor in changes:
        if name == "brightness":
            u = u * factor
        else:
            gray = ops.sum(u * luma, axis=layout.channel, keepdims=True)
            gray = ops.mean(gray, axis=layout.axes, keepdims=True) if name == "contrast" else gray
            u = u * factor + gray * (1 - factor)
        u = ops.clip(u, 0.0, 1.0)
    return (u * inputs.white - mean) / std


def call_function(x: Array, layout: ImageLayout, function: Callable[[Array], Array]) -> Array:
    """Apply a caller's function to a batch of images. It must keep their shape and dtype."""
    made = function(x + 0)  # a copy: a function that works in place must not change the image itself
    if getattr(made, "shape", None) != x.shape or getattr(made, "dtype", None) != x.dtype:
        raise InputError(
            f"The augmentation {getattr(function, '__name__', function)} must return images of the shape and dtype "
            f"{tuple(x.shape)} {x.dtype}; received {getattr(made, 'shape', type(made))} {getattr(made, 'dtype', '')}."
        )
    return made


SYMMETRIES: dict[str, tuple[Step, ...]] = {
    "rot90": ((transpose,), (flip, 0)),
    "rot270": ((transpose,), (flip, -1)),
    "transpose": ((transpose,),),
    "vflip": ((flip, 0),),
    "hflip": ((flip, -1),),
    "rot180": ((flip, 0), (flip, -1)),
    "antitranspose": ((transpose,), (flip, 0), (flip, -1)),
}
"""The symmetries of the square other than the identity, in the order in which "lossless" uses them."""

FILTERS: dict[str, tuple[Step, ...]] = {"median": ((median,),), "sharpen": ((sharpen,),)}
"""The views that restore an image. Nothing in them is drawn."""

_FIXED = {**SYMMETRIES, **FILTERS}
_RANGES = {"rotate": (rotate, 0.0, 360.0), "tilt": (rotate, -10.0, 10.0), "blur": (blur, 0.1, 2.0)}
"""The steps with one random number, and the paper's range for it."""

_COLORS = ("brightness", "contrast", "saturation")
_RANDOM = (*_RANGES, "color")
_PAPER = {"paper": ("color", "rotate", "transpose", "hflip", "vflip"), "paper_segmentation": ("blur", "tilt")}
PRESETS = ("lossless", *_PAPER)
NAMES = (*_FIXED, *_RANDOM)
"""The names of single augmentations."""


def make_views(augment: Augment, count: int, seed: int, kind: SpatialKind) -> tuple[View, ...]:
    """Return `count` views of an image of this kind, or fewer if "lossless" has fewer for this kind."""
    random = np.random.default_rng(seed)
    entries: Sequence[Any] = augment[:count] if isinstance(augment, tuple) else [augment] * count
    if augment == "lossless":
        entries = [name for name in SYMMETRIES if kind == "square" or (transpose,) not in SYMMETRIES[name]][:count]
    views = tuple(_make_view(entry, random, kind) for entry in entries)
    if kind == "signal" and any(function is not call_function for view in views for function, *_ in view.steps):
        raise InputError(
            f"The views {augment!r} need images with a height and a width; this input has at most one spatial axis. "
            "Try: a recipe without views ('auto', 'bn'), or augment= with your own functions of a batch."
        )
    return views


def listed_views(augment: Augment) -> int | None:
    """Return the number of views that `augment` names; None for presets, random views and single functions."""
    return len(augment) if isinstance(augment, tuple) else 1 if augment in tuple(_FIXED) else None


def is_random(augment: Augment) -> bool:
    """Whether anything in the views is drawn from the seed."""
    return any(entry in (*_RANDOM, *_PAPER) for entry in (augment if isinstance(augment, tuple) else (augment,)))


def content_seed(image: np.ndarray, seed: int) -> int:
    """Return a seed for one image (…, channels), computed from the seed and the image's pixels."""
    values = np.ascontiguousarray(image, dtype=np.float32)
    digest = hashlib.sha256(values.tobytes() + repr((values.shape, seed)).encode())
    return int.from_bytes(digest.digest()[:8], "little")


def resolve_augment(augment: Any, count: int | None) -> Augment:
    """Return a preset, a name, a function, or a tuple of names and functions, after checking it."""
    several = isinstance(augment, Sequence) and not isinstance(augment, str)
    resolved = tuple(augment) if several else augment
    entries, allowed = (resolved, NAMES) if several else ((augment,), (*NAMES, *PRESETS))
    for entry in entries or (augment,):  # an empty sequence is an error
        if not callable(entry) and not (isinstance(entry, str) and entry in allowed):
            raise RecipeError(
                f"augment: expected one of {', '.join(NAMES)}, a function of a batch of images, a sequence of these, "
                f"or one of {', '.join(map(repr, PRESETS))}; received {entry!r:.80}.{suggestion(str(entry), allowed)}"
            )
    most = len(SYMMETRIES) if augment == "lossless" else listed_views(resolved)
    if count is not None and most is not None and count > most:
        raise RecipeError(f"n_views={count}: augment={augment!r} has {most} views. Try: fewer, or another augment=.")
    return resolved


def check_inputs(views: Sequence[View], inputs: Inputs | None) -> None:
    """Raise a RecipeError if a view distorts colors and the encoding of the pixels is unknown."""
    if inputs is None and any(function is color for view in views for function, *_ in view.steps):
        raise RecipeError(
            "augment: color distortion needs to know how pixels are encoded; received no inputs=. "
            "Try: inputs='imagenet' or another name, or sita.Inputs(mean=…, std=…)."
        )


def _make_view(entry: Any, random: np.random.Generator, kind: SpatialKind) -> View:
    """Make one view from a function, a name, or a set of the paper. A set's augmentations run in random order.

    Reflections of a set are used with probability ½. The random draws do not depend on the kind of image: square and
    rectangular images get the same view, except for the transposition, which needs a square.
    """
    if callable(entry):
        return View(getattr(entry, "__name__", str(entry)), ((call_function, entry),))
    if entry not in _PAPER:
        return View(entry, _steps(entry, random))
    steps = {name: _steps(name, random) for name in _PAPER[entry]}
    used = {name: name in _RANDOM or random.random() < 0.5 for name in steps}
    order = [name for name in random.permutation(list(steps)).tolist() if used[name]]
    order = [name for name in order if kind == "square" or name != "transpose"]
    return View("+".join(order), tuple(step for name in order for step in steps[name]))


def _steps(name: str, random: np.random.Generator) -> tuple[Step, ...]:
    """Return the steps of a name, and draw their random values."""
    if name in _FIXED:
        return _FIXED[name]
    if name in _RANGES:
        function, low, high = _RANGES[name]
        return ((function, random.uniform(low, high)),)
    factors = dict(zip(_COLORS, random.uniform(0.6, 1.4, size=3).tolist(), strict=True))
    return ((color, *((each, factors[each]) for each in random.permutation(_COLORS).tolist())),)


@lru_cache(maxsize=16)
def rotation_taps(height: int, width: int, degrees: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the four source pixels of every pixel of a rotated image, and their bilinear weights.

    Indices count along the flattened image: int64 (4, height · width); weights are float32 of the same shape.
    """

    def neighbors(position: np.ndarray, size: int) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
        """Return the two lines of pixels on either side of each position from the center, and their weights."""
        position = mirror(position + (size - 1) / 2, size)
        line = np.floor(position).astype(np.int64)
        return (line, 1 - (position - line)), (np.minimum(line + 1, size - 1), position - line)

    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    y, x = np.mgrid[:height, :width].astype(np.float64)
    y, x = y - (height - 1) / 2, x - (width - 1) / 2
    rows, columns = neighbors(cosine * y + sine * x, height), neighbors(cosine * x - sine * y, width)
    corners = [(row * width + column, p * q) for row, p in rows for column, q in columns]
    indices, weights = (np.stack([each.ravel() for each in part]) for part in zip(*corners, strict=True))
    return indices, weights.astype(np.float32)
