"""The examples run, are short, and predict what the bare model adapted by hand predicts."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
import torch
from torch import nn

import sita_adapters as sita

EXAMPLES = Path(__file__).parents[2] / "examples"
PRINTED = {
    "quickstart": [r"foggy images, adapted +\d+\.\d % right"],
    "timm_pipeline": [r"foggy photos: \d+ % right by the source model, \d+ % adapted", "chosen prior", "unanimous"],
    "torchvision_segmentation": [r"OrderedDict\['aux'\] (\(.+\)) -> \1", "same answer: True", "label changed in fog"],
    "smp_segmentation": [r"labels \(2, 64, 64\)", r"mask \(2, 1, 64, 64\)", "the mask that came out: True"],
    "huggingface_pipeline": [r"source +\d+ % of foggy photos right", r"adapted +\d+ % of foggy photos right"],
    "lightning_module": [r"foggy images: \d+\.\d% right by the source network, \d+\.\d% adapted"],
    "keras_pipeline": [
        r"(\d+\.\d % right): adapted\n *\1: adapted, saved, loaded",
        r"at most (0\.0e\+00|\d\.\de-(0[6-9]|[1-9]\d))\n",
    ],
    "detection": [
        r"RTDetrObjectDetectionOutput: boxes \(2, 20, 4\), logits \(2, 20, 2\)",
        "a vote: .*class_axis=",
        r"Faster R-CNN, its backbone adapted: 3 feature maps, (2 lists of boxes|no boxes)",
        "a fused model: .*fused",
    ],
    "distributed_evaluation": [
        r"process 0: 101 images, ",
        r"process 1: 100 images, ",
        r"together: (201 images, \d+ right)\none process: \1\n",
    ],
    "video": ["frames shuffled and played again: answers differ by 0.0e\\+00", r"λ: 0\.\d\d on clear frames"],
    "calibrate": [r"chosen: auto-calibrated: λ .*\n", r"\nsource +\d+\.\d % right", r"\ncalibrated +\d+\.\d % right"],
    "data_loader": [r"fog 0\.0: \d+ of 200 images adapted", r"fog 0\.6: \d+ of 200 images adapted; wrong: "],
}
PIPELINES = [name for name in PRINTED if name != "quickstart"]
FLOAT_ROUNDING = {"rtol": 1e-4, "atol": 1e-4}


def run(name: str, **variables: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", **variables}
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_printed(name: str, printed: str) -> None:
    for pattern in PRINTED[name]:
        assert re.search(pattern, printed), printed


@pytest.mark.slow
@pytest.mark.parametrize("name", ["smp_segmentation", "keras_pipeline", "distributed_evaluation"])
def test_runs_and_prints_what_it_shows(name: str) -> None:
    """The others run below, with more checks."""
    check_printed(name, run(name))


def test_quickstart_runs(capsys: pytest.CaptureFixture[str]) -> None:
    state_of("quickstart", capsys)


@pytest.mark.parametrize("name", PIPELINES)
def test_is_short_and_shows_its_command(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 70
    assert f"\n    python examples/{name}.py\n" in text


def state_of(name: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Run an example here, check what it prints, and return its variables."""
    state = runpy.run_path(str(EXAMPLES / f"{name}.py"))
    check_printed(name, capsys.readouterr().out)
    return state


