"""The demo: a network trained on clean digits meets corrupted ones, one at a time, as it is and adapted."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from .digits import Digits, first, load_digits
from .digits_corruptions import CORRUPTIONS
from .files import cache_folder, replacing
from .progress import Progress, Silence

if TYPE_CHECKING:
    from pathlib import Path

    from .digits_torch import Classifier, DigitResNet, Training

SHOWN = ("source", "bn", "augbn", "ops", "ops_shared")
"""The recipes that are compared; the first is the network as it is."""

CLEAN = "clean"


@dataclass(frozen=True, eq=False)
class DemoResult:
    """Every answer that was given.

    `conditions` are "clean" and the names of the corruptions. `images` is (conditions, N, h, w), `labels` (N,),
    `answers` (conditions, recipes, N), `seconds` (recipes,), the median time that a recipe takes for one image.
    """

    conditions: tuple[str, ...]
    recipes: tuple[str, ...]
    images: np.ndarray
    labels: np.ndarray
    answers: np.ndarray
    seconds: np.ndarray

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


def run_demo(images: int = 60, seed: int = 0, progress: Progress | None = None) -> DemoResult:
    """Train, or fetch from the cache, and score every recipe on this many test digits under every corruption.

    The seed draws the network's beginnings and the corruptions. The same seed gives the same answers.
    """
    from . import digits_torch

    progress = progress or Silence()
    train, test = load_digits()
    shown = first(test, images)
    conditions = {CLEAN: shown.images}
    conditions |= {c.name: c.apply_all(shown.images, seed=seed) for c in CORRUPTIONS}
    with digits_torch.one_thread():
        network = trained_network(train, digits_torch.Training(seed=seed), progress)
        classifiers = {recipe: digits_torch.classifier(network, recipe) for recipe in SHOWN}
        pixels = np.stack(list(conditions.values()))
        answers, seconds = _score(pixels, list(classifiers.values()), progress)
    return DemoResult(tuple(conditions), SHOWN, pixels, shown.labels, answers, seconds)


def trained_network(digits: Digits, training: Training, progress: Progress) -> DigitResNet:
    """Return the network from the cache, or train it and put it there."""
    from . import digits_torch

    path = cache_folder() / f"digits-torch-{_fingerprint(digits, training)}.safetensors"
    if path.is_file():
        try:
            network = digits_torch.load(path, training)
        except (ValueError, OSError) as error:
            progress.say(f"The cached network cannot be used and is trained anew: {error}")
        else:
            progress.say(f"Network: from the cache, {path}")
            return network
    start = time.perf_counter()
    with progress.track("Training on clean digits", training.epochs) as advance:
        network = digits_torch.train(digits, training, advance)
    progress.say(f"Network: trained on {len(digits)} clean digits in {time.perf_counter() - start:.1f} s")
    _keep(network, path, progress)
    return network


def _keep(network: DigitResNet, path: Path, progress: Progress) -> None:
    """Put the network into the cache; without one the demo goes on, and trains again the next time."""
    from . import digits_torch

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            digits_torch.save(network, temporary)
    except OSError as error:
        progress.say(f"The network could not be cached: {error}")


def _fingerprint(digits: Digits, training: Training) -> str:
    """Name the network by all that decides its weights, so that a change of any trains a new one."""
    made_of = hashlib.sha256(json.dumps(asdict(training), sort_keys=True).encode())
    made_of.update(digits.images.tobytes() + digits.labels.tobytes())
    return made_of.hexdigest()[:16]


def _score(images: np.ndarray, classifiers: list[Classifier], progress: Progress) -> tuple[np.ndarray, np.ndarray]:
    """Return the answers (conditions, recipes, N) to images (conditions, N, h, w), and seconds an image (recipes,).

    The recipes take turns on every image, so that a slow moment of the machine hits them all.
    """
    conditions, count = images.shape[:2]
    answers = np.empty((conditions, len(classifiers), count), dtype=np.int64)
    seconds = np.empty(answers.shape)
    for classify in classifiers:
        classify(images[0, 0])  # the first call sets up what later ones find ready, and would be timed with it
    with progress.track("One digit at a time", conditions * count) as advance:
        for condition in range(conditions):
            for index in range(count):
                for recipe, classify in enumerate(classifiers):
                    start = time.perf_counter()
                    answers[condition, recipe, index] = classify(images[condition, index])
                    seconds[condition, recipe, index] = time.perf_counter() - start
                advance()
    return answers, np.asarray(np.median(seconds, axis=(0, 2)))
