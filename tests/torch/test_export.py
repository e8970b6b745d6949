"""Exported files, run by their own runtimes, against the adapted model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import exported_files
import onnx
import pytest
import torch
import torch_reference
from nets import dense, featured, images, small, tiny
from reliable_rules import make_rule, statistics_of_module
from torch import nn

import sita_adapters as sita
from sita_adapters.errors import ExportError, InputError

VIEWS = ("rotate", "blur", "color", "median", "sharpen")
ENDINGS = ["onnx", pytest.param("pt2", marks=pytest.mark.slow)]


def run(path: Path, batch: torch.Tensor) -> list[torch.Tensor]:
    return [torch.from_numpy(array) for array in exported_files.run(path, batch.numpy())]


def assert_same(path: Path, adapted: nn.Module, *counts: int, shape: tuple[int, ...] = (3, 16, 16)) -> None:
    for count in counts:
        batch = images(count, *shape, seed=count)
        with torch.no_grad():
            expected = adapted(batch).softmax(1)
        (answered,) = (scores.softmax(1) for scores in run(path, batch))
        torch.testing.assert_close(answered, expected, rtol=0, atol=1e-4)
        assert torch.equal(answered.argmax(1), expected.argmax(1))


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


@pytest.mark.parametrize("prior", [sita.ByShift(strength=1.0), make_rule(statistics_of_module(tiny()))[0]], ids=str)
def test_a_file_of_torch_export_takes_any_number_of_images(prior: Any, tmp_path: Path) -> None:
    """Of the contract's network it would take a quarter of a minute."""
    adapted = sita.adapt(tiny(), priors=(1.0, prior))
    assert_same(sita.export(adapted, tmp_path / "m.pt2", example=images(1, 3, 16, 16)).path, adapted, 1, 2, 5)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_label_for_every_pixel(ending: str, tmp_path: Path) -> None:
    adapted = sita.adapt(dense(), "ops", task="segmentation")
    exported = sita.export(adapted, tmp_path / f"model.{ending}", example=images(2, 3, 12, 20).numpy())
    assert_same(exported.path, adapted, 1, 3, shape=(3, 12, 20))


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(
    ("name", "recipe", "changes"),
    [
        ("SmallNet", "augbn", {}),
        ("SmallNet", "ops_shared", {}),
        ("SmallNet", "augbn", {"share": "batch"}),
        ("SmallNet", "augbn", {"layers": "bn1"}),
        ("SmallNet", "ensemble", {}),
        ("SmallNet", "source", {}),
        ("SmallNet", "auto", {"layers": "bn1"}),
        ("TokenNet", "auto", {}),
        ("TokenNet", "augbn", {}),
    ],
)
def test_whatever_was_adapted(name: str, recipe: str, changes: dict[str, Any], ending: str, tmp_path: Path) -> None:
    adapted = sita.adapt(small(name), recipe, **changes)
    exported = sita.export(adapted, tmp_path / f"model.{ending}", example=images(3, 3, 16, 16))
    assert_same(exported.path, adapted, 1, 4)


@pytest.mark.parametrize("ending", ENDINGS)
def test_views_that_compute_pixels_are_in_the_graph(ending: str, tmp_path: Path) -> None:
    adapted = sita.adapt(tiny(), "augbn", augment=VIEWS, inputs="imagenet")
    exported = sita.export(adapted, tmp_path / f"model.{ending}", example=images(2, 3, 16, 16))
    assert_same(exported.path, adapted, 1, 4)


@pytest.mark.parametrize("ending", ENDINGS)
def test_several_outputs_keep_their_order_and_names(ending: str, tmp_path: Path) -> None:
    adapted = sita.adapt(featured(lambda scores, features: {"features": features, "logits": scores}), "ops")
    path = sita.export(adapted, tmp_path / f"model.{ending}", example=images(2, 3, 16, 16)).path
    batch = images(3, 3, 16, 16, seed=4)
    with torch.no_grad():
        expected = adapted(batch)
    for wanted, given in zip(expected.values(), run(path, batch), strict=True):
        torch.testing.assert_close(given, wanted, rtol=1e-4, atol=1e-5)
    if ending == "onnx":
        assert [output.name for output in onnx.load(path).graph.output] == ["features", "logits"]


