"""The benchmark of natural shifts: how images are grouped, split and scored, and its networks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, f1_score

import sita_adapters as sita
import sita_workbench.models
from benchmarks.natural.images import CLASSES, OUTSIDE, SETS, to_scored_classes
from benchmarks.natural.networks import NETWORKS
from benchmarks.natural.page import page_tables, readme_table
from benchmarks.natural.summary import HALVES, balanced_accuracy, dice, draw_group_weights
from benchmarks.natural.wnet import WNet
from benchmarks.study.networks import Folders
from benchmarks.study.page import insert
from benchmarks.study.rows import MIXES, adapt_rows, run_rows
from sita_workbench.demo.digits import encode, load_digits
from sita_workbench.methods import Prediction
from sita_workbench.metrics import draw_weights, make_entry
from sita_workbench.models.digits import load_digits_model


def test_the_16_classes_hold_the_imagenet_classes_of_their_names() -> None:
    file = Path(sita_workbench.models.__file__).with_name("imagenet_classes.txt")
    names = file.read_text(encoding="utf-8").splitlines()
    every = [index for indices in CLASSES.values() for index in indices]
    assert len(CLASSES) == 16
    assert len(set(every)) == len(every)
    for kind in ("bear", "clock", "elephant"):
        assert [names[index] for index in CLASSES[kind]] == [name for name in names if name.split()[-1] == kind]
    assert [names[CLASSES["dog"][end]] for end in (0, -1)] == ["Chihuahua", "Mexican hairless"]


def test_a_class_has_the_mean_of_its_imagenet_classes() -> None:
    """118 dogs share 0.6, six cats 0.3, one knife 0.1: the knife's mean is the largest."""
    p = np.zeros((1, 1000))
    p[0, 151:269], p[0, 281:287], p[0, 499] = 0.6 / 118, 0.3 / 6, 0.1
    found = dict(zip(CLASSES, to_scored_classes(p, "renditions")[0], strict=True))
    means = {"dog": 0.6 / 118, "cat": 0.05, "knife": 0.1}
    total = sum(means.values())
    assert found == pytest.approx({name: means.get(name, 0.0) / total for name in CLASSES})


def test_dice_is_2ab_over_a_plus_b_inside_the_field_of_view() -> None:
    random = np.random.default_rng(0)
    p, truth = random.random((3, 1, 8, 9)), random.integers(0, 2, (3, 8, 9)).astype(np.uint8)
    truth[:, :2] = OUTSIDE
    entry = make_entry(Prediction(to_scored_classes(p, "retina")), truth, OUTSIDE)
    found = dice({name: np.asarray(values) for name, values in entry.items()}, draw_weights(3))
    each = [f1_score(t[2:].ravel(), q[0, 2:].ravel() > 0.5) for t, q in zip(truth, p, strict=True)]
    assert found.value == pytest.approx(100 * np.mean(each))
    assert found.resampled.mean() == pytest.approx(found.value, abs=0.5)


