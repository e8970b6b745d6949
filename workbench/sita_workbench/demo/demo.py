"""The demo: a network trained on clean digits reads corrupted ones, one at a time, unadapted and adapted."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import numpy as np

from ..files import write_atomically
from ..progress import NoProgress, Progress
from .digits import SIZE, Digits, first, load_digits
from .digits_corruptions import CORRUPTIONS

SHOWN = ("source", "bn", "augbn", "auto", "ops")
"""The recipes that are compared; the first is the unadapted network."""

CLEAN = "clean"

Classifier: TypeAlias = Callable[[np.ndarray], int]
"""Takes one image (h, w) with values from 0 to 1 and returns its label."""

FrameworkName: TypeAlias = Literal["torch", "keras"]

Network = TypeVar("Network")


@dataclass(frozen=True)
class Training:
    """The settings that decide the network's weights. A change of the code increases `revision`."""

    seed: int = 0
    widths: tuple[int, ...] = (16, 32, 64)
    epochs: int = 20
    batch_size: int = 64
    learning_rate: float = 0.1
    weight_decay: float = 5e-4
    shift: int = SIZE // 8
    revision: int = 1


class Framework(Protocol[Network]):
    """What the demo needs of a framework; the modules digits_torch and digits_keras implement it."""

    @property
    def NAME(self) -> str:
        """The name in file names."""

    @property
    def LABEL(self) -> str:
        """The name in texts."""

    def train(self, digits: Digits, training: Training, advance: Callable[[], None]) -> Network:
        """Return a network trained on these digits; `advance` is called after every epoch."""

    def save(self, network: Network, path: Path) -> None:
        """Write the weights to a safetensors file."""

    def load(self, path: Path, training: Training) -> Network:
        """Return the saved network; raise ValueError where the file holds anything else."""

    def classifier(self, network: Network, recipe: str) -> Classifier:
        """Return a function that classifies one image with this recipe."""

    def on_pictures(self, network: Network) -> Network:
        """Return a network that takes pictures, RGB from −1 to 1, in place of grey images."""

    def one_thread(self) -> AbstractContextManager[None]:
        """Compute on one thread inside the context, where possible: the images are too small to share."""


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
    `answers` (conditions, recipes, N), `seconds` (recipes,), the median time per image. `framework` is its `LABEL`.
    """

    conditions: tuple[str, ...]
    recipes: tuple[str, ...]
    images: np.ndarray
    labels: np.ndarray
    answers: np.ndarray
    seconds: np.ndarray
    framework: str

    @property
    def accuracies(self) -> np.ndarray:
        """Percent right, (conditions, recipes)."""
        return np.asarray(100.0 * (self.answers == self.labels).mean(axis=2))

    @property
    def means(self) -> np.ndarray:
        """Percent right over all corruptions, the clean digits left out, (recipes,)."""
        corrupted = [condition != CLEAN for condition in self.conditions]
        return np.asarray(self.accuracies[corrupted].mean(axis=0))

    def mean(self, recipe: str) -> float:
        """Percent right over all corruptions by this recipe."""
        return float(self.means[self.recipes.index(recipe)])


def run_demo(
    images: int = 60, seed: int = 0, progress: Progress | None = None, framework: Framework[Any] | None = None
) -> DemoResult:
    """Train the network or load it from the cache, and run every recipe on this many test digits.

    The seed draws the initial weights and the corruptions. The same seed gives the same answers.
    """
    framework = framework or load_framework("torch")
    progress = progress or NoProgress()
    train, test = load_digits()
    shown = first(test, images)
    conditions = {CLEAN: shown.images}
    conditions |= {c.name: c.apply_all(shown.images, seed=seed) for c in CORRUPTIONS}
    with framework.one_thread():
        network = trained_network(framework, train, Training(seed=seed), progress)
        classifiers = [framework.classifier(network, recipe) for recipe in SHOWN]
        pixels = np.stack(list(conditions.values()))
        answers, seconds = _score(pixels, classifiers, progress)
    return DemoResult(tuple(conditions), SHOWN, pixels, shown.labels, answers, seconds, framework.LABEL)


def trained_network(framework: Framework[Network], digits: Digits, training: Training, progress: Progress) -> Network:
    """Return the network from the cache, or train it and store it there."""
    from platformdirs import user_cache_path

    folder = user_cache_path("sita-adapters", appauthor=False)
    path = folder / f"digits-{framework.NAME}-{_fingerprint(digits, training)}.safetensors"
    if path.is_file():
        try:
            network = framework.load(path, training)
        except (ValueError, OSError) as error:
            progress.say(f"The cached network cannot be used and is trained again: {error}")
        else:
            progress.say(f"Network: from the cache, {path}")
            return network
    start = time.perf_counter()
    with progress.track("Training on clean digits", training.epochs) as advance:
        network = framework.train(digits, training, advance)
    progress.say(f"Network: trained on {len(digits)} clean digits in {time.perf_counter() - start:.1f} s")
    _store(framework, network, path, progress)
    return network


def _store(framework: Framework[Network], network: Network, path: Path, progress: Progress) -> None:
    """Store the network in the cache; where that fails, the demo trains again the next time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with write_atomically(path) as temporary:
            framework.save(network, temporary)
    except OSError as error:
        progress.say(f"The network could not be cached: {error}")


def _fingerprint(digits: Digits, training: Training) -> str:
    """Return a hash of everything that decides the weights, so that any change trains a new network."""
    made_of = hashlib.sha256(json.dumps(asdict(training), sort_keys=True).encode())
    made_of.update(digits.images.tobytes() + digits.labels.tobytes())
    return made_of.hexdigest()[:16]


def _score(images: np.ndarray, classifiers: list[Classifier], progress: Progress) -> tuple[np.ndarray, np.ndarray]:
    """Return the answers (conditions, recipes, N) to images (conditions, N, h, w), and seconds per image (recipes,).

    The recipes take turns on every image, so that a slow moment of the machine affects them all.
    """
    conditions, count = images.shape[:2]
    answers = np.empty((conditions, len(classifiers), count), dtype=np.int64)
    seconds = np.empty(answers.shape)
    for classify in classifiers:
        classify(images[0, 0])  # the first call compiles and allocates, and is not timed
    with progress.track("One digit at a time", conditions * count) as advance:
        for condition in range(conditions):
            for index in range(count):
                for recipe, classify in enumerate(classifiers):
                    start = time.perf_counter()
                    answers[condition, recipe, index] = classify(images[condition, index])
                    seconds[condition, recipe, index] = time.perf_counter() - start
                advance()
    return answers, np.asarray(np.median(seconds, axis=(0, 2)))
