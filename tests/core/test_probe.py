"""What the probe tells from rounding, on functions of numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from sita_adapters.errors import ModelError
from sita_adapters.ops import NUMPY
from sita_adapters.probe import InputRecorder, probe_model
from sita_adapters.probe_inputs import perturb, random_like
from sita_adapters.recipe import RECIPES
from sita_adapters.state import Adaptation, ProbeResult, Settings

WEIGHTS = np.random.default_rng(0).normal(size=(192, 5))


def probe(model: Callable[[np.ndarray, InputRecorder], Any]) -> ProbeResult:
    """Probe a function of images and of what records the input of its layers."""
    images = np.random.default_rng(1).normal(size=(3, 3, 8, 8)).astype(np.float32)
    random, recorder = random_like(images), InputRecorder(NUMPY)

    def run(which: Sequence[int], *, perturbed: bool = False, fresh: bool = False) -> Any:
        rows = random[list(which)]
        return model(perturb(rows, 2**-23) if perturbed else rows, recorder)

    adaptation = Adaptation(RECIPES["auto"], Settings(), (), kinds=("square",))
    return probe_model(run, recorder, adaptation, images, image_rank=4, channel_axis=lambda: 1)


def scores(x: np.ndarray) -> np.ndarray:
    return x.reshape(len(x), -1) @ WEIGHTS


@pytest.mark.parametrize("mixes", [0.0, 0.01])
def test_a_large_constant_hides_no_column_that_depends_on_the_batch(mixes: float) -> None:
    def model(x: np.ndarray, _: InputRecorder) -> np.ndarray:
        y = scores(x)
        return np.concatenate([y, np.full((len(x), 1), 1e6), y[:, :1] + mixes * y[:, :1].max(0)], axis=1)

    if mixes:
        with pytest.raises(ModelError, match="influence each other"):
            probe(model)
    else:
        assert probe(model).layout.axes == (0,)


def padded(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x, x[:1]]) if len(x) % 2 else x


LAYERS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], int | None]] = {
    "as they are": (lambda x: x, 1),
    "folded": (lambda x: np.repeat(x, 4, axis=0), 4),
    "concatenated": (lambda x: np.concatenate([x, 2 * x]), None),
    "padded to an even number": (padded, None),
    "the batch's mean": (lambda x: x.mean(0, keepdims=True), None),
}


@pytest.mark.parametrize("case", LAYERS)
def test_a_layers_entries_per_row(case: str) -> None:
    arrange, entries = LAYERS[case]

    def model(x: np.ndarray, recorder: InputRecorder) -> np.ndarray:
        recorder.record("first", x)
        recorder.record("norm", x)
        recorder.record("norm", arrange(x))
        return scores(x)

    if entries is None:
        with pytest.raises(ModelError, match=r"layer norm .*consecutive entries.*Try: change that, or"):
            probe(model)
    else:
        found = probe(model)
        assert (found.entries_per_row, found.layer_calls) == ({"first": (1,), "norm": (1, entries)}, 3)