def test_balanced_accuracy_is_that_of_scikit_learn() -> None:
    random = np.random.default_rng(0)
    entry = {"label": random.integers(0, 3, 60) // 2, "said": random.integers(0, 2, 60)}
    weights = draw_weights(60)
    found = balanced_accuracy(entry, weights)
    assert found.value == pytest.approx(100 * balanced_accuracy_score(entry["label"], entry["said"]))
    weighted = balanced_accuracy_score(entry["label"], entry["said"], sample_weight=weights[7])
    assert found.resampled[7] == pytest.approx(100 * weighted)


def test_the_halves_share_no_image_and_leave_none_out() -> None:
    images = list(range(81))
    choosing, confirming = images[HALVES["choosing"]], images[HALVES["confirming"]]
    assert not set(choosing) & set(confirming)
    assert sorted(choosing + confirming) == images[HALVES["all"]] == images


def test_images_of_one_group_are_resampled_together() -> None:
    groups = np.array(["b", "a", "b", "c", "b"])
    weights = draw_group_weights(groups)
    assert weights.sum(axis=1) == pytest.approx(1)
    assert (weights[:, [0, 0]] == weights[:, [2, 4]]).all()
    drawn = np.unique(weights[weights[:, 1] == 0][:, 3])  # b m times, and c 3 − m times
    assert drawn == pytest.approx(sorted((3 - m) / (3 * m + 3 - m) for m in range(4)))
    files = [Path(f"{name}.png") for name in ("dog/dog1-car2", "dog/dog1-oven1", "dog/dog10-car2")]
    assert [SETS["stylized"].group_of(file) for file in files] == ["dog/dog1", "dog/dog1", "dog/dog10"]
    faces = [Path(f"{name}.png") for name in ("anger/S010_004_17", "happy/S010_006_15", "happy/S011_006_13")]
    assert [SETS["ck48"].group_of(file) for file in faces] == ["/S010", "/S010", "/S011"]


def test_the_wnet_has_the_published_number_of_parameters() -> None:
    model = WNet().eval()
    assert model(torch.rand(2, 3, 16, 24)).shape == (2, 1, 16, 24)
    assert 65_000 < sum(parameter.numel() for parameter in model.parameters()) < 75_000  # "roughly 70k"


@pytest.mark.parametrize("recipe", ["source", "bn", "shift", *(name for name in MIXES if name in sita.RECIPES)])
def test_shared_rows_answer_as_the_recipe(recipe: str) -> None:
    loaded = load_digits_model("digits")
    x = encode(load_digits()[1].images[:4] * 0.5 + 0.25)
    found = run_rows(adapt_rows(loaded, {}), x, loaded.task).probabilities(recipe)
    assert np.abs(found - loaded.predict(loaded.adapt(recipe), x)).max() < 1e-5


def test_tables_have_a_line_for_each_set_and_replace_older_ones() -> None:
    gain = {"score": -1.25, "low": -2.0, "high": 0.5}
    scores = {name: {"score": 50.0, "gain": gain} for name in ("source", "bn", "auto", "restore")}
    scores["ops"] = {"score": 50.0, "gain": gain, "over auto": gain}
    facts = {"shift": 0.1, "weight": 0.4, "confidence": 0.5, "confidence of the source": 0.6, "adapted row": 48.0}
    one = {"images": 80, "scores": {"accuracy": dict.fromkeys(HALVES, scores)}, "rows": facts}
    results = {"lite0": {"edges": one, "silhouettes": one, "clean": {"images": 128, **facts}}}
    table = readme_table(results)
    assert "| EfficientNet-Lite0, edges (80) | 50.0 | −1.2 (−2.0…+0.5) | −1.2 (−2.0…+0.5) | −1.2 (−2.0…+0.5) |" in table
    assert "**mean change**" in table
    tables = page_tables(results)
    assert "| EfficientNet-Lite0, edges | 0.100 | 0.40 | 0.60 | 0.50 | 50.0 | 48.0 | 50.0 |" in tables
    assert "| ops | −1.2 (−2.0…+0.5) |" in tables
    page = "before\n<!-- natural -->\nold\n<!-- end of natural -->\nafter\n"
    assert insert("new", page, "natural") == "before\n<!-- natural -->\n\nnew\n\n<!-- end of natural -->\nafter\n"


@pytest.mark.real
def test_the_wnet_finds_the_vessels_of_drive(data: Path, tmp_path: Path) -> None:
    loaded = NETWORKS["wnet"].load(Folders(data, None, tmp_path))
    x, truth = SETS["drive"].load(SETS["drive"].list_files(Folders(data, None, tmp_path))[:2], loaded)
    with torch.inference_mode():
        vessels = loaded.model(torch.from_numpy(loaded.arrange(x)))[:, 0].numpy() > 0
    inside = truth != OUTSIDE
    each = [f1_score(t[field], v[field]) for t, v, field in zip(truth, vessels, inside, strict=True)]
    assert np.mean(each) > 0.78  # 0.81 on average over all images
