"""Exported files, run by their own runtimes, against the adapted model."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from nets import dense, images, small
from PIL import Image
from torch import nn
from typer.testing import CliRunner

import sita_adapters as sita
from sita_workbench import cli, runtimes
from sita_workbench.networks.cifar_resnet import encode, load_cifar_resnet

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.load` is deprecated:DeprecationWarning")

RECIPES = ["augbn", "ops", "ops_shared"]


def session_of(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run(path: Path, batch: torch.Tensor) -> list[torch.Tensor]:
    """What a file answers, without any code of ours."""
    if path.suffix == ".onnx":
        session = session_of(path)
        return [torch.from_numpy(array) for array in session.run(None, {"images": batch.numpy()})]
    module = torch.export.load(path).module() if path.suffix == ".pt2" else torch.jit.load(path)
    with torch.no_grad():
        output = module(batch)
    return list(output.values()) if isinstance(output, dict) else [output]


def assert_same(path: Path, adapted: nn.Module, *counts: int, shape: tuple[int, ...] = (3, 16, 16)) -> None:
    for count in counts:
        batch = images(count, *shape, seed=count)
        with torch.no_grad():
            expected = adapted(batch).softmax(1)
        (answered,) = (scores.softmax(1) for scores in run(path, batch))
        torch.testing.assert_close(answered, expected, rtol=0, atol=1e-4)
        assert torch.equal(answered.argmax(1), expected.argmax(1))


def tiny() -> nn.Module:
    """One layer to adapt: torch.export takes seconds a layer."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5)
    model = nn.Sequential(*layers)
    model[1].running_mean.normal_()
    model[1].running_var.uniform_(0.5, 2)
    model[5].weight.data *= 4
    return model.eval()


def test_an_onnx_file_is_exact_where_squares_cancel(tmp_path: Path) -> None:
    """Features 100 σ from zero; and the blend is applied by one operator."""
    model = nn.Sequential(
        nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 5, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ).eval()
    adapted = sita.adapt(model, "augbn", priors=0.3)
    batch = images(2, 3, 16, 16)
    batch[1] += 100 * batch[1].std()
    path = sita.export(adapted, tmp_path / "model.onnx", example=batch).path
    with torch.no_grad():
        expected = sita.adapt(model.double(), "augbn", priors=0.3)(batch.double())
    torch.testing.assert_close(run(path, batch)[0].double(), expected, rtol=2e-5, atol=2e-5)
    kinds = [node.op_type for node in onnx.load(path).graph.node]
    assert (kinds.count("ReduceMean"), kinds.count("BatchNormalization")) == (2, 1)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("ending", ["onnx", "pt2", "ts"])
def test_a_file_answers_as_the_adapted_model_for_any_number_of_images(ending: str, recipe: str, tmp_path: Path) -> None:
    adapted = sita.adapt(tiny() if ending == "pt2" else small(), recipe)
    exported = sita.export(adapted, tmp_path / f"model.{ending}", example=images(1, 3, 16, 16))
    assert exported.path == tmp_path / f"model.{ending}" == Path(exported)
    assert exported.input_shape == (None, 3, 16, 16)
    assert exported.difference is not None
    assert exported.difference < 1e-5
    assert "images (N, 3, 16, 16); checked" in str(exported)
    assert_same(exported.path, adapted, 1, 2, 5)
    assert [path.name for path in tmp_path.iterdir()] == [f"model.{ending}"]


@pytest.mark.parametrize("ending", ["onnx", "torchscript"])
def test_a_label_for_every_pixel(ending: str, tmp_path: Path) -> None:
    adapted = sita.adapt(dense(), task="segmentation")
    exported = sita.export(adapted, tmp_path / f"model.{ending}", example=images(2, 3, 12, 20).numpy())
    assert_same(exported.path, adapted, 1, 3, shape=(3, 12, 20))