def test_what_cannot_be_traced_is_followed_symbolically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.onnx.export

    def without_tracing(*args: Any, dynamo: bool, **kwargs: Any) -> Any:
        if not dynamo:
            raise RuntimeError("an operation that cannot be traced")
        return real(*args, dynamo=dynamo, **kwargs)

    monkeypatch.setattr(torch.onnx, "export", without_tracing)
    adapted = sita.adapt(tiny(), "augbn")
    assert_same(sita.export(adapted, tmp_path / "model.onnx", example=images(2, 3, 16, 16)).path, adapted, 1, 4)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_file_of_the_default_answers_as_the_reference(ending: str, tmp_path: Path) -> None:
    """Two float64 rows, mixed by a loop; also of probabilities, and of a label per pixel."""
    for model, kind in (
        (tiny(), "logits"),
        (nn.Sequential(*tiny(), nn.Softmax(1)), "probabilities"),
        (dense(), "logits"),
    ):
        path = sita.export(sita.adapt(model.eval()), tmp_path / f"m.{ending}", example=images(2, 3, 16, 16)).path
        for count in (1, 3):
            batch = images(count, 3, 16, 16, seed=count)
            torch_reference.assert_answers(run(path, batch)[0], torch_reference.answers(model, batch, kind=kind))


# --- what is refused, and what then stays


@pytest.mark.parametrize(
    ("name", "example", "error", "words"),
    [
        ("model.tflite", True, ExportError, r"ends in \.onnx, \.pt2 for a torch model.*received.*model\.tfl"),
        ("model", True, ExportError, r"Expected a name that ends in \.onnx"),
        ("model.onnx", None, ExportError, r"example=images"),
        ("model.onnx", "cat.jpg", ExportError, r"received str"),
        ("model.onnx", torch.zeros(3, 16, 16), InputError, r"unsqueeze"),
    ],
)
def test_what_cannot_be_exported_is_refused_before_anything_is_written(
    name: str, example: Any, error: type[Exception], words: str, tmp_path: Path
) -> None:
    adapted = sita.adapt(small(), "augbn")
    with pytest.raises(error, match=words):
        sita.export(adapted, tmp_path / name, example=images(2, 3, 16, 16) if example is True else example)
    assert not list(tmp_path.iterdir())


def test_a_folder_and_half_precision_are_refused(tmp_path: Path) -> None:
    adapted = sita.adapt(small(), "augbn")
    (tmp_path / "model.onnx").mkdir()
    with pytest.raises(ExportError, match=r"model\.onnx' is already a folder"):
        sita.export(adapted, tmp_path / "model.onnx", example=images(2, 3, 16, 16))
    with pytest.raises(ExportError, match=r"float32 on the CPU; received one in torch\.bfloat16"):
        sita.export(sita.adapt(small(), "augbn").bfloat16(), tmp_path / "b.onnx", example=images(2, 3, 16, 16))
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_the_exporters_own_failure_is_reported_and_an_old_file_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        Path(args[2]).write_text("half")
        raise RuntimeError("no such operation\nand a long story")

    monkeypatch.setattr(torch.onnx, "export", fail)
    path = tmp_path / "model.onnx"
    path.write_text("old")
    with pytest.raises(ExportError, match=r"to ONNX: (.|\n)*Try: another format \(torch\.export\)"):
        sita.export(sita.adapt(tiny(), "augbn"), path, example=images(2, 3, 16, 16))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapted = sita.adapt(tiny(), "augbn")
    monkeypatch.setattr(sys.modules["sita_adapters.export"], "find_spec", lambda name: None)
    with pytest.raises(ExportError, match=r"needs missing packages: onnx\. Try: .*pip install onnx"):
        sita.export(adapted, tmp_path / "other.onnx", example=images(2, 3, 16, 16))
    assert not (tmp_path / "other.onnx").exists()
