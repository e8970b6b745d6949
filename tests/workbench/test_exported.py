"""Exported files: compared with the adapted model before they are put in place, and described by their metadata."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from nets import images, small, tiny
from torch import nn

import sita_adapters as sita
from sita_adapters.errors import ExportError
from sita_workbench.exported.export import export_checked, near_ties, prior_gaps
from sita_workbench.exported.metadata import ExportMetadata, read_metadata
from sita_workbench.exported.runtimes import OPENERS, open_onnx

FIELDS = {"inputs": sita.Inputs(mean=0.5, std=0.25), "names": ("ant", "bee"), "model": "tiny", "task": "segmentation"}


@pytest.mark.parametrize("name", ["model.onnx", pytest.param("model.pt2", marks=pytest.mark.slow)])
def test_a_checked_file_answers_as_the_model_and_has_its_metadata(name: str, tmp_path: Path) -> None:
    adapted = sita.adapt(tiny(), "augbn")
    exported = export_checked(adapted, tmp_path / name, images(1, 3, 16, 16), metadata_fields=FIELDS, diagnostics=True)
    assert exported.difference < 1e-5
    assert "images (N, 3, 16, 16); checked: within " in str(exported)
    expected = ["model.onnx"] if name == "model.onnx" else ["model.pt2", "model.pt2.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == expected
    batch = images(3, 3, 16, 16, seed=5)
    with torch.no_grad():
        answered = OPENERS[exported.format](exported.path)(batch.numpy())["scores"]
        np.testing.assert_allclose(answered, adapted(batch).numpy(), atol=1e-4)
    if name == "model.onnx":
        metadata = open_onnx(exported.path).metadata
    else:
        metadata = read_metadata((tmp_path / "model.pt2.json").read_text(), name)
    assert metadata == ExportMetadata(
        str(sita.describe(adapted).recipe),
        "logits",
        -1,
        "scores",
        (None, 3, 16, 16),
        diagnostics=("prior", "entropy"),
        rows=3,
        **FIELDS,  # type: ignore[arg-type]
    )


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


@pytest.mark.parametrize(
    ("entropies", "labels", "combine", "tied"),
    [
        ((0.1, 0.1, 0.5, 0.9), (7, 7, 7, 7), "vote", False),  # the order of two that are kept does not matter
        ((0.1, 0.2, 0.5, 0.500005), (7, 7, 7, 7), "vote", True),  # either may be kept
        ((0.1, 0.2, 0.5, 0.500005), (7, 7, 7, 7), "mean", True),
        ((0.1, 0.2, 0.5, 0.50005), (7, 7, 7, 7), "vote", False),
        ((0.1, 0.100005, 0.5, 0.9), (7, 8, 9, 9), "vote", True),  # one vote for each of three labels
        ((0.1, 0.100005, 0.5, 0.9), (7, 8, 9, 9), "mean", False),
        ((0.1, 0.10005, 0.5, 0.9), (7, 8, 9, 9), "vote", False),
        ((0.1, 0.100005, 0.5, 0.9), (7, 8, 8, 9), "vote", False),  # 8 has two votes
    ],
)
def test_only_what_rounding_can_change_is_a_near_tie(
    entropies: tuple[float, ...], labels: tuple[int, ...], combine: str, tied: bool
) -> None:
    """The check of a file ignores near ties: a wider rule would hide wrong files."""
    seen: Any = SimpleNamespace(
        entropies=np.array([entropies]),
        kept=np.array([[True, True, True, False]]),
        votes=np.array([[labels[:3].count(label) for label in labels]]),
        labels=np.array([labels]),
        answers=np.array([8 if labels.count(8) == 2 else 7]),
    )
    assert near_ties(seen, combine).tolist() == [tied]


def test_the_prior_of_a_file_is_that_of_a_candidate_which_rounding_could_choose() -> None:
    entropies = np.array([[0.1, 0.100005, 0.3], [0.1, 0.2, 0.3]])
    seen: Any = SimpleNamespace(entropies=entropies, candidate_priors=np.array([[1.0, 0.5, 0.2]] * 2))
    for answered, gaps in (([1.0, 1.0], [0, 0]), ([0.5, 0.5], [0, 0.5]), ([0.2, np.nan], [0.3, np.nan])):
        np.testing.assert_allclose(prior_gaps(np.array(answered), seen), gaps, atol=1e-12)


def test_without_its_runtime_no_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sita_workbench.exported.runtimes.find_spec", lambda name: None)
    with pytest.raises(ExportError, match=r"model\.onnx needs onnxruntime to run.*Try: pip install onnxruntime"):
        export_checked(sita.adapt(tiny(), "augbn"), tmp_path / "model.onnx", images(2, 3, 16, 16))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("change", [{"rcipe": "augbn"}, {"names": 3}, {"inputs": {"order": "grb"}}])
def test_metadata_that_cannot_be_read_is_an_error(change: dict[str, Any]) -> None:
    text = json.dumps({**json.loads(ExportMetadata("augbn", "logits", -1, "scores", (None, 3)).to_json()), **change})
    with pytest.raises(ExportError, match=r"the metadata in here cannot be read.*Try: export the model again"):
        read_metadata(text, "here")
