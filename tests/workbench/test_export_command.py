"""`sita export` and `sita predict` on what it wrote."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from invoking import invoke
from nets import images, tiny
from PIL import Image
from score_sets import NETWORKS

import sita_adapters as sita
from sita_adapters.errors import InputError
from sita_workbench.exported.export import export_checked

NET = """
from nets import tiny

def cropping():
    return tiny(), {"inputs": "imagenet", "size": 20, "crop": 0.5}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    for seed in range(2):
        pixels = np.random.default_rng(seed).integers(0, 256, (40, 48, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(f"noise{seed}.png")
    Path("net.py").write_text(NETWORKS + NET)
    return tmp_path


@pytest.mark.parametrize(
    ("model", "recipe", "told"),
    [
        ("net.py:cropping", "augbn", ()),
        ("net.py:cropping", "ops_shared", ("prior", "source")),
        pytest.param("cifar10-resnet20", "augbn", ("prior",), marks=pytest.mark.slow),
    ],
)
def test_a_file_says_what_the_model_says(model: str, recipe: str, told: tuple[str, ...], folder: Path) -> None:
    options: tuple[str, ...] = ("--recipe", recipe, *(("--weights", "random") if "cifar" in model else ()))
    output = invoke("export", model, *options, *(("--diagnostics",) if told else ()), "--out", "net.onnx")
    assert "; checked: within" in output
    assert "sita predict net.onnx IMAGE" in output
    pictures = ("noise0.png", "noise1.png", "--top", "3", "--json")
    from_file = json.loads(invoke("predict", "net.onnx", *pictures, "--providers", "CPU"))
    from_model = json.loads(invoke("predict", model, *pictures, *options))
    assert from_file["recipe"] == from_model["recipe"]
    for ours, theirs in zip(from_file["images"], from_model["images"], strict=True):
        assert {"source", "prior"} & ours.keys() == set(told)
        assert (ours["adapted"]["name"] is not None) == ("cifar" in model)
        for name in ("adapted", "source") if "source" in told else ("adapted",):
            assert ours[name]["name"] == theirs[name]["name"]
            assert ours[name]["entropy"] == pytest.approx(theirs[name]["entropy"], abs=1e-4)
            assert ours[name]["probability"] == pytest.approx(theirs[name]["probability"], abs=1e-4)
            assert [one["label"] for one in ours[name]["top"]] == [one["label"] for one in theirs[name]["top"]]
        assert ours.get("changed") == (theirs["changed"] if "source" in told else None)
        assert ours.get("prior", theirs["prior"]) == pytest.approx(theirs["prior"], abs=1e-6)


def test_a_file_that_can_execute_code_is_written_and_not_opened(folder: Path) -> None:
    assert "sita predict" not in invoke("export", "net.py:cropping", "--recipe", "source", "--out", "net.pt2")
    with pytest.raises(InputError, match=r"an existing \.onnx file; received 'net\.pt2'"):
        invoke("predict", "net.pt2", "noise0.png", "--trust")


def test_pickled_weights_are_read_only_when_trusted(folder: Path) -> None:
    torch.save(tiny(), "whole.pt")
    torch.save(tiny().state_dict(), "tensors.pt")
    predict = ("predict", "net.py:cropping", "noise0.png", "--recipe", "bn", "--json", "--weights")
    expected = json.loads(invoke(*predict, "tensors.pt"))["images"]
    with pytest.raises(InputError, match=r"pickled objects, which can execute code.*Try: torch\.save"):
        invoke(*predict, "whole.pt")
    assert json.loads(invoke(*predict, "whole.pt", "--trust"))["images"] == expected


def test_label_maps_come_from_a_file_too(folder: Path) -> None:
    invoke("export", "net.py:segment", "--recipe", "augbn", "--size", "24", "--out", "segment.onnx")
    maps: list[np.ndarray] = []
    for model, options in (("segment.onnx", ()), ("net.py:segment", ("--recipe", "augbn", "--size", "24"))):
        told = json.loads(invoke("predict", model, "noise0.png", *options, "--out", "maps", "--json"))
        with Image.open(told["images"][0]["map"]) as picture:
            maps.append(np.asarray(picture))
    assert maps[0].shape == (24, 24)
    assert (maps[0] != maps[1]).mean() < 0.01


def test_a_file_needs_metadata_and_takes_what_it_was_made_for(folder: Path) -> None:
    sita.export(sita.adapt(tiny(), "augbn"), "plain.onnx", example=images(2, 3, 16, 16))
    export_checked(sita.adapt(tiny(), "augbn", inputs="unit"), "knows.onnx", images(2, 3, 16, 16))
    Path("broken.onnx").write_text("no graph")
    assert "noise0.png" in invoke("predict", "knows.onnx", "noise0.png")
    for file, options, words in (
        ("plain.onnx", ("--inputs", "unit"), "plain.onnx has no such metadata"),
        ("nowhere.onnx", (), "received 'nowhere.onnx'"),
        ("broken.onnx", (), "Expected a file that onnxruntime can run; broken.onnx"),
        ("knows.onnx", ("--size", "20"), "was made for images of 16 × 16; received 20"),
        ("knows.onnx", ("--weights", "random"), "--weights: knows.onnx contains its weights"),
        ("knows.onnx", ("--providers", "Nothing"), "providers: expected some of"),
        ("knows.onnx", ("--recipe", "bn"), "contains the recipe that it was exported with"),
    ):
        with pytest.raises(sita.SitaError, match=re.escape(words)):
            invoke("predict", file, "noise0.png", *options)
    with pytest.raises(InputError, match="is an exported file, which is already adapted"):
        invoke("inspect", "knows.onnx")
    Path("silent.py").write_text("from nets import tiny as build")
    with pytest.raises(InputError, match=r"does not define its pixel encoding.*--inputs imagenet"):
        invoke("export", "silent.py:build", "--out", "silent.onnx")
