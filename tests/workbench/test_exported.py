"""Exported files: compared with the adapted model before they are put in place, and described by their metadata."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nets import images, small, tiny
from torch import nn

import sita_adapters as sita
from sita_adapters.errors import ExportError
from sita_workbench.exported.export import export_checked
from sita_workbench.exported.metadata import ExportMetadata, read_beside, read_metadata, write_beside
from sita_workbench.exported.runtimes import open_exported

FIELDS = {"inputs": sita.Inputs(mean=0.5, std=0.25), "names": ("ant", "bee"), "model": "tiny", "task": "segmentation"}


@pytest.mark.parametrize("name", ["model.onnx", pytest.param("model.pt2", marks=pytest.mark.slow)])
def test_a_checked_file_answers_as_the_model_and_has_its_metadata(name: str, tmp_path: Path) -> None:
    adapted = sita.adapt(tiny(), "augbn")
    exported = export_checked(adapted, tmp_path / name, images(1, 3, 16, 16), metadata_fields=FIELDS, diagnostics=True)
    assert exported.difference < 1e-5
    assert f"{tmp_path / name}: " in str(exported)
    assert "images (N, 3, 16, 16); checked: within " in str(exported)
    expected = ["model.onnx"] if name == "model.onnx" else ["model.pt2", "model.pt2.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == expected
    file = open_exported(exported.path, exported.format)
    assert file.metadata is not None
    for field, value in FIELDS.items():
        assert getattr(file.metadata, field) == value
    assert (file.metadata.recipe, file.metadata.rows) == (str(sita.describe(adapted).recipe), 3)
    assert (file.metadata.scores, file.metadata.class_axis, file.metadata.scores_name) == ("logits", -1, "scores")
    assert (file.input_shape, file.metadata.diagnostics) == ((None, 3, 16, 16), ("prior", "entropy"))
    batch = images(3, 3, 16, 16, seed=5)
    with torch.no_grad():
        np.testing.assert_allclose(file.run(batch.numpy())["scores"], adapted(batch).numpy(), atol=1e-4)


class Frozen(nn.Module):
    """A traced graph of it keeps the scale of its example."""

    def __init__(self) -> None:
        super().__init__()
        self.net = small()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = x[0].std().item() if torch.jit.is_tracing() else x.flatten(1).std(1, keepdim=True)
        return self.net(x) * scale


def test_a_file_that_answers_differently_is_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_text("old")
    with pytest.raises(ExportError, match=r"it differs by up to .*No file was written\. Try: another format"):
        export_checked(sita.adapt(Frozen(), "augbn"), path, images(3, 3, 16, 16))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_without_its_runtime_no_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sita_workbench.exported.runtimes.find_spec", lambda name: None)
    with pytest.raises(ExportError, match=r"needs onnxruntime to run.*Try: pip install onnxruntime"):
        export_checked(sita.adapt(tiny(), "augbn"), tmp_path / "model.onnx", images(2, 3, 16, 16))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "words"), [("model.zip", r"received.*model\.zip"), ("no/model.onnx", "No such file")])
def test_errors_name_the_target_and_not_a_temporary_file(name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=words) as raised:
        export_checked(sita.adapt(tiny(), "augbn"), tmp_path / name, images(2, 3, 16, 16))
    assert str(tmp_path / Path(name).parent) in str(raised.value)
    assert not list(tmp_path.iterdir())


def test_metadata_of_another_file_is_refused(tmp_path: Path) -> None:
    """`sita.export` over a file of `export_checked` leaves the old metadata, which says how to read its answers."""
    path, metadata = tmp_path / "model.pt2", ExportMetadata("augbn", "logits", -1, "scores", (None, 3, 8, 8))
    assert read_beside(path) is None
    path.write_bytes(b"first")
    write_beside(path, metadata)
    assert read_beside(path) == metadata
    path.write_bytes(b"second")
    with pytest.raises(ExportError, match=r"the file that .*model\.pt2\.json describes; received another"):
        read_beside(path)


@pytest.mark.parametrize("change", [{"rcipe": "augbn"}, {"names": 3}, {"inputs": {"order": "grb"}}])
def test_metadata_that_cannot_be_read_is_an_error(change: dict[str, Any]) -> None:
    text = json.dumps({**json.loads(ExportMetadata("augbn", "logits", -1, "scores", (None, 3)).to_json()), **change})
    with pytest.raises(ExportError, match=r"here has some that cannot be read.*Try: export the model again"):
        read_metadata(text, "here")
