"""observe and fewer rows at once under predict, fit and threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import keras_nets as nets
import numpy as np
import pytest

import sita_adapters as sita


def close(one: Any, other: Any, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(np.asarray(one), np.asarray(other), atol=tolerance, rtol=tolerance)


class TestObserve:
    """What the candidates decided."""

    @pytest.mark.parametrize("settings", [{}, pytest.param({"max_rows": 8}, marks=pytest.mark.slow)])
    def test_votes_are_recorded_however_the_model_is_run(self, settings: dict[str, Any]) -> None:
        model, x = nets.functional(), nets.images(5)
        adapted = sita.adapt(model, "ops", **settings)
        adapted.predict(x, verbose=0)  # compiled, before anybody watches
        with sita.observe(adapted) as seen:
            said = adapted.predict(x, batch_size=2, verbose=0)
            adapted(x)
            adapted.predict_on_batch(x)
        assert len(seen) == 15
        assert seen.entropies.shape == (15, 8)
        np.testing.assert_array_equal(seen.answers, np.tile(said.argmax(1), 3))
        close(seen.entropies[:5], seen.entropies[5:10])
        adapted.predict(x, verbose=0)
        assert len(seen) == 15
        assert not adapted.run_eagerly

    @pytest.mark.skipif(keras.backend.backend() == "jax", reason="Keras on JAX cannot run a plain model in two threads")
    def test_watching_does_not_disturb_other_threads(self) -> None:
        adapted, x = sita.adapt(nets.functional(softmax=False), "augbn"), nets.images(3)
        expected = adapted.predict(x, verbose=0)
        many = np.tile(x, (40, 1, 1, 1))
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(adapted.predict, many, batch_size=2, verbose=0)
            for _ in range(5):
                with sita.observe(adapted) as seen:
                    adapted(x)
                assert len(seen) == 3
            close(running.result(), np.tile(expected, (40, 1)))
