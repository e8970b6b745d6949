"""`sita export` and `sita predict` on what it wrote."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from nets import images, tiny
from PIL import Image
from typer.testing import CliRunner

import sita_adapters as sita
from sita_adapters.errors import ExportError, InputError
from sita_workbench import cli
from sita_workbench.exported.export import export_checked


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    for seed in range(2):
        pixels = np.random.default_rng(seed).integers(0, 256, (40, 48, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(f"noise{seed}.png")
    return tmp_path


def invoke(*arguments: object) -> str:
    result = CliRunner().invoke(cli.make_app(), [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


CLASSIFIER = """
from nets import tiny

def build():
    return tiny(), {"inputs": "imagenet", "size": 20, "crop": 0.5}
"""


@pytest.mark.parametrize(
    ("model", "file"),
    [("net.py:build", "net.onnx"), pytest.param("cifar10-resnet20", "net.pt2", marks=pytest.mark.slow)],
)
def test_export_then_predict_says_the_same_as_predict(model: str, file: str, folder: Path) -> None:
    Path("net.py").write_text(CLASSIFIER)
    options: tuple[str, ...] = ("--recipe", "augbn", *(("--weights", "random") if "cifar" in model else ()))
    output = invoke("export", model, *options, "--out", file)
    assert "images (N, 3, " in output
    assert "; checked: within" in output
    assert f"sita predict {file} IMAGE" in output
    assert Path(f"{file}.json").is_file() == (file == "net.pt2")
    pictures = ("noise0.png", "noise1.png", "--top", "3", "--json")
    trust = () if file.endswith(".onnx") else ("--trust",)
    from_file = json.loads(invoke("predict", file, *pictures, *trust))
    from_model = json.loads(invoke("predict", model, *pictures, *options))
    assert from_file["recipe"] == from_model["recipe"]
    for ours, theirs in zip(from_file["images"], from_model["images"], strict=True):
        assert "source" not in ours
        assert "prior" not in ours
        assert ours["adapted"]["name"] == theirs["adapted"]["name"]
        assert (ours["adapted"]["name"] is not None) == ("cifar" in model)
        assert ours["adapted"]["entropy"] == pytest.approx(theirs["adapted"]["entropy"], abs=1e-4)
        assert [one["label"] for one in ours["adapted"]["top"]] == [one["label"] for one in theirs["adapted"]["top"]]
    with pytest.raises(InputError, match=r"--recipe: .* was exported with a recipe of its own"):
        invoke("predict", file, "noise0.png", "--recipe", "bn", *trust)


def test_a_file_with_diagnostics_says_all_that_the_model_says(folder: Path) -> None:
    Path("net.py").write_text(CLASSIFIER)
    invoke("export", "net.py:build", "--recipe", "ops_shared", "--diagnostics", "--out", "model.onnx")
    file = "model.onnx"
    pictures = ("noise0.png", "noise1.png", "--top", "2", "--json")
    from_file = json.loads(invoke("predict", file, *pictures, "--providers", "CPU"))
    from_model = json.loads(invoke("predict", "net.py:build", *pictures, "--recipe", "ops_shared"))
    for ours, theirs in zip(from_file["images"], from_model["images"], strict=True):
        assert ours["changed"] == theirs["changed"]
        assert ours["prior"] == pytest.approx(theirs["prior"], abs=1e-6)
        assert ours["source"]["label"] == theirs["source"]["label"]
        assert ours["source"]["probability"] == pytest.approx(theirs["source"]["probability"], abs=1e-4)
    with pytest.raises(InputError, match=r"--providers|providers: expected some of"):
        invoke("predict", file, "noise0.png", "--providers", "Nothing")
    with pytest.raises(InputError, match="is an exported file, which is adapted already"):
        invoke("inspect", file)


def test_files_that_can_execute_code_are_opened_only_when_trusted(folder: Path) -> None:
    Path("net.py").write_text(CLASSIFIER)
    invoke("export", "net.py:build", "--recipe", "source", "--out", "net.pt2")
    Path("net.tflite").write_bytes(b"")
    for file, why in (("net.tflite", "may hold operators of TensorFlow"), ("net.pt2", "unrestricted unpickling")):
        with pytest.raises(InputError, match=f"{why}.*--trust, if you know who made the file"):
            invoke("predict", file, "noise0.png")
    assert "noise0.png" in invoke("predict", "net.pt2", "noise0.png", "--trust")


def test_pickled_weights_are_read_only_when_trusted(folder: Path) -> None:
    Path("net.py").write_text(CLASSIFIER)
    torch.save(tiny(), "whole.pt")
    torch.save(tiny().state_dict(), "tensors.pt")
    predict = ("predict", "net.py:build", "noise0.png", "--recipe", "bn", "--json", "--weights")
    expected = json.loads(invoke(*predict, "tensors.pt"))["images"]
    for command in (predict, ("inspect", "net.py:build", "--weights")):
        with pytest.raises(InputError, match=r"pickled objects, which can execute code.*Try: torch\.save"):
            invoke(*command, "whole.pt")
    assert json.loads(invoke(*predict, "whole.pt", "--trust"))["images"] == expected


STREETS = """
import torch
from torch import nn

