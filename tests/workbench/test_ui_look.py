"""`sita ui` without a browser: what one look computes, and what the page says of it."""

from __future__ import annotations

import math
import re
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
from sita_adapters.errors import InputError
from sita_adapters.inputs import ENCODINGS
from sita_workbench.demo import digits_torch
from sita_workbench.demo.digits import load_digits
from sita_workbench.exported.export import export_checked
from sita_workbench.methods import open_recipe
from sita_workbench.models.digits import as_pictures
from sita_workbench.models.loaded import LoadedModel
from sita_workbench.models.loading import load_model
from sita_workbench.ui.corrupting import corruptions_for
from sita_workbench.ui.look import Look, open_viewer
from sita_workbench.ui.page import Page, choose_start
from sita_workbench.ui.panel import show_look
from sita_workbench.ui.samples import Sample, load_samples

NAMES = ("ant", "bee", "cat & dog", "doe", "eel")
PIXELS, CLEAN = noise(2, 20)


def classifier() -> LoadedModel:
    torch.manual_seed(1)
    layers = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 8, 3), nn.BatchNorm2d(8), nn.ReLU()
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    for layer in (model[1], model[4]):
        layer.running_mean.normal_()
        layer.running_var.uniform_(0.5, 2)
    return LoadedModel("small", model.eval(), ENCODINGS["imagenet"], 20, 1.0, names=NAMES)


def segmenter() -> LoadedModel:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 5, 1))
    model[3].weight.data *= 5
    return LoadedModel("streets", model.eval(), ENCODINGS["unit"], None, 1.0, "segmentation", names=NAMES)


def take_look(loaded: LoadedModel, recipe: str, clean: np.ndarray | None = None) -> Look:
    return open_viewer(loaded, {recipe: open_recipe(recipe, loaded.task)}).look(PIXELS, recipe, clean)


def encoded(loaded: LoadedModel, pixels: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(loaded.encode(pixels[None])).movedim(-1, 1)


def shifts_of_the_source(loaded: LoadedModel, pixels: np.ndarray) -> list[float]:
    """KL(N(m, v) ‖ N(m_s, v_s)), the mean over channels, of what comes into each BatchNorm of the source model."""
    found = []

    def measure(layer: Any, inputs: tuple[torch.Tensor]) -> None:
        x = inputs[0].double()
        there, own = (
            torch.distributions.Normal(mean, (variance + layer.eps).sqrt())
            for mean, variance in (
                (x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)),
                (layer.running_mean, layer.running_var),
            )
        )
        found.append(float(torch.distributions.kl_divergence(there, own).mean()))

    hooks = [m.register_forward_pre_hook(measure) for m in loaded.model.modules() if isinstance(m, nn.BatchNorm2d)]
    with torch.no_grad():
        loaded.model(encoded(loaded, pixels))
    for hook in hooks:
        hook.remove()
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
    assert look.source is not None
    np.testing.assert_allclose(look.source.probabilities, source, atol=1e-6)
    assert look.rows == sita.describe(adapted).rows
    assert [each.label for each in look.candidates] == seen.labels[0].tolist()
    np.testing.assert_allclose([each.entropy for each in look.candidates], seen.entropies[0], rtol=1e-6)
    assert math.isclose(sum(each.share for each in look.candidates), 1)
    if not isinstance(open_recipe(recipe, "classification").combine, tuple):
        assert [each.kept for each in look.candidates] == seen.kept[0].tolist()
    assert look.depth is not None
    assert look.depth.layers == ("1", "4")
    np.testing.assert_allclose(look.depth.source_shifts, shifts_of_the_source(loaded, PIXELS), rtol=1e-4)
    assert look.depth.clean_shifts is not None
    np.testing.assert_allclose(look.depth.clean_shifts, shifts_of_the_source(loaded, CLEAN), rtol=1e-4)
    assert (look.depth.priors is not None) == (recipe in ("auto", "shift", "augbn"))
    views = {"rot90": np.rot90(PIXELS), "rot270": np.rot90(PIXELS, 3)}
    for name, pixels in look.views:
        np.testing.assert_array_equal(pixels, views.get(name, pixels))
    assert bool(look.views) == (recipe in ("augbn", "ops", "ops_shared", "ensemble"))


def test_the_panel_says_who_is_right() -> None:
    look = take_look(classifier(), "ops")
    assert look.source is not None
    source, adapted = int(look.source.labels), int(look.adapted.labels)
    said = show_look(look, NAMES, adapted)
    assert f'id="adapted-answer" class="card adapted" data-label="{adapted}"' in said
    assert ("✗ wrong" in said) == (source != adapted)
    assert said.count('class="bar"') == 2 * 5
    assert "cat &amp; dog" in said
    assert "cat & dog" not in said
    assert "right" not in re.sub(r"<style.*", "", show_look(look, NAMES, None)).split("reasons")[0]
    # Eight candidates, of which three are kept and one is the most certain.
    assert (said.count('<circle class="kept"'), said.count('<circle class="dropped"')) == (3, 5)
    assert said.count('<circle class="chosen"') == 1
    assert said.count("<figcaption>turned by") == 2


