"""`sita inspect`, `sita predict` and `sita corruptions`, as a user types them."""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from invoking import invoke
from PIL import Image
from score_sets import NETWORKS
from typer.testing import CliRunner

import sita_adapters as sita
from sita_adapters.errors import InputError
from sita_workbench import cli
from sita_workbench.commands import inspect as inspecting
from sita_workbench.corruptions import CORRUPTIONS, corrupt
from sita_workbench.models.loading import load_model
from sita_workbench.networks import cifar_resnet

NAME = "cifar10-resnet20"

FIXED_SIZE = """
def fixed_size():
    return nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 2))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "net.py").write_text(NETWORKS + FIXED_SIZE)
    return tmp_path


def flat(text: str) -> str:
    return re.sub(r"[\s│]+", " ", text)


def draw(path: Path | str, height: int = 32, width: int = 32, seed: int = 0) -> np.ndarray:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


# --- inspect


def test_inspect_shows_layers_rows_and_views() -> None:
    output = invoke("inspect", NAME, "--no-time", "--recipe", "ops")
    for word in ("weights: random", "32 × 32", "19 of 19", "rot90", "22 per image", "layer1.0.bn1 BatchNorm2d 16"):
        assert word in flat(output)
    rows = {line.split()[0]: line.split()[-1] for line in output.splitlines() if line.strip()}
    expected = {"source": 1, "auto": 2, "shift": 1, "ensemble": 3, "ptn": 1, "bn": 1}
    expected |= {"augbn": 3, "ops": 22, "ops_shared": 10}
    assert {name: int(rows[name]) for name in expected} == expected
    assert max(map(len, output.splitlines())) <= 80


def test_inspect_measures_every_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspecting, "_ROUNDS", 1)
    threads = torch.get_num_threads()
    output = invoke("inspect", NAME, "--size", "16")
    cells = {line.split()[0]: line.split()[-2:] for line in output.splitlines() if line.strip()}
    for recipe in sita.RECIPES:
        ms, relative = map(float, cells[recipe])
        assert ms > 0
        assert relative == pytest.approx(ms / float(cells["source"][0]), rel=0.2)
    assert torch.get_num_threads() == threads
    output = flat(invoke("inspect", "net.py:segment", "--no-time", "--recipe", "ops"))
    assert all(word in output for word in ("segmentation", "hflip", "15 per image", "its own", "any size"))


def test_inspect_reports_the_size_on_which_a_model_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspecting, "_ROUNDS", 1)
    with pytest.raises(InputError, match=r"failed on an image of 224 × 224.*--size"):
        invoke("inspect", "net.py:fixed_size")
    assert "one image of 8 × 8" in invoke("inspect", "net.py:fixed_size", "--size", "8")


# --- predict


@pytest.mark.real
@pytest.mark.parametrize("recipe", ["ops", pytest.param("augbn", marks=pytest.mark.slow)])
def test_predict_equals_the_adapted_model(recipe: str, data: Path) -> None:
    weights = data / "weights" / "cifar10_resnet20.safetensors"
    stored = np.load(data / "cifar10" / "test_1000.npz")["images"][:10]
    Path("photos").mkdir()
    for index, image in enumerate(stored):
        Image.fromarray(image).save(f"photos/{index}.png")
    seen = [corrupt(image, "gaussian_noise", 5, index=zlib.crc32(image.tobytes())) for image in stored]
    model, batch = cifar_resnet.load_cifar_resnet(20, weights), cifar_resnet.encode(np.stack(seen))
    with torch.inference_mode():
        p, labels = sita.adapt(model, recipe)(batch).softmax(1).max(1)
        source = model(batch).argmax(1)
    options = ("--weights", weights, "--recipe", recipe, "--corrupt", "gaussian_noise")
    images = json.loads(invoke("predict", NAME, "photos", *options, "--json"))["images"]
    assert [Path(image["file"]).name for image in images] == [f"{index}.png" for index in range(10)]
    assert [image["adapted"]["label"] for image in images] == labels.tolist()
    assert [image["source"]["label"] for image in images] == source.tolist()
    assert [image["changed"] for image in images] == (labels != source).tolist()
    np.testing.assert_allclose([image["adapted"]["probability"] for image in images], p, atol=1e-4)
    assert (labels != source).any()
    assert all((0.6 if recipe == "augbn" else 0.5) <= image["prior"] <= 1 for image in images)
    lines = [line for line in invoke("predict", NAME, "photos", *options).splitlines() if ".png" in line]
    assert ["≠" in line for line in lines] == (labels != source).tolist()


@pytest.mark.real
def test_predict_resizes_and_names_by_labels(data: Path) -> None:
    weights = data / "weights" / "cifar10_resnet20.safetensors"
    image = np.load(data / "cifar10" / "test_1000.npz")["images"][1]
    Image.fromarray(image.repeat(3, 0).repeat(3, 1)).save("large.png")
    Path("names.txt").write_text("\n".join(f"class {index}" for index in range(10)) + "\n\n")
    options = ("--weights", weights, "--top", "3")
    assert "8 ship" in invoke("predict", NAME, "large.png", *options)
    output = invoke("predict", NAME, "large.png", *options, "--labels", "names.txt")
    assert "8 class 8" in output
    assert len([line for line in output.splitlines() if "class" in line]) == 3


def test_entropy_and_top_are_of_the_prediction() -> None:
    draw("noise.png")
    printed = json.loads(invoke("predict", NAME, "noise.png", "--weights", "random", "--top", "10", "--json"))
    found = printed["images"][0]["adapted"]
    p = np.array([entry["probability"] for entry in found["top"]])
    assert p.sum() == pytest.approx(1)
    assert (np.diff(p) <= 0).all()
    assert found["entropy"] == pytest.approx(-(p * np.log(p)).sum(), abs=1e-5)


def test_predict_writes_label_maps_of_a_photograph_as_its_camera_turned_it() -> None:
    pixels = draw("street.png", 12, 20)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(np.rot90(pixels).copy()).save("street.png", exif=exif)
    Path("more").mkdir()
    draw("more/road.png", 8, 8, seed=1)
    options = ("--out", "maps", "--recipe", "augbn", "--top", "4")
    printed = json.loads(invoke("predict", "net.py:segment", "street.png", "more", *options, "--json"))
    loaded = load_model("net.py:segment")
    batch = torch.from_numpy(pixels / 255).permute(2, 0, 1)[None].float()
    with torch.inference_mode():
        expected = sita.adapt(loaded.model, "augbn", task="segmentation")(batch).argmax(1)[0].numpy()
        source = loaded.model(batch).argmax(1)[0].numpy()
    first, _ = printed["images"]
    with Image.open(first["map"]) as picture:
        assert picture.mode == "P"
        np.testing.assert_array_equal(np.asarray(picture), expected)
    assert first["changed"] == pytest.approx((expected != source).mean())
    shares = {entry["label"]: entry["share"] for entry in first["adapted"]["top"]}
    assert shares == {label: pytest.approx((expected == label).mean()) for label in range(4)}
    output = invoke("predict", "net.py:segment", "street.png", *options)
    (line,) = [line for line in output.splitlines() if "street.png" in line]
    assert f"{100 * first['changed']:.1f} %" in line
    assert f"{100 * max(shares.values()):.1f} %" in line
    draw("more/street.jpg", 8, 8)
    with pytest.raises(InputError, match="two images have the same name"):
        invoke("predict", "net.py:segment", "street.png", "more", *options)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("bad.png",), "PPM) in bad.png; received something else"),
        (("big.png",), "at most 178 million pixels in big.png; received more. Try: scale it down"),
        (("good.png", "empty"), "Expected images in the folder empty"),
        (("good.png", "--labels", "names.txt"), "each of the model's 10 classes; received 2"),
        (("good.png", "--labels", "good.png"), "expected a text file"),
        (("good.png", "--out", "maps"), "--out is for label maps"),
        (("good.png", "--task", "segmentation"), "Try: --task classification"),
    ],
)
def test_what_cannot_be_predicted_is_refused(arguments: tuple[str, ...], words: str) -> None:
    draw("good.png")
    Path("bad.png").write_text("no image")
    Path("names.txt").write_text("a\nb\n")
    Path("empty").mkdir()
    if "big.png" in arguments:
        Image.new("1", (20000, 20000)).save("big.png")
    with pytest.raises(sita.SitaError) as caught:
        invoke("predict", NAME, *arguments, "--weights", "random")
    assert words in str(caught.value)


def test_a_bad_image_and_nan_are_failures_and_the_rest_is_predicted() -> None:
    for name, level in (("white", 255), ("gray", 100)):
        Image.new("RGB", (8, 8), (level, level, level)).save(f"{name}.png")
    draw("noise.png")
    Path("cut.png").write_bytes(Path("noise.png").read_bytes()[:1500])
    files = ("white.png", "cut.png", "gray.png")
    result = CliRunner().invoke(cli.make_app(), ["predict", "net.py:moody", *files, "--json"])
    assert isinstance(result.exception, sita.SitaError)
    assert "2 of 3 images have no prediction" in str(result.exception)
    assert "Skipped cut.png" in result.stderr
    printed = json.loads(result.stdout)
    assert [entry["file"] for entry in printed["images"]] == ["gray.png"]
    reasons = {entry["file"]: entry["reason"] for entry in printed["failed"]}
    assert "returned NaN" in reasons["white.png"]
    assert "cannot be read" in reasons["cut.png"]
    with pytest.raises(InputError, match="None of the 1 images could be labeled"):
        invoke("predict", "net.py:moody", "white.png")


def test_a_corrupted_image_is_the_same_at_any_position_in_the_list() -> None:
    for seed, name in enumerate("ab"):
        draw(f"{name}.png", 8, 8, seed)
    lists, options = (("b.png",), ("a.png", "b.png")), ("--corrupt", "fog", "--json")
    first, second = (json.loads(invoke("predict", "net.py:build", *files, *options))["images"][-1] for files in lists)
    assert first["adapted"]["entropy"] == pytest.approx(second["adapted"]["entropy"], abs=1e-6)


# --- corruptions


def test_corruptions_are_listed_and_drawn() -> None:
    output = invoke("corruptions", "--list")
    assert all(kind in output for kind in CORRUPTIONS)
    draw("cat.png", 40, 30)
    invoke("corruptions", "--image", "cat.png", "--out", "sheet.png")
    invoke("corruptions")  # of scikit-learn's image
    for name in ("sheet.png", "sita-corruptions.png"):
        with Image.open(name) as picture:
            assert min(picture.size) > 500
    Path("bad.jpg").write_text("no image")
    with pytest.raises(InputError, match=r"bad\.jpg"):
        invoke("corruptions", "--image", "bad.jpg")
