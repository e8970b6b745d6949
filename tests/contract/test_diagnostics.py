"""Files exported with diagnostics return what `observe` records, and the source model's scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import exported_files
import numpy as np
import pytest
from reliable_rules import make_rule, statistics_of_small_network
from small_network import images

import sita_adapters as sita

pytestmark = pytest.mark.slow_on("tensorflow", "jax")

OPS = sita.Recipe(priors=(0.5, 0.75, 1.0), top_k=2)
RULES = sita.Recipe(priors=(1.0, sita.ByShift(strength=0.9, half_shift=0.3, half_area=0.3)), n_views=0)
RELIABLE = sita.Recipe(priors=(1.0, make_rule(statistics_of_small_network())[0]), n_views=0, combine="mix")


def check_file(backend: Any, file: str, folder: Path, recipe: sita.Recipe, **settings: Any) -> dict[str, np.ndarray]:
    """Export, run the file on other images, compare with `observe` and the plain model, and return its outputs."""
    exported_files.need(file)
    model, batch = backend.model(**settings), images(5, seed=10)
    adapted = sita.adapt(model, recipe)
    path = sita.export(adapted, folder / file, example=backend.to_images(images(2)), diagnostics=True).path
    said = exported_files.run_named(path, np.asarray(backend.to_images(batch)))
    with sita.observe(adapted) as seen:
        backend.run(adapted, batch)
    assert np.diff(np.sort(seen.entropies, axis=1), axis=1).min(initial=1.0) > 1e-4  # rounding decides nothing
    np.testing.assert_allclose(said["prior"], seen.priors, atol=1e-6)
    np.testing.assert_allclose(said["entropy"], seen.entropies.min(axis=1), atol=1e-5)
    if 1.0 in seen.candidates:
        source = np.moveaxis(said["source"], 1, -1) if backend.name == "torch" else said["source"]
        np.testing.assert_allclose(source, backend.run(model, batch), atol=1e-4)
    else:
        assert "source" not in said
    return said


@pytest.mark.slow_on
def test_a_file_says_what_observe_says(backend: Any, file: str, tmp_path: Path) -> None:
    said = check_file(backend, file, tmp_path, OPS)
    assert said.keys() == {"scores", "prior", "entropy", "source"}
    assert said["prior"].shape == said["entropy"].shape == (5,)
    assert len(set(said["prior"].tolist())) > 1


@pytest.mark.parametrize("recipe", [sita.RECIPES["auto"], RELIABLE], ids=["by shift", "by reliability"])
def test_a_file_computes_the_mean_of_what_a_rule_sets(
    backend: Any, file: str, recipe: sita.Recipe, tmp_path: Path
) -> None:
    said = check_file(backend, file, tmp_path, recipe)
    assert len(set(said["prior"].tolist())) > 2


def test_one_candidate_has_its_prior_for_every_image(backend: Any, tmp_path: Path) -> None:
    said = check_file(backend, backend.files[0], tmp_path, sita.Recipe(priors=0.8, n_views=1))
    np.testing.assert_allclose(said["prior"], np.full(5, 0.8), atol=1e-6)
    assert said.keys() == {"scores", "prior", "entropy"}


@pytest.mark.parametrize("recipe", [OPS, RULES], ids=["ops", "rules"])
def test_every_pixel_has_diagnostics(backend: Any, recipe: sita.Recipe, tmp_path: Path) -> None:
    exported_files.need(backend.files[0])
    model = backend.model(dense=True)
    adapted = sita.adapt(model, recipe, task="segmentation")
    example = backend.to_images(images(2))
    path = sita.export(adapted, tmp_path / backend.files[0], example=example, diagnostics=True).path
    batch = images(2, seed=3)
    said = exported_files.run_named(path, np.asarray(backend.to_images(batch)))
    with sita.observe(adapted) as seen:
        backend.run(adapted, batch)
    first, second = np.sort(seen.entropies, axis=1)[:, :2].swapaxes(0, 1)
    clear = second - first > 1e-4
    assert said["prior"].shape == said["entropy"].shape == (2, 12, 12)
    assert clear.mean() > 0.9
    np.testing.assert_allclose(said["prior"][clear], seen.priors[clear], atol=1e-6)
    np.testing.assert_allclose(said["entropy"], seen.entropies.min(axis=1), atol=1e-4)


def test_outputs_beside_the_scores_keep_their_names(backend: Any, tmp_path: Path) -> None:
    exported_files.need(backend.files[0])
    adapted = sita.adapt(backend.model("dict"), OPS)
    path = tmp_path / backend.files[0]
    sita.export(adapted, path, example=backend.to_images(images(2)), diagnostics=True)
    said = exported_files.run_named(path, np.asarray(backend.to_images(images(3, seed=3))))
    assert said.keys() == {"logits", "features", "prior", "entropy", "source"}