def test_the_chart_has_every_layer_at_its_height() -> None:
    look = take_look(classifier(), "auto")
    assert look.depth is not None
    said = show_look(look, NAMES, None)
    (points,) = re.findall(r'<polyline class="source" points="([^"]*)"', said)
    heights = [float(point.split(",")[1]) for point in points.split()]
    base, top = 132.0, 8.0  # of 0, and of the next round number above the largest
    drawn = [(base - height) / (base - top) for height in heights]
    ratio = drawn[0] / drawn[1]
    assert math.isclose(ratio, look.depth.source_shifts[0] / look.depth.source_shifts[1], rel_tol=0.02)
    assert 0.4 <= max(*drawn) <= 1


def test_label_maps_stand_side_by_side() -> None:
    loaded = segmenter()
    look = take_look(loaded, "auto", CLEAN)
    assert look.source is not None
    assert look.adapted.labels.shape == (20, 20)
    with torch.no_grad():
        wanted = loaded.model(encoded(loaded, PIXELS))[0].argmax(0).numpy()
    np.testing.assert_array_equal(look.source.labels, wanted)
    said = show_look(look, NAMES, None)
    share = 100 * (look.adapted.labels != wanted).mean()
    assert f"<b>{share:.1f} %</b> of the pixels" in said
    assert said.count("<figure>") == 4
    commonest = NAMES[int(np.bincount(wanted.ravel()).argmax())]
    assert commonest.replace("&", "&amp;") in said.split('class="labels"')[1].split("</div>")[0]


def test_a_file_shows_what_it_puts_out(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    model = nets.tiny()
    loaded = LoadedModel("tiny", model, ENCODINGS["unit"], 20, 1.0)
    adapted = sita.adapt(model, "ops")
    for diagnostics in (False, True):
        path = tmp_path / f"{diagnostics}.onnx"
        export_checked(adapted, path, encoded(loaded, PIXELS), diagnostics=diagnostics)
        opened = load_model(str(path), exported=True, inputs="unit")
        viewer = open_viewer(opened, {})
        assert viewer.recipes == ()
        look = viewer.look(PIXELS, "")
        with torch.no_grad():
            wanted = adapted(encoded(loaded, PIXELS)).softmax(1)[0].numpy()
        np.testing.assert_allclose(look.adapted.probabilities, wanted, atol=1e-4)
        said = show_look(look, (), None)
        assert "An exported file puts out its answer" in said
        assert ("source-answer" in said) == diagnostics
        assert ("sita export --diagnostics" in said) == (not diagnostics)
        assert "<polyline" not in said


def test_what_goes_wrong_is_a_sentence(tmp_path: Path) -> None:
    loaded = classifier()
    viewer = open_viewer(loaded, {"auto": open_recipe("auto", "classification")})
    page = Page(viewer, [Sample(PIXELS, "noise")], NAMES, choose_start(loaded, None))
    whole = tmp_path / "whole.png"
    Image.fromarray(PIXELS).save(whole)
    assert "adapted-answer" in page.show(0, str(whole), "fog", 3, "auto")
    damaged, text = tmp_path / "damaged.png", tmp_path / "text.png"
    damaged.write_bytes(whole.read_bytes()[:200])
    text.write_text("not an image")
    for path, reason in ((damaged, "cannot be read"), (text, "received something else")):
        said = page.show(0, str(path), "none", 0, "auto")
        assert reason in said
        assert "Traceback" not in said
        assert str(tmp_path) not in said
    loaded.model[0] = nn.Conv2d(5, 6, 3).eval()
    assert "small failed on this image" in page.show(0, None, "none", 0, "auto")


def test_samples_of_ones_own_have_the_labels_of_their_folders(tmp_path: Path) -> None:
    for name in ("bee", "elsewhere"):
        (tmp_path / name).mkdir()
        Image.fromarray(PIXELS).save(tmp_path / name / "one.png")
    samples = load_samples(classifier(), tmp_path, NAMES)
    assert [sample.label for sample in samples] == [1, None]
    assert [sample.pixels.shape for sample in load_samples(classifier(), None, NAMES)] == [(20, 20, 3)] * 2


def test_the_digit_reader_takes_pictures() -> None:
    loaded = load_model("digits")
    digits = load_digits()[1].images[:20]
    grey = np.round(255 * digits).astype(np.float32) / 255
    with torch.no_grad():
        wanted = loaded.model.network(digits_torch.encode(grey)).numpy()
    np.testing.assert_allclose(loaded.run(loaded.model, loaded.encode(as_pictures(digits))), wanted, atol=1e-4)
    samples = load_samples(loaded, None, loaded.names)
    start = choose_start(loaded, None)
    shown = corruptions_for(loaded)[start.corruption](samples[start.sample].pixels, start.severity)
    answers = [loaded.run(loaded.adapt(name), loaded.encode(shown[None])).argmax() for name in ("source", start.recipe)]
    assert answers[0] != samples[start.sample].label == answers[1]
    assert [sample.label for sample in samples] == list(range(10))
    for corrupt in corruptions_for(loaded).values():
        clean = samples[4].pixels
        strayed = [np.abs(corrupt(clean, severity).astype(float) - clean).mean() for severity in (1, 3, 5)]
        assert 0 < strayed[0] < strayed[2]
    with pytest.raises(InputError, match="has its own weights"):
        load_model("digits", "random")
