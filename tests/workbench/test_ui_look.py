"""`sita ui` without a browser: what one look computes, and what the page says of it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import nets
import numpy as np
import pytest
import torch
from PIL import Image
from serving_process import noise
from torch import nn

import sita_adapters as sita
from sita_adapters.inputs import ENCODINGS
from sita_workbench.methods import Prediction, open_recipe
from sita_workbench.models.loaded import LoadedModel
from sita_workbench.models.loading import load_model
from sita_workbench.ui.look import Look, Viewer
from sita_workbench.ui.page import Page
from sita_workbench.ui.panel import show_look
from sita_workbench.ui.samples import Sample, load_samples

NAMES = ("ant", "bee", "cat & dog", "doe", "eel")
PIXELS, CLEAN = noise(2, 20)


def classifier() -> LoadedModel:
    torch.manual_seed(1)
    layers = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 8, 3), nn.BatchNorm2d(8), nn.ReLU()
    model = nets.warm(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)), 3, 20, 20)
    return LoadedModel("small", model, ENCODINGS["imagenet"], 20, 1.0, names=NAMES)


def segmenter() -> LoadedModel:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 5, 1))
    model[3].weight.data *= 5
    return LoadedModel("streets", model.eval(), ENCODINGS["unit"], None, 1.0, "segmentation", names=NAMES)


def take_look(loaded: LoadedModel, recipe: str, clean: np.ndarray | None = None) -> Look:
    return Viewer(loaded, {recipe: open_recipe(recipe, loaded.task)}).look(PIXELS, recipe, clean)


def encoded(loaded: LoadedModel, pixels: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(loaded.encode(pixels[None])).movedim(-1, 1)


def source_shifts(pixels: np.ndarray) -> list[float]:
    """KL(N(m, v) ‖ N(m_s, v_s)), the mean over channels, of what comes into each BatchNorm of the source model."""
    found, loaded = [], classifier()

    def measure(layer: Any, inputs: tuple[torch.Tensor]) -> None:
        x = inputs[0].double()
        image = torch.distributions.Normal(x.mean((0, 2, 3)), (x.var((0, 2, 3), correction=0) + layer.eps).sqrt())
        source = torch.distributions.Normal(layer.running_mean, (layer.running_var + layer.eps).sqrt())
        found.append(float(torch.distributions.kl_divergence(image, source).mean()))

    for layer in (loaded.model[1], loaded.model[4]):
        layer.register_forward_pre_hook(measure)
    with torch.no_grad():
        loaded.model(encoded(loaded, pixels))
    return found


@pytest.mark.parametrize("recipe", ["auto", "shift", "augbn", "ops", "ops_shared", "bn", "ptn", "ensemble"])
def test_a_look_is_what_the_library_says(recipe: str) -> None:
    loaded = classifier()
    look = take_look(loaded, recipe, CLEAN)
    adapted, x = sita.adapt(loaded.model, recipe), encoded(loaded, PIXELS)
    with torch.no_grad(), sita.observe(adapted) as seen:
        wanted = adapted(x).softmax(1)[0].numpy()
        source = loaded.model(x).softmax(1)[0].numpy()
    np.testing.assert_allclose(look.adapted.probabilities, wanted, atol=1e-6)
    np.testing.assert_allclose(look.source.probabilities, source, atol=1e-6)
    assert look.rows == sita.describe(adapted).rows
    assert [each.label for each in look.candidates] == seen.labels[0].tolist()
    np.testing.assert_allclose([each.entropy for each in look.candidates], seen.entropies[0], rtol=1e-6)
    assert sum(each.share for each in look.candidates) == pytest.approx(1)
    assert [each.share > 0 for each in look.candidates] == seen.kept[0].tolist()
    assert look.layers == ("1", "4")
    np.testing.assert_allclose(look.shifts["source"], source_shifts(PIXELS), rtol=1e-4)
    np.testing.assert_allclose(look.shifts["clean"], source_shifts(CLEAN), rtol=1e-4)
    assert (look.priors is not None) == ("adapted" in look.shifts) == (recipe in ("auto", "shift", "augbn"))
    assert bool(look.views) == (recipe in ("augbn", "ops", "ops_shared", "ensemble"))
    if look.views:
        np.testing.assert_array_equal(look.views["rot90"], np.rot90(PIXELS))


def test_the_panel_says_who_is_right_and_draws_every_layer_at_its_height() -> None:
    look = take_look(classifier(), "ops")
    adapted = int(look.adapted.labels)
    said = show_look(look, NAMES, adapted)
    assert ("✗ wrong" in said) == (look.source.labels != adapted)
    assert said.count('class="bar"') == 2 * 5
    assert "cat & dog" not in said
    # Eight candidates, of which three vote and one is the most confident.
    assert [said.count(f'<tr class="{style}">') for style in ("kept chosen", "kept ", " ")] == [1, 2, 5]
    (points,) = re.findall(r'<polyline class="source" points="([^"]*)"', said)
    drawn = np.array([132 - float(point.split(",")[1]) for point in points.split()]) / 124  # 132 is 0, 8 is the top
    np.testing.assert_allclose(drawn / drawn[0], look.shifts["source"] / look.shifts["source"][0], rtol=0.02)
    assert 0.4 <= drawn.max() <= 1


def test_classes_of_the_same_name_are_different_answers() -> None:
    source, adapted = Prediction(np.eye(5)[0]), Prediction(np.eye(5)[1])
    look = replace(take_look(classifier(), "auto"), source=source, adapted=adapted)
    for label, words in enumerate(["Adaptation spoils it", "Adaptation corrects it", "It is <b>crane</b>"]):
        assert words in show_look(look, ["crane"] * 5, label)


def test_a_recipe_of_ones_own_is_not_the_packages_of_that_name() -> None:
    loaded, own = classifier(), replace(open_recipe("bn", "classification"), name="auto")
    viewer = Viewer(loaded, {"own.json": own, "auto": open_recipe("auto", "classification")})
    assert [viewer.look(PIXELS, name).rows for name in ("own.json", "auto")] == [1, 2]


def test_label_maps_stand_side_by_side() -> None:
    loaded = segmenter()
    look = take_look(loaded, "auto", CLEAN)
    assert look.adapted.labels.shape == (20, 20)
    with torch.no_grad():
        wanted = loaded.model(encoded(loaded, PIXELS))[0].argmax(0).numpy()
    np.testing.assert_array_equal(look.source.labels, wanted)
    said = show_look(look, NAMES, None)
    assert f"<b>{100 * (look.adapted.labels != wanted).mean():.1f} %</b> of the pixels" in said
    assert said.count("<figure>") == 4


def test_what_goes_wrong_is_a_sentence(tmp_path: Path) -> None:
    loaded = classifier()
    viewer = Viewer(loaded, {"auto": open_recipe("auto", "classification")})
    page = Page(viewer, [Sample(PIXELS, "noise")], NAMES, "auto")
    whole, damaged, text = (tmp_path / name for name in ("whole.png", "damaged.png", "text.png"))
    Image.fromarray(PIXELS).save(whole)
    assert "adapted-answer" in page.show(0, str(whole), "fog", 3, "auto")
    damaged.write_bytes(whole.read_bytes()[:200])
    text.write_text("not an image")
    for path, reason in ((damaged, "cannot be read"), (text, "received something else")):
        said = page.show(0, str(path), "none", 0, "auto")
        assert reason in said
        assert str(tmp_path) not in said
    loaded.model[0] = nn.Conv2d(5, 6, 3).eval()
    assert "small failed on this image" in page.show(0, None, "none", 0, "auto")


def test_samples_of_ones_own_have_the_labels_of_their_folders(tmp_path: Path) -> None:
    for name in ("bee", "elsewhere"):
        (tmp_path / name).mkdir()
        Image.fromarray(PIXELS).save(tmp_path / name / "one.png")
    assert [sample.label for sample in load_samples(classifier(), tmp_path, NAMES)] == [1, None]
    assert [sample.pixels.shape for sample in load_samples(classifier(), None, NAMES)] == [(20, 20, 3)] * 2


def test_the_page_opens_on_a_digit_that_adaptation_corrects() -> None:
    loaded = load_model("digits")
    samples = load_samples(loaded, None, loaded.names)
    assert [sample.label for sample in samples] == list(range(10))
    page = Page(Viewer(loaded, {"auto": sita.RECIPES["auto"]}), samples, loaded.names, "auto")
    assert "Adaptation corrects it" in page.show(page.sample, None, page.corruption, 3, "auto")
