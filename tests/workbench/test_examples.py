"""The examples run, and predict what the bare model adapted by hand predicts."""

from __future__ import annotations

import functools
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
import torch_reference
from torch import nn

import sita_adapters as sita

EXAMPLES = Path(__file__).parents[2] / "examples"
PRINTED = {
    "torchvision_segmentation": r"OrderedDict\['aux'\] (\(.+?\)) -> \1.*same answer: True",
    "smp_segmentation": r"labels \(2, 64, 64\).*mask \(2, 1, 64, 64\).*the mask that came out: True",
    "keras_pipeline": r"([\d.]+ % right): adapted\n *\1: adapted, saved.*at most (0\.0e|\d\.\de-(0[6-9]|[1-9]))",
    "detection": r"a vote: [^\n]*class_axis=.*its backbone adapted: 3 feature maps.*a fused model: [^\n]*fused",
    "distributed_evaluation": r"process [01]: 10[01] images.*together: (201 images, \d+ right)\none process: \1\n",
    "ultralytics_yolo": r"the YOLO object: [^\n]*Try: yolo\.model = sita.*\n5 boxes.*The shift selects the row",
    "video": r"frames shuffled and played again: answers differ by 0\.0e\+00",
}
"""What an example must print, if that shows a result."""
FLOAT_ROUNDING = {"rtol": 1e-4, "atol": 1e-4}


def run(name: str, *options: str) -> str:
    """Run an example in a process of its own, and return what it prints."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "COLUMNS": "160"}
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def state(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """Run an example in this process and an empty folder, check what it prints, and return its variables."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [f"{request.param}.py"])
    variables = runpy.run_path(str(EXAMPLES / f"{request.param}.py"))
    printed = capsys.readouterr().out
    assert re.search(PRINTED.get(request.param, "."), printed, re.DOTALL), printed
    return variables


def example(name: str) -> Any:
    marks = () if name == "quickstart" else pytest.mark.slow
    return pytest.mark.parametrize("state", [pytest.param(name, marks=marks)], indirect=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["smp_segmentation", "keras_pipeline", "distributed_evaluation", "ultralytics_yolo"])
def test_runs_and_prints_what_it_shows(name: str) -> None:
    """The others run below, with more checks."""
    assert re.search(PRINTED[name], printed := run(name), re.DOTALL), printed


@example("quickstart")
def test_quickstart_runs(state: dict[str, Any]) -> None:
    assert isinstance(state["adapted"], nn.Sequential)


def one_by_one(model: nn.Module, images: torch.Tensor, **companions: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        answers = [
            model(images[i : i + 1], **{k: v[i : i + 1] for k, v in companions.items()}) for i in range(len(images))
        ]
    return torch.cat(answers)


@example("timm_pipeline")
def test_timm_pipeline_equals_a_plain_loop_in_float64(state: dict[str, Any]) -> None:
    image = state["transform"](state["take_photo"](1, 0.6))
    rows, _ = reference.rows_of("auto")
    calls: list[Any] = []
    outputs = torch_reference.run_rows(state["source"], image, [lambda x: x], rows, calls=calls)
    scores = [np.asarray(output) for output in outputs]
    weights = reference.mix_weights(scores, [reference.image_shift(each) for each in calls], "logits")
    with torch.inference_mode():
        found = state["model"](image[None])[0]
    np.testing.assert_allclose(found.numpy(), reference.mix(scores, weights), **FLOAT_ROUNDING)


@example("huggingface_pipeline")
def test_huggingface_pipeline_equals_its_bare_model_adapted(state: dict[str, Any]) -> None:
    by_hand = sita.adapt(state["model"])
    for photo, (answer,) in zip(state["photos"], state["after"], strict=True):
        pixels = state["processor"](photo, return_tensors="pt")["pixel_values"]
        with torch.inference_mode():
            probability, label = by_hand(pixels).logits.softmax(1)[0].max(0)
        assert answer["label"] == state["NAMES"][int(label)]
        assert answer["score"] == pytest.approx(float(probability), abs=1e-4)


@example("lightning_module")
def test_lightning_equals_its_bare_network_adapted(state: dict[str, Any]) -> None:
    network = sita.unwrap(state["module"].net)
    images, _ = state["foggy"].dataset.tensors
    with torch.inference_mode():
        torch.testing.assert_close(state["before"], network(images).softmax(1), **FLOAT_ROUNDING)
    torch.testing.assert_close(state["after"], one_by_one(sita.adapt(network), images).softmax(1), **FLOAT_ROUNDING)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("state", "by_hand", "parts"),
    [
        ("torchvision_segmentation", functools.partial(sita.adapt, task="segmentation"), ("out", "aux")),
        ("detection", sita.adapt, ("logits", "pred_boxes")),
    ],
    ids=["torchvision_segmentation", "detection"],
    indirect=["state"],
)
def test_each_image_has_the_answer_of_a_batch_of_one(state: dict[str, Any], by_hand: Any, parts: tuple[str]) -> None:
    adapted = by_hand(state["model"] if "model" in state else state["detector"])
    for number, image in enumerate(state["foggy"]):
        with torch.inference_mode():
            single = adapted(image[None])
        for part in parts:
            torch.testing.assert_close(state["after"][part][number], single[part][0], **FLOAT_ROUNDING)
    assert max((state["after"][part] - state["before"][part]).abs().max() for part in parts) > 0.01


