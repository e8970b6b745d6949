"""The augmented views of an image that statistics are estimated from.

A View is a fixed sequence of steps. What is random in it (an angle, a color factor) is drawn once, from a seed,
when the view is made: the same image always gives the same answer, in every framework, and a graph that runs the
view holds no random operation. `view_steps` has the steps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from .errors import InputError, RecipeError, suggestion
from .inputs import Inputs
from .ops import Array
from .view_steps import Blur, Color, Custom, Flip, ImageLayout, Rotate, Step, Transpose

SpatialKind: TypeAlias = Literal["square", "rectangle", "signal", "vector"]
"""What the spatial axes of an input are. It decides which views fit: a square has seven symmetries beside the
identity, a rectangle three, a one-dimensional signal one, a vector (no spatial axes) none."""

Augmentation: TypeAlias = "str | Callable[[Array], Array]"
Augment: TypeAlias = "Augmentation | Sequence[Augmentation]"


def spatial_kind(sizes: Sequence[int]) -> SpatialKind:
    """Return the kind of an input with these spatial sizes, of which the last two are an image's."""
    if len(sizes) >= 2:
        return "square" if sizes[-2] == sizes[-1] else "rectangle"
    return "signal" if len(sizes) == 1 else "vector"


@dataclass(frozen=True)
class View:
    """A named sequence of steps; no steps at all is the image itself."""

    name: str
    steps: tuple[Step, ...] = ()

    @property
    def lossless(self) -> bool:
        """Whether pixels are only rearranged."""
        return all(step.lossless for step in self.steps)

    @property
    def moves_pixels(self) -> bool:
        """Whether pixels move."""
        return any(step.moves_pixels for step in self.steps)

    def apply(self, x: Array, layout: ImageLayout) -> Array:
        """Return this view of every image of the batch x."""
        for step in self.steps:
            x = step.apply(x, layout)
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

_FITTING: dict[SpatialKind, tuple[str, ...]] = {
    "square": tuple(SYMMETRIES),
    "rectangle": ("vflip", "hflip", "rot180"),
    "signal": ("hflip",),
    "vector": (),
}

_DIMENSIONS: dict[SpatialKind, int] = {"square": 2, "rectangle": 2, "signal": 1, "vector": 0}
_RANDOM = ("rotate", "blur", "color")
_PAPER = ("color", "rotate", "transpose", "hflip", "vflip")
PRESETS = ("lossless", "paper", "paper_segmentation")
NAMES = (*SYMMETRIES, *_RANDOM)
"""The single augmentations that a caller can name."""


def make_views(augment: Augment, count: int, seed: int, kind: SpatialKind) -> tuple[View, ...]:
    """Return the `count` views of an image of this kind; fewer if a preset has no more that fit it."""
    random = np.random.default_rng(seed)
    if augment == "lossless":
        views = [View(name, SYMMETRIES[name]) for name in _FITTING[kind][:count]]
    elif augment == "paper":
        views = [_draw_paper_view(random, kind) for _ in range(count)]
    elif augment == "paper_segmentation":
        views = [_draw_segmentation_view(random) for _ in range(count)]
    else:
        several = isinstance(augment, tuple | list)
        views = [_make_view(entry, random) for entry in (augment[:count] if several else [augment] * count)]  # type: ignore[index]
    fits = all(step.dimensions <= _DIMENSIONS[kind] for view in views for step in view.steps)
    if not fits or (count and not views):
        raise InputError(
            f"The views {augment!r} need images with a height and a width; this input is a {kind}. "
            "Try: a recipe without views ('auto', 'bn'), or augment= with your own functions of a batch."
        )
    return tuple(views)


def listed_views(augment: Augment) -> int | None:
    """Return the number of views that `augment` names; None for a preset, or if each view is drawn."""
    if isinstance(augment, str):
        return 1 if augment in SYMMETRIES else None
    return None if callable(augment) else len(augment)


def is_random(augment: Augment) -> bool:
    """Whether anything in the views is drawn from the seed."""
    entries = [augment] if isinstance(augment, str) or callable(augment) else augment
    return any(entry in (*_RANDOM, "paper", "paper_segmentation") for entry in entries)