@pytest.mark.parametrize("ending", ["onnx", "pt"])
@pytest.mark.parametrize(
    ("name", "recipe", "changes"),
    [
        ("SmallNet", "augbn", {"share": "batch"}),
        ("SmallNet", "augbn", {"layers": "bn1"}),
        ("SmallNet", "ensemble", {}),
        ("SmallNet", "source", {}),
        ("TokenNet", "augbn", {}),
    ],
)
def test_whatever_was_adapted(name: str, recipe: str, changes: dict[str, Any], ending: str, tmp_path: Path) -> None:
    adapted = sita.adapt(small(name), recipe, **changes)
    exported = sita.export(adapted, tmp_path / f"model.{ending}", example=images(3, 3, 16, 16))
    assert_same(exported.path, adapted, 1, 4)


@pytest.mark.parametrize("ending", ["onnx", "pt"])
def test_interpolated_views_and_colours_are_in_the_graph(ending: str, tmp_path: Path) -> None:
    adapted = sita.adapt(tiny(), "augbn", augment=("rotate", "blur", "colour"), n_views=3, inputs="unit")
    exported = sita.export(adapted, tmp_path / f"model.{ending}", example=images(2, 3, 16, 16))
    assert_same(exported.path, adapted, 1, 4)


class TwoOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = small()

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        features = self.net.forward_features(x)
        return {"features": features, "logits": self.net.head(features.mean((2, 3)))}


@pytest.mark.parametrize("ending", ["onnx", "ts"])
def test_several_outputs_keep_their_order_and_names(ending: str, tmp_path: Path) -> None:
    adapted = sita.adapt(TwoOutputs(), "ops")
    path = sita.export(adapted, tmp_path / f"model.{ending}", example=images(2, 3, 16, 16)).path
    batch = images(3, 3, 16, 16, seed=4)
    with torch.no_grad():
        expected = adapted(batch)
    for wanted, given in zip(expected.values(), run(path, batch), strict=True):
        torch.testing.assert_close(given, wanted, rtol=1e-4, atol=1e-5)
    if ending == "onnx":
        session = session_of(path)
        assert [output.name for output in session.get_outputs()] == ["features", "logits"]


def test_what_cannot_be_traced_is_followed_symbolically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.onnx.export

    def without_tracing(*args: Any, dynamo: bool, **kwargs: Any) -> Any:
        if not dynamo:
            raise RuntimeError("an operation that cannot be traced")
        return real(*args, dynamo=dynamo, **kwargs)

    monkeypatch.setattr(torch.onnx, "export", without_tracing)
    adapted = sita.adapt(tiny(), "augbn")
    assert_same(sita.export(adapted, tmp_path / "model.onnx", example=images(2, 3, 16, 16)).path, adapted, 1, 4)


@pytest.mark.real
def test_real_images_get_the_same_labels(data: Path, tmp_path: Path) -> None:
    """ResNet-20, four images of each of the fifteen corruptions at severity 5."""
    adapted = sita.adapt(load_cifar_resnet(20, data / "weights" / "cifar10_resnet20.safetensors"), "ops")
    files = sorted(path for path in (data / "cifar10c").glob("*.npy") if path.stem != "labels")
    batch = encode(np.concatenate([np.load(path, mmap_mode="r")[-4:] for path in files]))
    assert len(batch) == 60
    path = sita.export(adapted, tmp_path / "model.onnx", example=batch[:2]).path
    with torch.no_grad():
        expected = adapted(batch).softmax(1)
    answered = run(path, batch)[0].softmax(1)
    assert torch.equal(answered.argmax(1), expected.argmax(1))
    torch.testing.assert_close(answered, expected, rtol=0, atol=1e-4)


# --- what is refused, and what then stays


