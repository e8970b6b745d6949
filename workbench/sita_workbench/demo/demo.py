"""The demo: a network trained on clean digits classifies corrupted ones, with and without adaptation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from sita_adapters.calibrate import calibrate
from sita_adapters.plan import make_plan
from sita_adapters.recipe import RECIPES

from ..models.loaded import LoadedModel
from ..progress import Progress
from ..timing import one_thread, time_in_turns
from .digits import SIZE, encode, load_digits
from .digits_corruptions import CORRUPTIONS

SHOWN = ("source", "bn", "calibrated", "auto", "restore", "ops")
"""The recipes that are compared; the first is the unadapted network, and `calibrated` is measured on clean digits."""

_CALIBRATION_IMAGES = 128

_BATCH = 100
_ROUNDS = 15


@dataclass(frozen=True, eq=False)
class DemoResult:
    """All predictions of the demo.

    `conditions` are "clean" and the names of the corruptions. `images` is (conditions, N, h, w), `labels` (N,),
    `answers` (conditions, recipes, N), `seconds` (recipes,), the median time of one image.
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
        """Percent right over all corruptions, without the clean digits, (recipes,)."""
        return np.asarray(self.accuracies[1:].mean(axis=0))

    def mean(self, recipe: str) -> float:
        """Percent right over all corruptions by this recipe."""
        return float(self.means[self.recipes.index(recipe)])

    def outcomes(self) -> dict[str, np.ndarray]:
        """Return which corrupted digits (corruptions, N) source and auto get right or wrong, as four outcomes."""
        source, auto = (self.answers[1:, self.recipes.index(name)] == self.labels for name in ("source", "auto"))
        return {
            "only auto right": auto & ~source,
            "only source right": source & ~auto,
            "both right": source & auto,
            "both wrong": ~source & ~auto,
        }


def row_count(recipe: str) -> int:
    """Return how many rows an image becomes under a recipe."""
    return 1 if recipe == "calibrated" else make_plan(RECIPES[recipe]).rows


def run_demo(loaded: LoadedModel, count: int = 300, progress: Progress | None = None) -> DemoResult:
    """Run every recipe on the first `count` test digits, clean and under every corruption."""
    training, test = load_digits()
    encoded = loaded.arrange(encode(training.images[:_CALIBRATION_IMAGES]))
    recipes = {name: RECIPES[name] for name in SHOWN if name in RECIPES} | {
        "calibrated": calibrate(loaded.model, encoded)
    }
    clean, labels = test.images[:count], test.labels[:count]
    conditions = {"clean": clean} | {each.name: each.apply_all(clean) for each in CORRUPTIONS}
    pixels = np.stack(list(conditions.values()))
    inputs = encode(pixels.reshape(-1, SIZE, SIZE))
    calls = {name: partial(loaded.run, loaded.adapt(recipes[name])) for name in SHOWN}
    answers = np.empty((len(SHOWN), len(inputs)), dtype=np.int64)
    with one_thread(), (progress or Progress()).track("Reading digits", answers.size) as advance:
        for start in range(0, len(inputs), _BATCH):  # on one thread: the images are too small to share
            batch = inputs[start : start + _BATCH]
            for index, (recipe, call) in enumerate(calls.items()):
                answers[index, start : start + _BATCH] = call(batch).argmax(axis=1)
                advance(len(batch), f"Reading digits, {recipe}")
        timed = {recipe: partial(call, inputs[:1]) for recipe, call in calls.items()}
        taken = time_in_turns(timed, _ROUNDS, lambda name, turn: None)
    seconds = np.array([np.median(taken[recipe]) for recipe in SHOWN])
    answers = answers.reshape(len(SHOWN), *pixels.shape[:2]).swapaxes(0, 1)
    framework = "PyTorch" if loaded.framework == "torch" else loaded.framework
    return DemoResult(tuple(conditions), SHOWN, pixels, labels, answers, seconds, framework)