def content_seed(image: np.ndarray, seed: int) -> int:
    """Return a seed for one image (…, channels) alone: it depends on the seed and on the values of its pixels."""
    values = np.ascontiguousarray(image, dtype=np.float32)
    digest = hashlib.sha256(values.tobytes() + repr((values.shape, seed)).encode())
    return int.from_bytes(digest.digest()[:8], "little")


def resolve_augment(augment: Any, count: int | None) -> Augment:
    """Return a preset, a name, a function, or a tuple of names and functions, after checking it."""
    several = isinstance(augment, Sequence) and not isinstance(augment, str)
    if not several and augment in PRESETS:
        listed = len(SYMMETRIES) if augment == "lossless" else None
    else:
        resolved = tuple(augment) if several else (augment,)
        if not resolved:
            raise RecipeError("augment: expected at least one augmentation; received an empty sequence.")
        for entry in resolved:
            _make_view(entry, np.random.default_rng(0))
        augment = resolved if several else augment
        listed = listed_views(augment)
    if count is not None and listed is not None and count > listed:
        raise RecipeError(f"n_views={count}: augment={augment!r} has {listed} views. Try: fewer, or another augment=.")
    return augment  # type: ignore[no-any-return]


def check_inputs(views: Sequence[View], inputs: Inputs | None) -> None:
    """Raise a RecipeError where a view distorts colors and the pixels' encoding is not known."""
    if inputs is None and any(isinstance(step, Color) for view in views for step in view.steps):
        raise RecipeError(
            "augment: color distortion works on pixel intensities and needs to know how they are encoded; received no "
            "inputs=. Try: inputs='imagenet' or another name, or sita.Inputs(mean=…, std=…)."
        )


def _make_view(entry: Any, random: np.random.Generator) -> View:
    """Make one view of a name or a function."""
    if callable(entry):
        return View(getattr(entry, "__name__", str(entry)), (Custom(entry),))
    if isinstance(entry, str) and entry in NAMES:
        return View(entry, SYMMETRIES[entry] if entry in SYMMETRIES else (_draw(entry, random),))
    raise RecipeError(
        f"augment: expected one of {', '.join(NAMES)}, a function of a batch of images, a sequence of these, or one of "
        f"{', '.join(map(repr, PRESETS))}; received {entry!r:.80}.{suggestion(str(entry), NAMES)}"
    )


def _draw(name: str, random: np.random.Generator) -> Step:
    """Draw one random step. The ranges are the paper's."""
    if name == "rotate":
        return Rotate(float(random.uniform(0.0, 360.0)))
    if name == "blur":
        return Blur(float(random.uniform(0.1, 2.0)))
    brightness, contrast, saturation = (float(factor) for factor in random.uniform(0.6, 1.4, size=3))
    order = tuple(str(name) for name in random.permutation(["brightness", "contrast", "saturation"]))
    return Color(brightness, contrast, saturation, order)


def _draw_paper_view(random: np.random.Generator, kind: SpatialKind) -> View:
    """Draw a view of the paper's set for classification: all five, shuffled, the reflections with probability ½.

    Every draw is made for every kind: a square and a rectangular image get the same view except for the transposition,
    which only a square allows.
    """
    steps = {name: (_draw(name, random),) if name in _RANDOM else SYMMETRIES[name] for name in _PAPER}
    used = {name: name in _RANDOM or bool(random.random() < 0.5) for name in _PAPER}
    order = [str(name) for name in random.permutation(_PAPER)]
    kept = [name for name in order if used[name] and not (name == "transpose" and kind != "square")]
    return View("+".join(kept), tuple(step for name in kept for step in steps[name]))


def _draw_segmentation_view(random: np.random.Generator) -> View:
    """Draw a view of the paper's set for segmentation: a blur and a rotation of at most 10°, in random order."""
    steps: dict[str, Step] = {"blur": _draw("blur", random), "rotate": Rotate(float(random.uniform(-10.0, 10.0)))}
    order = [str(name) for name in random.permutation(list(steps))]
    return View("+".join(order), tuple(steps[name] for name in order))