@pytest.mark.parametrize(
    ("changes", "name", "example", "error", "words"),
    [
        (
            {"resample": True, "augment": "rotate"},
            "model.onnx",
            True,
            sita.RecipeError,
            r"resample: An exported model.*Remedy",
        ),
        ({"max_rows": 3}, "model.onnx", True, sita.ExportError, r"max_rows=3.*adapt without max_rows"),
        ({}, "model.tflite", True, sita.ExportError, r"\.onnx, \.pt2, \.pt, \.ts, \.torchscript.*received.*model\.tfl"),
        ({}, "model", True, sita.ExportError, r"Expected a name that ends in \.onnx"),
        ({}, "nowhere/model.onnx", True, sita.ExportError, r"nowhere' does not exist"),
        ({}, "model.onnx", None, sita.ExportError, r"example=images"),
        ({}, "model.onnx", "cat.jpg", sita.ExportError, r"received str"),
        ({}, "model.onnx", torch.zeros(3, 16, 16), sita.InputError, r"unsqueeze"),
    ],
)
def test_what_cannot_be_exported_is_told_before_anything_is_written(  # noqa: PLR0917 (a column each)
    changes: dict[str, Any], name: str, example: Any, error: type[Exception], words: str, tmp_path: Path
) -> None:
    adapted = sita.adapt(small(), "augbn", **changes)
    with pytest.raises(error, match=words):
        sita.export(adapted, tmp_path / name, example=images(2, 3, 16, 16) if example is True else example)
    assert not list(tmp_path.iterdir())


def test_a_plain_model_a_wrong_format_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(sita.NotAdaptedError):
        sita.export(small(), tmp_path / "model.onnx", example=images(2, 3, 16, 16))
    adapted = sita.adapt(small(), "augbn")
    with pytest.raises(sita.ExportError, match=r"'onnx', 'pt2', 'torchscript' for a torch model.*Did you mean 'onnx'"):
        sita.export(adapted, tmp_path / "model.onnx", example=images(2, 3, 16, 16), format="onx")
    (tmp_path / "model.onnx").mkdir()
    with pytest.raises(sita.ExportError, match="is a folder"):
        sita.export(adapted, tmp_path / "model.onnx", example=images(2, 3, 16, 16))
    with pytest.raises(sita.ExportError, match=r"float32 on the CPU; received one in torch\.bfloat16"):
        sita.export(sita.adapt(small(), "augbn").bfloat16(), tmp_path / "b.onnx", example=images(2, 3, 16, 16))
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_format_overrides_the_ending(tmp_path: Path) -> None:
    adapted = sita.adapt(tiny(), "augbn")
    exported = sita.export(adapted, tmp_path / "model.bin", example=images(2, 3, 16, 16), format="torchscript")
    assert exported.format == "torchscript"
    torch.jit.load(exported.path)


def test_the_exporters_own_failure_is_told_and_an_old_file_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        Path(args[2]).write_text("half")
        raise RuntimeError("no such operation\nand a long story")

    monkeypatch.setattr(torch.onnx, "export", fail)
    path = tmp_path / "model.onnx"
    path.write_text("old")
    with pytest.raises(sita.ExportError, match=r"to ONNX: no such operation\. Remedy: .* \(torch\.export, Torch"):
        sita.export(sita.adapt(tiny(), "augbn"), path, example=images(2, 3, 16, 16))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


class Frozen(nn.Module):
    """A graph of it keeps what its example came to."""

    def __init__(self) -> None:
        super().__init__()
        self.net = small()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x) * x.std().item()


def test_a_file_that_answers_otherwise_is_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_text("old")
    with pytest.raises(sita.ExportError, match=r"answers otherwise than the adapted model.*Nothing was written"):
        sita.export(sita.adapt(Frozen(), "augbn"), path, example=images(3, 3, 16, 16))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sita_adapters.export as exporting

    adapted = sita.adapt(tiny(), "augbn")
    monkeypatch.setattr(runtimes, "find_spec", lambda name: None)
    exported = sita.export(adapted, tmp_path / "model.onnx", example=images(2, 3, 16, 16))
    assert exported.difference is None
    assert "not checked: onnxruntime is not installed" in str(exported)
    monkeypatch.setattr(sys.modules[exporting.__module__], "find_spec", lambda name: None)
    with pytest.raises(sita.ExportError, match=r"needs onnx, .*pip install onnx"):
        sita.export(adapted, tmp_path / "other.onnx", example=images(2, 3, 16, 16))
    assert not (tmp_path / "other.onnx").exists()