def build():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1))
    return model, {"inputs": "unit", "task": "segmentation"}
"""


def test_label_maps_come_from_a_file_too(folder: Path) -> None:
    Path("streets.py").write_text(STREETS)
    invoke("export", "streets.py:build", "--recipe", "augbn", "--size", "24", "--out", "streets.onnx")
    maps = []
    for model, options in (("streets.onnx", ()), ("streets.py:build", ("--recipe", "augbn", "--size", "24"))):
        told = json.loads(invoke("predict", model, "noise0.png", *options, "--out", "maps", "--json"))
        with Image.open(told["images"][0]["map"]) as picture:
            maps.append(np.asarray(picture))
    assert maps[0].shape == (24, 24)
    assert (maps[0] != maps[1]).mean() < 0.01
    largest = np.bincount(maps[0].ravel()).max() / maps[0].size
    assert f"{100 * largest:.1f} %" in invoke("predict", "streets.onnx", "noise0.png")


def test_files_that_do_not_say_what_they_take_are_refused(folder: Path) -> None:
    sita.export(sita.adapt(tiny(), "augbn"), "plain.onnx", example=images(2, 3, 16, 16))
    with pytest.raises(InputError, match=r"plain\.onnx has no such metadata.*Try: sita export"):
        invoke("predict", "plain.onnx", "noise0.png", "--inputs", "unit")
    Path("silent.py").write_text("from nets import tiny as build")
    with pytest.raises(InputError, match=r"does not say how its pixels are encoded.*--inputs imagenet"):
        invoke("export", "silent.py:build", "--out", "silent.onnx")
    with pytest.raises(InputError, match=r"'nowhere\.onnx' does not exist"):
        invoke("predict", "nowhere.onnx", "noise0.png")
    Path("broken.onnx").write_text("no graph")
    with pytest.raises(ExportError, match=r"Expected a file that onnxruntime can run; broken\.onnx"):
        invoke("predict", "broken.onnx", "noise0.png")


def test_a_file_of_a_model_that_knew_its_pixels_knows_them(folder: Path) -> None:
    adapted = sita.adapt(tiny(), "augbn", inputs="unit")
    export_checked(adapted, "knows.onnx", images(2, 3, 16, 16))
    assert "noise0.png" in invoke("predict", "knows.onnx", "noise0.png")
    with pytest.raises(InputError, match=r"was made for images of 16 × 16; received 20"):
        invoke("predict", "knows.onnx", "noise0.png", "--size", "20")
    with pytest.raises(InputError, match=r"--weights: knows\.onnx contains its weights"):
        invoke("predict", "knows.onnx", "noise0.png", "--weights", "random")