def one_by_one(model: nn.Module, images: torch.Tensor, **companions: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        answers = [
            model(images[i : i + 1], **{k: v[i : i + 1] for k, v in companions.items()}) for i in range(len(images))
        ]
    return torch.cat(answers)


@pytest.mark.slow
def test_timm_pipeline_equals_a_plain_loop_in_float64(capsys: pytest.CaptureFixture[str]) -> None:
    state = state_of("timm_pipeline", capsys)
    image = state["transform"](state["take_photo"](1, 0.6))
    rows, _ = reference.ops_rows([1.0, reference.BOLD], n=0)
    calls: list[Any] = []
    outputs = reference.run_rows(state["source"], image, [lambda x: x], rows, calls=calls)
    source, adapted = (np.asarray(output) for output in outputs)
    weight = reference.adapted_weight(reference.image_shift(calls[1]), source, adapted, "logits")
    with torch.inference_mode():
        found = state["model"](image[None])[0]
    np.testing.assert_allclose(found.numpy(), reference.mix(source, adapted, weight), **FLOAT_ROUNDING)


@pytest.mark.slow
def test_huggingface_pipeline_equals_its_bare_model_adapted(capsys: pytest.CaptureFixture[str]) -> None:
    state = state_of("huggingface_pipeline", capsys)
    by_hand = sita.adapt(state["model"])
    for photo, (answer,) in zip(state["photos"], state["after"], strict=True):
        pixels = state["processor"](photo, return_tensors="pt")["pixel_values"]
        with torch.inference_mode():
            probability, label = by_hand(pixels).logits.softmax(1)[0].max(0)
        assert answer["label"] == state["NAMES"][int(label)]
        assert answer["score"] == pytest.approx(float(probability), abs=1e-4)


@pytest.mark.slow
def test_lightning_equals_its_bare_network_adapted(capsys: pytest.CaptureFixture[str]) -> None:
    state = state_of("lightning_module", capsys)
    network = sita.unwrap(state["module"].net)
    images, _ = state["foggy"].dataset.tensors
    with torch.inference_mode():
        torch.testing.assert_close(state["before"], network(images).softmax(1), **FLOAT_ROUNDING)
    torch.testing.assert_close(state["after"], one_by_one(sita.adapt(network), images).softmax(1), **FLOAT_ROUNDING)


@pytest.mark.slow
def test_torchvision_predicts_each_image_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    state = state_of("torchvision_segmentation", capsys)
    by_hand = sita.adapt(state["model"], task="segmentation")
    for number, image in enumerate(state["foggy"]):
        with torch.inference_mode():
            alone = by_hand(image[None])
        for part in ("out", "aux"):
            torch.testing.assert_close(state["after"][part][number], alone[part][0], **FLOAT_ROUNDING)


@pytest.mark.slow
def test_data_loader_adapts_exactly_the_uncertain_images(capsys: pytest.CaptureFixture[str]) -> None:
    state = state_of("data_loader", capsys)
    batch = state["collate"]([state["make_item"](n, 0.2) for n in range(24)])
    images, masks, source = batch["image"], batch["mask"], state["source"]
    plain = one_by_one(source, images, mask=masks)
    adapted = one_by_one(sita.adapt(source), images, mask=masks)
    unsure = torch.tensor([reference.entropy(scores.tolist()) > 0.1 for scores in plain])
    assert 0 < unsure.sum() < len(unsure)
    found, chosen = state["predict"](images, masks)
    assert torch.equal(chosen, unsure)
    torch.testing.assert_close(found, torch.where(unsure[:, None], adapted, plain), **FLOAT_ROUNDING)


@pytest.mark.slow
def test_detection_answers_for_each_picture_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    state = state_of("detection", capsys)
    for number, picture in enumerate(state["foggy"]):
        with torch.inference_mode():
            alone = state["adapted"](picture[None])
        for part in ("logits", "pred_boxes"):
            torch.testing.assert_close(state["after"][part][number], alone[part][0], **FLOAT_ROUNDING)
    assert (state["after"].pred_boxes - state["before"].pred_boxes).abs().max() > 0.01


@pytest.mark.slow
def test_video_shows_the_fog_in_its_prior(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    picture = tmp_path / "video.png"
    monkeypatch.setattr(sys, "argv", ["video.py", str(picture)])
    state = state_of("video", capsys)
    in_fog, bold = state["in_fog"].numpy(), state["bold"]
    assert bold[in_fog].mean() < bold[~in_fog].mean() - 0.05
    assert picture.read_bytes().startswith(b"\x89PNG")
    batch = sita.adapt(state["model"])(state["video"]).detach()
    torch.testing.assert_close(batch, state["answers"], **FLOAT_ROUNDING)


@pytest.mark.slow
def test_a_calibrated_recipe_keeps_its_share_of_predictions(capsys: pytest.CaptureFixture[str]) -> None:
    state = state_of("calibrate", capsys)
    model, calibrated, clean = state["model"], state["models"]["calibrated"], state["clean"]
    with torch.inference_mode():
        kept = (calibrated(clean).argmax(1) == model(clean).argmax(1)).float().mean()
    assert kept >= 0.93
    assert sita.Recipe.from_json(state["stored"]) == state["recipe"]


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("cifar10c", ["--limit", "4", "--recipes", "source,augbn"], r"mean +│ +\d+\.\d\d +│ +\d+\.\d\d"),
        ("compare_frameworks", ["--images", "1", "--size", "96", "--recipes", "source,augbn"], r"agree on 100\.0 %"),
    ],
    ids=["cifar10c", "compare_frameworks"],
)
def test_examples_on_real_data_run(name: str, options: list[str], expected: str, data: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), str(data), *options]
    if name == "compare_frameworks":
        command += ["--out", str(tmp_path / "figure.png")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert re.search(expected, done.stdout), done.stdout
