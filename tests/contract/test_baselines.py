"""TENT, MEMO and MixNorm on the small network: in every framework the outputs of a direct computation in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from small_network import images

torch = pytest.importorskip("torch")

from direct_baselines import DIRECT, INPUTS  # noqa: E402

from sita_workbench.baselines import BASELINES  # noqa: E402
from sita_workbench.baselines.settings import MemoSettings, MixNormSettings, TentSettings  # noqa: E402
from sita_workbench.models.loaded import LoadedModel  # noqa: E402

METHODS = ("tent", "memo", "mixnorm")


def prepare(backend: Any, name: str, settings: Any = None, **options: Any) -> Any:
    prepared = BASELINES[name].prepare(LoadedModel("small", backend.model(**options), INPUTS))
    prepared.settings = settings
    return prepared


SLOW = pytest.mark.slow_on("jax")


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        pytest.param("tent", TentSettings(steps=1, lr=1e-2), id="tent", marks=SLOW),
        pytest.param("tent", TentSettings(steps=3, lr=1e-2, betas=(0.8, 0.9)), id="tent, 3 steps"),
        pytest.param("memo", MemoSettings(4, "sgd", 0.02), id="memo"),
        pytest.param("memo", MemoSettings(4, "sgd", 0.02, prior=None), id="memo, source statistics", marks=SLOW),
        pytest.param("memo", MemoSettings(4, "adamw", 1e-3, 0.1, steps=2), id="memo, AdamW", marks=SLOW),
        pytest.param("mixnorm", MixNormSettings(views=2, m=0.4, tau=0.1, scale=(0.3, 1.0)), id="mixnorm"),
    ],
)
def test_a_method_equals_its_direct_computation(backend: Any, name: str, settings: Any) -> None:
    batch = images(2)
    expected = torch.cat([DIRECT[name](image, settings) for image in batch]).detach().numpy()
    plain = backend.run(backend.model(), batch)
    assert np.abs(expected - plain).max() > 0.05  # it does something
    given = backend.run(prepare(backend, name, settings), batch)
    np.testing.assert_allclose(given, expected, rtol=0, atol=3e-5)


@pytest.mark.parametrize("name", METHODS)
def test_images_are_independent_and_the_source_is_not_touched(backend: Any, name: str) -> None:
    model, batch = backend.model(), images(3)
    plain, before, values = backend.run(model, batch), backend.fingerprint(model), backend.values(model)
    prepared = BASELINES[name].prepare(LoadedModel("small", model, INPUTS))
    together = backend.run(prepared, batch)
    for index in (2, 0, 1):
        np.testing.assert_array_equal(backend.run(prepared, batch[index : index + 1]), together[index : index + 1])
    assert backend.fingerprint(model) == before
    for value, was in zip(backend.values(model), values, strict=True):
        np.testing.assert_array_equal(value, was)
    np.testing.assert_array_equal(backend.run(model, batch), plain)


@SLOW
@pytest.mark.parametrize("name", METHODS)
def test_later_changes_to_the_source_are_not_seen(backend: Any, name: str) -> None:
    model, batch = backend.model(), images(1)
    prepared = BASELINES[name].prepare(LoadedModel("small", model, INPUTS))
    backend.change_weights(model)
    given = backend.run(prepared, batch)
    np.testing.assert_array_equal(backend.run(prepare(backend, name), batch), given)
    assert np.abs(given - backend.run(model, batch)).max() > 1e-2