# --- the command


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
from test_export import tiny

def build():
    return tiny(), {"inputs": "imagenet", "size": 20, "crop": 0.5}
"""


@pytest.mark.parametrize(("model", "file"), [("net.py:build", "net.onnx"), ("cifar10-resnet20", "net.ts")])
def test_export_then_predict_says_the_same_as_predict(model: str, file: str, folder: Path) -> None:
    Path("net.py").write_text(CLASSIFIER)
    options: tuple[str, ...] = ("--recipe", "augbn", *(("--weights", "random") if "cifar" in model else ()))
    output = invoke("export", model, *options, "--out", file)
    assert "images (N, 3, " in output
    assert "; checked: within" in output
    assert f"sita predict {file} IMAGE" in output
    assert Path(f"{file}.json").is_file() == (file == "net.ts")
    pictures = ("noise0.png", "noise1.png", "--top", "3", "--json")
    from_file = json.loads(invoke("predict", file, *pictures))
    from_model = json.loads(invoke("predict", model, *pictures, *options))
    assert from_file["recipe"] == from_model["recipe"]
    for ours, theirs in zip(from_file["images"], from_model["images"], strict=True):
        assert "source" not in ours
        assert "prior" not in ours
        assert ours["adapted"]["name"] == theirs["adapted"]["name"]
        assert (ours["adapted"]["name"] is not None) == ("cifar" in model)
        assert ours["adapted"]["entropy"] == pytest.approx(theirs["adapted"]["entropy"], abs=1e-4)
        assert [one["label"] for one in ours["adapted"]["top"]] == [one["label"] for one in theirs["adapted"]["top"]]
    with pytest.raises(sita.InputError, match=r"--recipe: .* was exported with a recipe of its own"):
        invoke("predict", file, "noise0.png", "--recipe", "bn")
    table = invoke("predict", file, "noise0.png")
    assert re.search(r"image +augbn +p +entropy\s", table)
    assert "source" not in table


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
    assert "on average entropy" in invoke("predict", "streets.onnx", "noise0.png")


def test_a_file_of_python_says_nothing_of_its_pixels(folder: Path) -> None:
    sita.export(sita.adapt(tiny(), "augbn"), "plain.onnx", example=images(2, 3, 16, 16))
    with pytest.raises(sita.InputError, match="--inputs"):
        invoke("predict", "plain.onnx", "noise0.png")
    assert "noise0.png" in invoke("predict", "plain.onnx", "noise0.png", "--inputs", "unit")
    with pytest.raises(sita.InputError, match=r"was made for images of 16; received 20"):
        invoke("predict", "plain.onnx", "noise0.png", "--inputs", "unit", "--size", "20")
    with pytest.raises(sita.InputError, match=r"--weights: plain\.onnx has its weights"):
        invoke("predict", "plain.onnx", "noise0.png", "--inputs", "unit", "--weights", "random")
    with pytest.raises(sita.InputError, match=r"'nowhere\.onnx' does not exist"):
        invoke("predict", "nowhere.onnx", "noise0.png")
    Path("broken.onnx").write_text("no graph")
    with pytest.raises(sita.ExportError, match=r"Expected a file that onnxruntime can run; broken\.onnx"):
        invoke("predict", "broken.onnx", "noise0.png", "--inputs", "unit")


def test_export_help_teaches() -> None:
    output = invoke("export", "--help")
    for word in ("--out", ".pt2", ".tflite", "sita predict resnet50.onnx cat.jpg"):
        assert word in re.sub(r"[\s│]+", " ", output)
