"""Exported files, run by the runtime of their format, answer as the adapted model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import exported_files
import numpy as np
import pytest
import reference
from reliable_rules import make_rule, statistics_of_small_network
from small_network import images

import sita_adapters as sita
from sita_adapters.errors import ExportError, ModelError, RecipeError

pytestmark = pytest.mark.slow_on("jax")

RELIABLE, _ = make_rule(statistics_of_small_network())
FEW = {"priors": (0.5, 0.75, 1.0), "top_k": 2}


@pytest.mark.parametrize(
    ("recipe", "fields"),
    [
        pytest.param("ops", FEW, marks=pytest.mark.slow_on("tensorflow", "jax")),
        ("auto", {}),
        ("restore", {}),
        ("shift", {"priors": RELIABLE}),
        pytest.param("auto", {"priors": (1.0, RELIABLE, 0.5)}, marks=pytest.mark.slow_on("tensorflow", "jax")),
    ],
    ids=["ops", "auto", "restore", "by reliability", "mixed by reliability"],
)
def test_a_file_answers_as_the_adapted_model_for_any_number_of_images(
    backend: Any, file: str, recipe: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    exported_files.need(file)
    adapted = sita.adapt(backend.model(), recipe, **fields)
    exported = sita.export(adapted, tmp_path / file, example=backend.to_images(images(2)))
    assert exported.path == tmp_path / file == Path(exported)
    assert exported.input_shape[0] is None
    assert sorted(exported.input_shape[1:]) == [3, 12, 12]
    assert str(exported).startswith(f"{tmp_path / file}: ")
    assert [path.name for path in tmp_path.iterdir()] == [file]
    for count in (1, 4):
        batch = images(count, seed=count)
        (scores,) = exported_files.run(exported.path, np.asarray(backend.to_images(batch)))
        expected = reference.softmax(backend.run(adapted, batch))
        np.testing.assert_allclose(reference.softmax(scores), expected, rtol=0, atol=1e-4)
        np.testing.assert_array_equal(scores.argmax(-1), expected.argmax(-1))


def test_what_cannot_be_exported_is_refused_before_anything_is_written(backend: Any, tmp_path: Path) -> None:
    model, path, example = backend.model(), tmp_path / backend.files[0], backend.to_images(images(2))
    with pytest.raises(ModelError):
        sita.export(model, path, example=example)
    with pytest.raises(ExportError, match=r"max_rows=3.*adapt without max_rows"):
        sita.export(sita.adapt(model, "augbn", max_rows=3), path, example=example)
    with pytest.raises(RecipeError, match=r"resample: A compiled or exported model"):
        sita.export(sita.adapt(model, "augbn", augment="rotate", resample=True), path, example=example)
    adapted = sita.adapt(model, "augbn")
    with pytest.raises(ExportError, match=r"\.onnx.*received.*model\.zip"):
        sita.export(adapted, tmp_path / "model.zip", example=example)
    with pytest.raises(ExportError, match=r"nowhere.*could not be written"):
        sita.export(adapted, tmp_path / "nowhere" / backend.files[0], example=example)
    assert not list(tmp_path.iterdir())
