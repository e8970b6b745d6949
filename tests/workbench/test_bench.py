"""`sita bench`: its metrics equal their definitions, and an interrupted run ends as an undisturbed one."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nets import small
from PIL import Image
from scipy.special import entr, softmax
from typer.testing import CliRunner

import sita_adapters as sita
from sita_adapters.errors import InputError, RecipeError
from sita_workbench import cli, metrics
from sita_workbench.corruptions import corrupt
from sita_workbench.data.opening import open_data
from sita_workbench.methods import Prediction, make_methods
from sita_workbench.models.loading import load_model
from sita_workbench.progress import ConsoleProgress, Progress
from sita_workbench.result_log import ResultLog
from sita_workbench.runs import Run, run_bench
from sita_workbench.timing import summarize_times

MODEL = """
from nets import dense, small

def classifier():
    return small(), {"inputs": "imagenet"}

def segmenter():
    return dense(), {"inputs": "imagenet", "task": "segmentation"}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of models, images with labels, and images with label maps."""
    folder = tmp_path_factory.mktemp("bench")
    (folder / "models.py").write_text(MODEL)
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (70, 16, 16, 3), dtype=np.uint8)
    np.savez(folder / "test.npz", images=images, labels=random.integers(0, 5, 70))
    for name in ("images", "labels"):
        (folder / "maps" / name).mkdir(parents=True)
    for number in range(9):
        Image.fromarray(images[number]).save(folder / "maps" / "images" / f"{number}.png")
        labels = random.integers(0, 5, (16, 16), dtype=np.uint8)
        labels[:2] = 255
        Image.fromarray(labels).save(folder / "maps" / "labels" / f"{number}.png")
    return folder


def arguments(folder: Path, out: str, *others: str) -> list[str]:
    model, data = f"{folder / 'models.py'}:classifier", f"npz:{folder / 'test.npz'}"
    return ["bench", "--model", model, "--data", data, "--out", str(folder / out), *others]


def measure(folder: Path, out: str, recipes: str, corrupt: str, limit: int, *, maps: bool = False) -> dict[str, Any]:
    """What the command measures, without the report that it draws."""
    loaded = load_model(f"{folder / 'models.py'}:{'segmenter' if maps else 'classifier'}")
    data = f"segmentation:{folder / 'maps'}" if maps else f"npz:{folder / 'test.npz'}"
    opened = open_data(data, corrupt=corrupt, limit=limit, size=loaded.size)
    return run_bench(Run(loaded, opened, make_methods(recipes, loaded.task)), folder / out, Progress())


@contextlib.contextmanager
def interrupt(self: Progress, description: str, total: int) -> Iterator[Any]:
    """Stop a run after some steps, as Ctrl-C or a kill would."""
    steps = iter(range(9))

    def advance(count: int = 1, doing: str | None = None) -> None:
        if next(steps, None) is None:
            raise KeyboardInterrupt

    yield advance


def test_an_interrupted_run_resumes_and_ends_as_an_undisturbed_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = folder / "stopped"
    options = ("--recipes", "bn,ops", "--corrupt", "clean,fog,contrast", "--limit", "12", "--timing", "2")

    def run() -> Any:
        return CliRunner().invoke(cli.make_app(), arguments(folder, "stopped", *options))

    with monkeypatch.context() as patch:
        patch.setattr(ConsoleProgress, "track", interrupt)
        stopped = run()
    assert stopped.exit_code == 130
    assert f"Stopped. Finished results are in {out}; rerun the same command to resume" in stopped.output
    before = (out / "results.jsonl").read_bytes()
    done = len(before.splitlines()) - 1
    assert 0 < done < 9
    assert not (out / "results.json").exists()
    (out / "results.jsonl").write_bytes(before + b'{"key": "torn li')  # a kill in the middle of a line leaves this
    assert f"Reused from an earlier run: {12 * done} of 108 predictions ({100 * done / 9:.0f} %)." in run().output
    again = run().output
    assert "108 of 108 predictions (100 %)" in again
    assert "Reused from an earlier run: the times." in again
    measure(folder, "undisturbed", "bn,ops", "clean,fog,contrast", 12)
    for name in ("results.jsonl", "results.json"):
        assert (out / name).read_bytes() == (folder / "undisturbed" / name).read_bytes()
    assert (out / "results.jsonl").read_bytes().startswith(before)


def test_times_and_their_ratios_agree_on_a_busy_machine() -> None:
    """Medians of their own would be 330 ms and 1070 ms here, beside a ratio of 1.0."""
    seconds = {"source": [0.30, 0.33, 0.33, 1.00, 1.10], "bn": [0.30, 1.07, 1.10, 1.00, 1.10]}
    times = summarize_times(seconds)
    assert times["source"] == {"ms": 330.0, "low": 330.0, "high": 1000.0, "relative": 1.0}
    assert (times["bn"]["ms"], times["bn"]["relative"]) == (330.0, 1.0)


def test_batches_equal_one_at_a_time(folder: Path) -> None:
    results = measure(folder, "batches", "augbn,ops", "contrast", 12)
    with np.load(folder / "test.npz") as stored:
        images, labels = stored["images"], stored["labels"]
    chosen = [number * 70 // 12 for number in range(12)]
    pixels = np.stack([corrupt(images[index], "contrast", 5, seed=0, index=index) for index in chosen]) / 255
    encoded = torch.from_numpy((pixels - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]).permute(0, 3, 1, 2).float()
    predicted = {}
    for method in results["methods"]:
        adapted = sita.adapt(small(), method["name"])
        with torch.inference_mode():
            p = torch.cat([adapted(image) for image in encoded.split(1)]).double().softmax(1).numpy()
        predicted[method["name"]] = p.argmax(1)
        found = method["conditions"]["contrast/5"]
        assert found["score"] == pytest.approx(100 * np.mean(p.argmax(1) == labels[chosen]), abs=1e-4)
        assert found["entropy"] == pytest.approx(entr(p).sum(1).mean(), abs=1e-4)
        changed = np.mean(predicted[method["name"]] != predicted["source"])
        assert method["corrupted"]["changed"] == (
            None if method["name"] == "source" else pytest.approx(changed, abs=1e-4)
        )


def test_recipes_can_be_added_and_nothing_is_run_twice(folder: Path) -> None:
    measure(folder, "added", "bn", "fog", 8)
    log = folder / "added/results.jsonl"
    lines = log.read_text().splitlines()
    recipes = ("--corrupt", "fog", "--timing", "0", "--recipes", "bn,ops[combine=mean,top_k=5]", "--limit")
    done = CliRunner().invoke(cli.make_app(), arguments(folder, "added", *recipes, "8"))
    assert done.exit_code == 0, done.output
    more = log.read_text().splitlines()
    assert more[: len(lines)] == lines
    assert len(more) == len(lines) + 1
    results = json.loads((folder / "added/results.json").read_text())
    assert [method["name"] for method in results["methods"]] == ["source", "bn", "ops[combine=mean,top_k=5]"]
    refused = CliRunner().invoke(cli.make_app(), arguments(folder, "added", *recipes, "9"))
    assert "images was 8 and is 9. Try: another --out" in str(refused.exception)
    assert log.read_text().splitlines() == more


def test_segmentation(folder: Path) -> None:
    results = measure(folder, "maps_out", "bn,ops", "clean,fog", 9, maps=True)
    assert results["setup"]["metric"] == "mIoU"
    ops = results["methods"][-1]
    assert ops["corrupted"]["changed"] is None  # maps are not kept
    assert 0 < ops["clean"]["score"] < 100


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("opps", "received 'opps'. Did you mean"),
        ("ops[top_k=5", "expected name[field=value,…]"),
        ("ops[top_k=99]", "at most 8, the number of candidates"),
        ("tent[lr=1]", "To change a recipe's fields, use brackets"),
        ("ptn[share=batch]", "Try: share='image'"),
    ],
)
def test_bad_recipes_are_refused(text: str, message: str) -> None:
    with pytest.raises(RecipeError) as error:
        make_methods(text, "classification")
    assert message in str(error.value)


def test_fields_change_in_brackets() -> None:
    methods = make_methods("bn, ops[combine=mean,priors=(0.5, 1.0),top_k=2],augbn[priors=0.9]", "classification")
    assert [method.name.partition("[")[0] for method in methods] == ["source", "bn", "ops", "augbn"]
    ops, augbn = (method.recipe for method in methods[2:])
    assert (ops.combine, ops.priors, ops.top_k, augbn.priors) == ("mean", (0.5, 1.0), 2, (0.9,))


def test_calibration_error_and_interval_equal_their_definitions() -> None:
    random = np.random.default_rng(0)
    p = softmax(2 * random.normal(size=(400, 5)), axis=1)
    labels = np.array([random.choice(5, p=line) for line in p])
    entry = metrics.join_entries([metrics.make_entry(Prediction(p), labels, None)])
    _, facts = metrics.summarize_condition(entry, metrics.draw_weights(400))
    right, error = p.argmax(1) == labels, 0.0
    for low in range(15):
        inside = (low / 15 <= p.max(1)) & (p.max(1) < (low + 1) / 15)
        if inside.any():
            error += inside.mean() * abs(right[inside].mean() - p.max(1)[inside].mean())
    assert facts["ece"] == pytest.approx(100 * error, abs=1e-3)
    half = 196 * np.sqrt(right.mean() * (1 - right.mean()) / 400)  # the normal approximation
    assert facts["high"] - facts["score"] == pytest.approx(half, rel=0.15)


@pytest.mark.parametrize("damaged", [b"damaged\n", b"[]\n"])
def test_a_damaged_line_of_the_log_is_refused(tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / "results.jsonl").write_bytes(b'{"about":{"model":"a"}}\n' + damaged)
    with pytest.raises(InputError, match="line 2 cannot be read"):
        ResultLog(tmp_path / "results.jsonl", {"model": "a"})


def test_labels_that_cannot_be_the_models_are_refused(folder: Path) -> None:
    loaded = load_model(f"{folder / 'models.py'}:classifier")
    for name in ("cat", "dog"):
        (folder / "two" / name).mkdir(parents=True)
        Image.new("RGB", (16, 16)).save(folder / "two" / name / "1.png")
    np.savez(folder / "eight.npz", images=np.zeros((2, 16, 16, 3), np.uint8), labels=np.array([0, 7]))
    for data, why in ((f"imagefolder:{folder / 'two'}", "2 classes"), (f"npz:{folder / 'eight.npz'}", "the label 7")):
        run = Run(loaded, open_data(data, corrupt="none"), make_methods("source", loaded.task))
        with pytest.raises(InputError, match=rf"{why}.*predicts 7"):
            run_bench(run, folder / why, Progress())


def test_a_device_moves_the_model_or_the_error_says_why_not(folder: Path) -> None:
    loaded = load_model(f"{folder / 'models.py'}:classifier")
    moved = loaded.on("meta")
    assert (loaded.on("cpu"), next(moved.model.parameters()).is_meta) == (loaded, True)
    assert moved.weights == "its own, on meta"  # results of another device are not reused
    with pytest.raises(InputError, match=r"--device: .*cannot be moved to 'nowhere': .*Try: leave it out"):
        loaded.on("nowhere")
