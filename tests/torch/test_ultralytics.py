"""ultralytics: `yolo.model = sita.adapt(yolo.model)`, and its pipelines run adapted.

The reference is ultralytics itself with layers that blend the statistics of the one image in a batch by hand.
"""

from __future__ import annotations

import copy
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

os.environ.update(YOLO_OFFLINE="true", YOLO_CONFIG_DIR=tempfile.mkdtemp())
from sita_workbench.models.torchvision_compat import LIBRARY

# isort: split
import torchvision
from PIL import Image

import sita_adapters as sita
from sita_adapters.errors import ModelError

CONFIGS = ["yolo11n-cls", "yolov8n", "yolo11n-seg", "yolov8n-pose", "yolo26n"]
PRIOR = 0.7
HOW: dict[str, Any] = {"imgsz": 64, "conf": 1e-6, "device": "cpu", "verbose": False}

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fuse.. of an adapted:sita_adapters.errors.SitaWarning"),
    pytest.mark.xdist_group("ultralytics"),
]


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Import it here, because it replaces functions of other libraries, which are restored."""
    monkeypatch.setattr(Image, "open", Image.open)
    monkeypatch.setattr(torch, "save", torch.save)
    from ultralytics.utils.nms import TorchNMS

    monkeypatch.chdir(tmp_path)  # where it writes its runs
    if LIBRARY is not None:  # torchvision's own does not load
        monkeypatch.setattr(torchvision.ops, "nms", TorchNMS.nms)


def make(config: str, images: torch.Tensor | None = None) -> Any:
    """A YOLO object with random weights, and statistics as after training on some images."""
    from ultralytics import YOLO

    torch.manual_seed(0)
    yolo = YOLO(f"{config}.yaml", verbose=False)
    for module in yolo.model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None
    with torch.no_grad():
        yolo.model.train()(torch.rand(4, 3, 64, 64) if images is None else images)
    yolo.model.eval()
    return yolo


class Blending(nn.Module):
    """A BatchNorm layer that blends its statistics with those of its batch."""

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, mean, variance = self.norm, x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
        mean, variance = PRIOR * n.running_mean + (1 - PRIOR) * mean, PRIOR * n.running_var + (1 - PRIOR) * variance
        return functional.batch_norm(x, mean, variance, n.weight, n.bias, eps=n.eps)


def blended_by_hand(yolo: Any) -> Any:
    other = copy.deepcopy(yolo)
    for module in list(other.model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.BatchNorm2d):
                setattr(module, name, Blending(child))
    other.model.fuse = lambda **_: other.model
    return other


def adapted(yolo: Any) -> Any:
    other = copy.deepcopy(yolo)
    other.model = sita.adapt(other.model, "bn", priors=PRIOR)
    return other


def photo(seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return (90 * random.random((64, 64, 3)) + 130 * random.random((4, 4, 3)).repeat(16, 0).repeat(16, 1)).astype(
        "uint8"
    )


def parts(result: Any) -> list[np.ndarray]:
    """What a result holds: probabilities, boxes with scores and classes, masks, keypoints."""
    found = [result.probs, result.boxes, result.masks, result.keypoints]
    return [part.data.numpy().astype(np.float64) for part in found if part is not None]


def close(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        if one.ndim == 3 and {*one.flat} <= {0.0, 1.0}:  # masks: a few pixels lie on the threshold
            assert np.abs(one - other).mean() < 1e-3
        else:
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("config", CONFIGS)
def test_predict_runs_adapted(config: str) -> None:
    yolo = make(config)
    (expected,) = blended_by_hand(yolo).predict(photo(), **HOW)
    (found,) = adapted(yolo).predict(photo(), **HOW)
    (plain,) = yolo.predict(photo(), **HOW)
    close(parts(found), parts(expected))
    assert parts(plain)[0].shape != parts(found)[0].shape or np.abs(parts(plain)[0] - parts(found)[0]).max() > 1e-3
    if found.boxes is not None:
        classes = parts(found)[0][:, 5]
        assert len(classes)
        np.testing.assert_array_equal(classes, np.rint(classes))


@pytest.mark.parametrize("config", ["yolov8n", "yolo26n"])
def test_track_runs_adapted(config: str) -> None:
    yolo, frames = make(config), [photo(0), photo(0)]
    how = {**HOW, "tracker": "bytetrack.yaml", "persist": True}
    other = blended_by_hand(yolo)
    expected = [other.track(frame, **how)[0] for frame in frames]
    yolo.model = sita.adapt(yolo.model, "bn", priors=PRIOR)
    for frame, wanted in zip(frames, expected, strict=True):
        close(parts(yolo.track(frame, **how)[0]), parts(wanted))


def write_data(folder: Path) -> Path:
    """Write four photographs with boxes and keypoints, as ultralytics reads them; return the file about them."""
    for seed in range(4):
        for kind in ("images", "labels"):
            (folder / kind / "val").mkdir(parents=True, exist_ok=True)
        Image.fromarray(photo(seed)).save(folder / f"images/val/{seed}.png")
        (folder / f"labels/val/{seed}.txt").write_text("1 0.5 0.5 0.4 0.4\n")
    file = folder / "data.yaml"
    names = "".join(f"  {i}: class{i}\n" for i in range(80))
    file.write_text(f"path: {folder}\ntrain: images/val\nval: images/val\nnames:\n{names}")
    return file


def test_val_runs_adapted_on_boxes(tmp_path: Path) -> None:
    yolo, data = make("yolov8n"), write_data(tmp_path / "data")

    def boxes(model: Any, name: str) -> list[dict[str, Any]]:
        how = {**HOW, "conf": 1e-4, "batch": 1, "workers": 0, "plots": False, "save_json": True}
        model.val(data=str(data), project=str(tmp_path), name=name, **how)
        return json.loads((tmp_path / name / "predictions.json").read_text())

    found, expected = boxes(adapted(yolo), "adapted"), boxes(blended_by_hand(yolo), "reference")
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert (one["image_id"], one["category_id"]) == (other["image_id"], other["category_id"])
        np.testing.assert_allclose([*one["bbox"], one["score"]], [*other["bbox"], other["score"]], rtol=1e-3, atol=0.01)
    assert found != boxes(yolo, "plain")


def test_val_runs_adapted_on_classes(tmp_path: Path) -> None:
    yolo = make("yolo11n-cls")
    for seed in range(8):
        file = tmp_path / f"data/val/class{seed % 4}/{seed}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(photo(seed)).save(file)
    (tmp_path / "data/train").symlink_to(tmp_path / "data/val")

    def labels(model: Any) -> np.ndarray:
        kept: list[Any] = []
        model.add_callback("on_val_end", lambda validator: kept.extend(validator.pred))
        how = {"imgsz": 64, "device": "cpu", "verbose": False, "batch": 1, "workers": 0, "plots": False}
        model.val(data=str(tmp_path / "data"), project=str(tmp_path), **how)
        return torch.cat(kept).numpy()

    found = labels(adapted(yolo))
    np.testing.assert_array_equal(found, labels(blended_by_hand(yolo)))
    assert (found != labels(yolo)).any()


def test_a_yolo_object_is_refused_and_the_advice_works() -> None:
    yolo = make("yolo11n-cls")
    with pytest.raises(ModelError, match="a __call__ of its own, which does not run its forward") as caught:
        sita.adapt(yolo)
    exec(str(caught.value).partition("Try: ")[2].rstrip("."), {"sita": sita, "yolo": yolo})
    yolo.model(torch.rand(1, 3, 64, 64))
    assert sita.describe(yolo.model).scores == "probabilities"
    with pytest.warns(sita.SitaWarning, match=r"fuse\(\) of an adapted ClassificationModel changed nothing"):
        assert yolo.model.fuse() is yolo.model


@pytest.mark.parametrize("config", ["yolov10n", "yolo26n", "yolov8n", "yolo11n-seg"])
def test_every_output_is_one_rows_and_class_ids_are_whole(config: str) -> None:
    images = torch.rand(3, 3, 128, 128, generator=torch.Generator().manual_seed(1))
    images[2] = 0.1 * images[2] + 0.8
    source, images = make(config, images[:2]).model.double(), images.double()
    without_nms = config in ("yolov10n", "yolo26n")
    source.end2end = without_nms
    _, rule = sita.RECIPES["auto"].prior_values
    with torch.no_grad():
        rows = [source(images), sita.adapt(source, sita.Recipe(priors=rule, n_views=0))(images)]
        with sita.observe(model := sita.adapt(source)) as seen:
            found = model(images)
    chosen = seen.weights.argmax(1).tolist()
    assert set(chosen) == {0, 1}
    for image, row in enumerate(chosen):
        for one, other in zip(tensors(found), tensors(rows[row]), strict=True):
            torch.testing.assert_close(one[image], other[image], rtol=1e-9, atol=1e-9)
    detections = tensors(found)[0]
    assert (detections.shape[-1] == 6) == without_nms
    if without_nms:
        torch.testing.assert_close(detections[..., 5], detections[..., 5].round(), rtol=0, atol=0)


def tensors(output: Any) -> list[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        return [output]
    values = output.values() if isinstance(output, dict) else output
    return [tensor for value in values for tensor in tensors(value)]