@example("data_loader")
def test_data_loader_adapts_exactly_the_uncertain_images(state: dict[str, Any]) -> None:
    batch = state["collate"]([state["make_item"](n, 0.2) for n in range(24)])
    images, masks, source = batch["image"], batch["mask"], state["source"]
    plain = one_by_one(source, images, mask=masks)
    adapted = one_by_one(sita.adapt(source), images, mask=masks)
    unsure = torch.tensor([reference.entropy(scores.tolist()) > 0.1 for scores in plain])
    assert 0 < unsure.sum() < len(unsure)
    found, chosen = state["predict"](images, masks)
    assert torch.equal(chosen, unsure)
    torch.testing.assert_close(found, torch.where(unsure[:, None], adapted, plain), **FLOAT_ROUNDING)


@example("video")
def test_video_shows_the_fog_in_its_prior(state: dict[str, Any]) -> None:
    in_fog, bold = state["in_fog"].numpy(), state["bold"]
    assert bold[in_fog].mean() < bold[~in_fog].mean() - 0.05
    assert Path("video.png").read_bytes().startswith(b"\x89PNG")
    batch = sita.adapt(state["model"])(state["video"]).detach()
    torch.testing.assert_close(batch, state["answers"], **FLOAT_ROUNDING)


@example("calibrate")
def test_a_calibrated_recipe_keeps_its_share_of_predictions(state: dict[str, Any]) -> None:
    model, calibrated, clean = state["model"], state["models"]["calibrated"], state["clean"]
    with torch.inference_mode():
        kept = (calibrated(clean).argmax(1) == model(clean).argmax(1)).float().mean()
    assert kept >= 0.93
    assert sita.Recipe.from_json(state["stored"]) == state["recipe"]


@pytest.mark.slow
@pytest.mark.real
def test_examples_on_real_data_run(data: Path) -> None:
    printed = run("cifar10c", str(data), "--limit", "4", "--recipes", "source,augbn")
    assert re.search(r"mean +│ +\d+\.\d\d +│ +\d+\.\d\d", printed), printed
    printed = run("compare_frameworks", str(data), "--images", "1", "--size", "96", "--recipes", "source,augbn")
    assert re.search(r"agree on 100\.0 %", printed), printed


def test_the_notebook_runs_and_ends_in_a_picture() -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(EXAMPLES / "quickstart.ipynb", as_version=4)
    for cell in notebook.cells:
        cell.pop("outputs", None)
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    text = "".join(output.get("text", "") for output in outputs)
    source, adapted = (float(share) for share in re.findall(r"([\d.]+)% right", text))
    assert adapted > source + 10
    assert "image/png" in outputs[-1]["data"]
    table = next(output["data"]["text/markdown"] for output in outputs if "text/markdown" in output.get("data", {}))
    assert f"{adapted:.2f}" in table  # `benchmark` counts what the loop counted
