"""Exported Keras models, run by the runtimes of their formats, against the adapted model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import exported_files
import keras
import keras_nets as nets
import numpy as np
import pytest

import sita_adapters as sita
from sita_adapters.errors import ExportError

ENGINE = keras.backend.backend()
ABLE = {"tensorflow": ("model.onnx", "model.tflite", "model"), "jax": ("model",), "torch": ("model.onnx",)}[ENGINE]
LENGTHY = ENGINE == "jax"  # ten seconds a file
FIRST = "model.tflite" if ENGINE == "tensorflow" else ABLE[0]  # needs no other package


def softmax(scores: np.ndarray) -> np.ndarray:
    raised = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(raised / raised.sum(-1, keepdims=True))


def assert_same(path: Path, adapted: Any, *counts: int, shape: tuple[int, int] = (16, 16)) -> None:
    for count in counts:
        batch = nets.images(count, *shape, seed=count)
        expected, answered = softmax(adapted.predict_on_batch(batch)), softmax(exported_files.run(path, batch)[0])
        np.testing.assert_allclose(answered, expected, atol=1e-4)
        np.testing.assert_array_equal(answered.argmax(-1), expected.argmax(-1))


@pytest.mark.skipif(LENGTHY, reason="the same code, and ten seconds a file")
@pytest.mark.parametrize("name", [FIRST, *(pytest.param(n, marks=pytest.mark.slow) for n in ABLE if n != FIRST)])
def test_outputs_beside_the_scores_are_those_of_the_most_certain_candidate(name: str, tmp_path: Path) -> None:
    exported_files.need(name)
    image = keras.Input((16, 16, 3))
    x = keras.layers.BatchNormalization()(keras.layers.Conv2D(6, 3)(image))
    features = keras.layers.GlobalAveragePooling2D()(keras.layers.ReLU()(x))
    both = nets.settle(keras.Model(image, {"scores": keras.layers.Dense(4)(features), "features": features}))
    adapted, batch = sita.adapt(both, "ops", priors=(0.5, 1.0), top_k=2, output="scores"), nets.images(3)
    found = exported_files.run_named(sita.export(adapted, tmp_path / name).path, batch)
    expected = adapted.predict_on_batch(batch)
    assert set(found) == set(expected)
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, atol=1e-5)


def dense() -> keras.Model:
    """A label for every pixel, of images of any size."""
    layers = keras.layers
    stack = [keras.Input((None, None, 3)), layers.Conv2D(6, 3, padding="same"), layers.BatchNormalization()]
    return nets.settle(keras.Sequential([*stack, layers.ReLU(), layers.Conv2D(4, 1)]))


@pytest.mark.skipif(LENGTHY, reason="the same code, and ten seconds a file")
@pytest.mark.parametrize("name", [FIRST])
def test_open_sizes_are_the_examples(name: str, tmp_path: Path) -> None:
    exported_files.need(name)
    adapted = sita.adapt(dense(), "augbn", task="segmentation")
    with pytest.raises(ExportError, match=r"images of any size.*example=images"):
        sita.export(adapted, tmp_path / name)
    assert not list(tmp_path.iterdir())
    exported = sita.export(adapted, tmp_path / name, example=nets.images(1, 12, 20))
    assert exported.input_shape == (None, 12, 20, 3)
    assert_same(exported.path, adapted, 1, 3, shape=(12, 20))


@pytest.mark.parametrize("name", sorted({"model.onnx", "model.tflite", "model"} - set(ABLE)))
def test_what_this_backend_cannot_write_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=f"Keras on {ENGINE} cannot export to .* can. Try: KERAS_BACKEND="):
        sita.export(sita.adapt(nets.sequential(), "augbn"), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_exported_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    adapted, name = sita.adapt(nets.sequential(), "augbn"), FIRST
    with pytest.raises(ExportError, match=r"\.onnx, \.tflite, \.litert, no ending .* for a keras"):
        sita.export(adapted, tmp_path / "model.pt2")
    with pytest.raises(ExportError, match=r"expected a batch .*\(None, 16, 16, 3\); received shape \(2, 8"):
        sita.export(adapted, tmp_path / name, example=nets.images(2, 8, 8))
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(ENGINE != "tensorflow", reason="JAX does it alike, but takes its time; torch writes none")
def test_only_an_empty_folder_is_replaced(tmp_path: Path) -> None:
    adapted, folder = sita.adapt(nets.sequential(), "augbn"), tmp_path / "model"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(ExportError, match="is already a folder"):
        sita.export(adapted, folder)
    assert (folder / "notes.txt").read_text() == "mine"
    (folder / "notes.txt").unlink()
    sita.export(adapted, folder)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
