"""The demo: a network trained on clean digits reads corrupted ones, unadapted and adapted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import numpy as np

from sita_adapters.plan import make_plan
from sita_adapters.recipe import RECIPES

from ..progress import NoProgress, Progress
from ..timing import one_thread, time_in_turns
from .digits import first, load_digits
from .digits_corruptions import CORRUPTIONS

SHOWN = ("source", "bn", "auto", "auto3", "ops")
"""The recipes that are compared; the first is the unadapted network."""

CLEAN = "clean"
WEIGHTS = Path(__file__).with_name("digits.safetensors")
"""The network's weights, trained by benchmarks/train_digits.py. Stored, since every machine would train another."""

WIDTHS = (16, 32, 64)
_BATCH = 100
_ROUNDS = 15

Classifier: TypeAlias = Callable[[np.ndarray], np.ndarray]
"""Takes images (N, h, w) with values from 0 to 1 and returns their labels (N,)."""

FrameworkName: TypeAlias = Literal["torch", "keras"]

Network = TypeVar("Network")


class Framework(Protocol[Network]):
    """What the demo needs of a framework; the modules digits_torch and digits_keras implement it."""

    @property
    def LABEL(self) -> str:
        """The name in texts."""

    def load(self) -> Network:
        """Return the trained network."""

    def classifier(self, network: Network, recipe: str) -> Classifier:
        """Return a function that classifies images with this recipe."""

    def on_pictures(self, network: Network) -> Network:
        """Return a network that takes pictures, RGB from −1 to 1, instead of gray images."""


def load_framework(name: FrameworkName) -> Framework[Any]:
    """Import the framework, and the demo's network in it."""
    if name == "keras":
        from . import digits_keras

        return digits_keras
    from . import digits_torch

    return digits_torch


@dataclass(frozen=True, eq=False)
class DemoResult:
    """All predictions of the demo.

    `conditions` are "clean" and the names of the corruptions. `images` is (conditions, N, h, w), `labels` (N,),
    `answers` (conditions, recipes, N), `seconds` (recipes,), the median time of one image. `framework` is its `LABEL`.
    """

    conditions: tuple[str, ...]
    recipes: tuple[str, ...]
    images: np.ndarray
    labels: np.ndarray
    answers: np.ndarray
    seconds: np.ndarray
    framework: str

    @property
    def right(self) -> np.ndarray:
        """Whether each answer is right, (conditions, recipes, N)."""
        return np.asarray(self.answers == self.labels)

    @property
    def corrupted(self) -> list[int]:
        """The conditions other than the clean digits."""
        return [index for index, condition in enumerate(self.conditions) if condition != CLEAN]

    @property
    def accuracies(self) -> np.ndarray:
        """Percent right, (conditions, recipes)."""
        return np.asarray(100.0 * self.right.mean(axis=2))

    @property
    def means(self) -> np.ndarray:
        """Percent right over all corruptions, without the clean digits, (recipes,)."""
        return np.asarray(self.accuracies[self.corrupted].mean(axis=0))

    def mean(self, recipe: str) -> float:
        """Percent right over all corruptions by this recipe."""
        return float(self.means[self.recipes.index(recipe)])

    def outcomes(self) -> dict[str, np.ndarray]:
        """Return which corrupted digits (corruptions, N) source and auto read right or wrong: the four outcomes."""
        source, auto = (self.right[self.corrupted, self.recipes.index(name)] for name in ("source", "auto"))
        return {
            "only auto right": auto & ~source,
            "only source right": source & ~auto,
            "both right": source & auto,
            "both wrong": ~source & ~auto,
        }


def row_count(recipe: str) -> int:
    """Return how many rows an image becomes under a recipe."""
    return make_plan(RECIPES[recipe]).rows


def run_demo(
    images: int = 300, seed: int = 0, progress: Progress | None = None, framework: Framework[Any] | None = None
) -> DemoResult:
    """Run every recipe on this many test digits under every corruption. The seed draws the corruptions."""
    framework = framework or load_framework("torch")
    progress = progress or NoProgress()
    shown = first(load_digits()[1], images)
    conditions = {CLEAN: shown.images}
    conditions |= {c.name: c.apply_all(shown.images, seed=seed) for c in CORRUPTIONS}
    network = framework.load()
    classifiers = {recipe: framework.classifier(network, recipe) for recipe in SHOWN}
    pixels = np.stack(list(conditions.values()))
    with one_thread():  # the images are too small to share
        answers = _read(pixels, classifiers, progress)
        calls = {recipe: partial(classify, pixels[0, :1]) for recipe, classify in classifiers.items()}
        taken = time_in_turns(calls, _ROUNDS, lambda name, turn: None)
    seconds = np.array([np.median(taken[recipe]) for recipe in SHOWN])
    return DemoResult(tuple(conditions), SHOWN, pixels, shown.labels, answers, seconds, framework.LABEL)


def _read(pixels: np.ndarray, classifiers: Mapping[str, Classifier], progress: Progress) -> np.ndarray:
    """Return the answers (conditions, recipes, N) to images (conditions, N, h, w)."""
    conditions, images = pixels.shape[:2]
    answers = np.empty((conditions, len(classifiers), images), dtype=np.int64)
    with progress.track("Reading digits", answers.size) as advance:
        for condition in range(conditions):
            for start in range(0, images, _BATCH):
                part = slice(start, start + _BATCH)
                for place, (recipe, classify) in enumerate(classifiers.items()):
                    answers[condition, place, part] = classify(pixels[condition, part])
                    advance(len(pixels[condition, part]), f"Reading digits, {recipe}")
    return answers
