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
from sklearn.metrics import jaccard_score
from typer.testing import CliRunner

import sita_adapters as sita
from sita_adapters.errors import InputError, ModelError, RecipeError
from sita_workbench import cli, metrics
from sita_workbench.data.opening import open_data
from sita_workbench.methods import Prediction, make_methods
from sita_workbench.models.loading import load_model
from sita_workbench.progress import ConsoleProgress, Progress
from sita_workbench.result_log import ResultLog
from sita_workbench.runs import Run, run_bench
from sita_workbench.studies import STUDIES, layer_groups, study_methods
from sita_workbench.timing import summarize_times

TESTS = Path(__file__).parents[1]

MODEL = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
import torch
torch.set_num_threads(1)
from nets import dense, small

def classifier():
    return small(), {{"inputs": "imagenet"}}

def segmenter():
    return dense(), {{"inputs": "imagenet", "task": "segmentation"}}

def keras_classifier():
    import keras
    keras.utils.set_random_seed(0)
    from keras import layers
    inputs = keras.Input((16, 16, 3))
    x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(8, 3)(inputs)))
    x = layers.Dense(5, activation="softmax")(layers.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, x), {{"inputs": "unit"}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of models, images with labels, and images with label maps."""
    folder = tmp_path_factory.mktemp("bench")
    (folder / "models.py").write_text(MODEL)
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (70, 16, 16, 3), dtype=np.uint8)
    np.savez(folder / "test.npz", images=images, labels=random.integers(0, 5, 70))
    from PIL import Image

    for name in ("images", "labels"):
        (folder / "maps" / name).mkdir(parents=True)
    for place in range(9):
        Image.fromarray(images[place]).save(folder / "maps" / "images" / f"{place}.png")
        labels = random.integers(0, 5, (16, 16), dtype=np.uint8)
        labels[:2] = 255
        Image.fromarray(labels).save(folder / "maps" / "labels" / f"{place}.png")
    return folder


def arguments(folder: Path, out: str, *others: str, model: str = "classifier", data: str = "npz:test.npz") -> list[str]:
    kind, _, place = data.partition(":")
    return [
        *("bench", "--model", f"{folder / 'models.py'}:{model}", "--data", f"{kind}:{folder / place}"),
        *("--timing", "0", "--out", str(folder / out), *others),
    ]


def bench(*given: Any, **named: Any) -> dict[str, Any]:
    done = CliRunner().invoke(cli.make_app(), arguments(*given, **named))
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return json.loads((Path(given[0]) / given[1] / "results.json").read_text())


def measure(
    folder: Path, out: str, recipes: str, corrupt: str, limit: int, *, progress: Progress | None = None, **named: str
) -> dict[str, Any]:
    """What the command measures, without the report that it draws."""
    kind, _, place = named.get("data", "npz:test.npz").partition(":")
    loaded = load_model(f"{folder / 'models.py'}:{named.get('model', 'classifier')}")
    data = open_data(f"{kind}:{folder / place}", corrupt=corrupt, limit=limit, size=loaded.size)
    study = named.get("study")
    methods = study_methods(study, loaded) if study else make_methods(recipes, loaded.task)
    return run_bench(Run(loaded, data, methods, study), folder / out, progress or Progress())


class Interrupting(Progress):
    """Stops a run after some steps, as Ctrl-C or a kill would."""

    @contextlib.contextmanager
    def track(self, description: str, total: int) -> Iterator[Any]:
        steps = iter(range(9))

        def advance(count: int = 1, doing: str | None = None) -> None:
            if next(steps, None) is None:
                raise KeyboardInterrupt

        yield advance


def test_an_interrupted_run_continues_and_ends_as_an_undisturbed_one(folder: Path) -> None:
    run = ("bn,augbn,ops", "clean,fog,contrast", 12)
    with pytest.raises(KeyboardInterrupt):
        measure(folder, "interrupted", *run, progress=Interrupting())
    log = folder / "interrupted" / "results.jsonl"
    before = log.read_bytes()
    assert 1 < len(before.splitlines()) < 12
    assert not (folder / "interrupted" / "results.json").exists()
    log.write_bytes(before + b'{"key": "torn li')  # a kill in the middle of a line leaves this
    measure(folder, "interrupted", *run)
    undisturbed = measure(folder, "undisturbed", *run)
    assert (folder / "interrupted/results.json").read_bytes() == (folder / "undisturbed/results.json").read_bytes()
    assert log.read_bytes().startswith(before)
    assert log.read_bytes() == (folder / "undisturbed/results.jsonl").read_bytes()
    assert [method["name"] for method in undisturbed["methods"]] == ["source", "bn", "augbn", "ops"]


def test_ctrl_c_says_how_to_go_on_and_the_next_run_what_it_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = arguments(folder, "stopped", "--recipes", "bn", "--corrupt", "clean,fog,contrast", "--limit", "12")
    given[given.index("--timing") + 1] = "2"
    with monkeypatch.context() as patch:
        patch.setattr(ConsoleProgress, "track", Interrupting().track)
        stopped = CliRunner().invoke(cli.make_app(), given)
    assert stopped.exit_code == 130
    assert f"Stopped. Finished results are in {folder / 'stopped'}; rerun the same command to resume" in stopped.output
    done = len((folder / "stopped/results.jsonl").read_text().splitlines()) - 1
    assert 0 < done < 6
    resumed = CliRunner().invoke(cli.make_app(), given).output
    assert f"Kept from an earlier run: {12 * done} of 72 predictions ({round(100 * done / 6)} %)." in resumed
    assert "the times" not in resumed
    again = CliRunner().invoke(cli.make_app(), given).output
    assert "72 of 72 predictions (100 %)" in again
    assert "Kept from an earlier run: the times." in again
    stored = json.loads((folder / "stopped/timing.json").read_text())
    assert stored["threads"] == torch.get_num_threads()


def test_times_and_their_ratios_agree_on_a_busy_machine() -> None:
    """Medians of their own would be 330 ms and 1070 ms here, beside a ratio of 1.0."""
    seconds = {"source": [0.30, 0.33, 0.33, 1.00, 1.10], "bn": [0.30, 1.07, 1.10, 1.00, 1.10]}
    times = summarize_times(seconds)
    assert times["source"] == {"ms": 330.0, "low": 330.0, "high": 1000.0, "relative": 1.0}
    assert (times["bn"]["ms"], times["bn"]["relative"]) == (330.0, 1.0)
    random = np.random.default_rng(0)
    seconds = {name: list(random.lognormal(size=15)) for name in ("source", "bn", "ops")}
    times = summarize_times(seconds)
    for name, time in times.items():
        assert time["ms"] / times["source"]["ms"] == pytest.approx(time["relative"], rel=2e-3)
        assert time["low"] <= time["ms"] <= time["high"], name


def test_batches_equal_one_at_a_time(folder: Path) -> None:
    results = measure(folder, "batches", "augbn,ops", "contrast", 12)
    with np.load(folder / "test.npz") as stored:
        images, labels = stored["images"], stored["labels"]
    from sita_workbench.corruptions import corrupt

    picked = [place * 70 // 12 for place in range(12)]
    said: dict[str, list[int]] = {}
    for name in ("source", "augbn", "ops"):
        adapted = small() if name == "source" else sita.adapt(small(), name)
        right, entropies = 0, []
        for place in picked:
            pixels = corrupt(images[place], "contrast", 5, seed=0, index=place) / 255
            encoded = (pixels - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
            with torch.inference_mode():
                logits = adapted(torch.from_numpy(encoded).permute(2, 0, 1)[None].float())[0].double()
            p = logits.softmax(0)
            right += int(p.argmax() == labels[place])
            said.setdefault(name, []).append(int(p.argmax()))
            entropies.append(float(-(p * p.log()).sum()))
        method = next(m for m in results["methods"] if m["name"] == name)
        assert method["changed"]["clean"] is None
        assert method["changed"]["corrupted"] == pytest.approx(
            np.mean(np.array(said[name]) != said["source"]), abs=1e-6
        )
        found = method["conditions"]["contrast/5"]
        assert found["score"] == pytest.approx(100 * right / 12, abs=1e-4)
        assert found["entropy"] == pytest.approx(np.mean(entropies), abs=1e-4)


def test_recipes_can_be_added_and_nothing_is_run_twice(folder: Path) -> None:
    measure(folder, "added", "bn", "fog", 8)
    lines = (folder / "added/results.jsonl").read_text().splitlines()
    results = bench(folder, "added", "--corrupt", "fog", "--recipes", "bn,ops[combine=mean,top_k=5]", "--limit", "8")
    more = (folder / "added/results.jsonl").read_text().splitlines()
    assert more[: len(lines)] == lines
    assert len(more) == len(lines) + 1
    assert [method["name"] for method in results["methods"]] == ["source", "bn", "ops[combine=mean,top_k=5]"]
    assert "| command | sita" in (folder / "added/report.md").read_text()
    other = ("--corrupt", "fog", "--recipes", "bn", "--limit", "9")
    with pytest.raises(sita.SitaError, match=r"holds another run: .*Try: another --out, or --restart"):
        bench(folder, "added", *other)
    assert (folder / "added/results.jsonl").read_text().splitlines() == more
    assert bench(folder, "added", *other, "--restart")["setup"]["images"] == 9


def test_segmentation(folder: Path) -> None:
    results = measure(folder, "maps_out", "bn,ops", "clean,fog", 9, model="segmenter", data="segmentation:maps")
    assert results["setup"]["metric"] == "mIoU"
    ops = results["methods"][-1]
    assert sum(ops["priors"]["clean"]["count"]) == 9 * 14 * 16
    assert ops["changed"] == {"corrupted": None, "clean": None}  # maps are not kept
    assert 0 < ops["clean"]["score"] < 100


@pytest.mark.slow
def test_keras_models_run_and_baselines_on_them_are_refused(folder: Path) -> None:
    results = measure(folder, "keras", "ops", "fog", 8, model="keras_classifier")
    assert results["setup"]["framework"].startswith("keras")
    assert sum(results["methods"][1]["priors"]["corrupted"]["count"]) == 8
    with pytest.raises(ModelError, match=r"expect a plain PyTorch model.*Try: leave them out"):
        measure(folder, "keras2", "tent", "fog", 8, model="keras_classifier")


def test_a_study_runs_and_draws_its_figure(folder: Path) -> None:
    results = bench(folder, "layers", "--corrupt", "fog", "--limit", "4", "--study", "layers")
    assert sum(method["study"] is not None for method in results["methods"]) >= 2
    assert (folder / "layers" / "figures" / "study_layers.png").is_file()
    for method in results["methods"]:
        assert method["gain"] is None or method["gain"]["low"] <= method["gain"]["score"] <= method["gain"]["high"]


def test_batches_that_share_statistics_run_as_one(folder: Path) -> None:
    results = {m["name"]: m for m in measure(folder, "sharing", "", "fog", 4, study="batch")["methods"]}
    assert results["ops, batch of 1"]["conditions"] == results["ops"]["conditions"]
    assert results["ptn, batch of 4"]["conditions"] != results["ptn, batch of 1"]["conditions"]


def test_study_points_of_lambda_end_at_the_source(folder: Path) -> None:
    results = {m["name"]: m for m in measure(folder, "ends", "", "fog", 6, study="lambda")["methods"]}
    for name in ("augbn, λ = 1", "no views, λ = 1"):
        assert results[name]["conditions"] == results["source"]["conditions"]
        assert results[name]["gain"] == {"score": 0.0, "low": 0.0, "high": 0.0}


def test_layers_are_grouped_by_part() -> None:
    names = ("bn1", "layer1.0.bn1", "layer1.0.bn2", "layer2.0.bn1")
    assert list(layer_groups(names)) == ["bn1", "layer1", "layer2"]
    assert list(layer_groups(("conv1_bn", "conv2_block1_1_bn", "conv2_block2_1_bn"))) == ["conv1", "conv2"]
    many = tuple(f"bn{place}" for place in range(40))
    assert [len(group) for group in layer_groups(many).values()] == [10, 10, 10, 10]


def test_names_within_a_study_are_unique(folder: Path) -> None:
    loaded = load_model(f"{folder / 'models.py'}:classifier")
    for study in STUDIES:
        names = [method.name for method in study_methods(study, loaded)]
        assert len(names) == len(set(names))
    with pytest.raises(RecipeError, match="study: expected one of lambda"):
        study_methods("lamda", loaded)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("opps", "received 'opps'. Did you mean"),
        ("ops[top_k", "whose bracket does not close"),
        ("ops[top_k]", "expected field=value"),
        ("ops[top_k=99]", "at most 8, the number of candidates"),
        ("tent[lr=1]", "A recipe's field is changed in brackets"),
        ("ptn[share=batch]", "Try: --study batch"),
    ],
)
def test_bad_recipes_are_refused(text: str, message: str) -> None:
    with pytest.raises(RecipeError) as error:
        make_methods(text, "classification")
    assert message in str(error.value)


def sample_predictions(count: int = 400, classes: int = 5, seed: int = 0) -> tuple[Prediction, np.ndarray]:
    random = np.random.default_rng(seed)
    logits = 2 * random.normal(size=(count, classes))
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = np.array([random.choice(classes, p=line) for line in p])
    return Prediction(p, np.round(random.choice([0.5, 1.0], count), 6)), labels


def entry(answers: Prediction, labels: np.ndarray, ignore: int | None = None) -> dict[str, np.ndarray]:
    return metrics.join_entries([metrics.make_entry(answers, labels, ignore, (0.5, 1.0))])


def test_metrics_equal_plain_loops() -> None:
    answers, labels = sample_predictions()
    kept = entry(answers, labels)
    weights = metrics.draw_weights(len(labels))
    found, facts = metrics.summarize_condition(kept, weights)
    right = [int(np.argmax(p) == label) for p, label in zip(answers.probabilities, labels, strict=True)]
    assert facts["score"] == pytest.approx(100 * sum(right) / len(right), abs=1e-4)
    nll = -sum(np.log(p[label]) for p, label in zip(answers.probabilities, labels, strict=True)) / len(labels)
    assert facts["nll"] == pytest.approx(nll, abs=1e-4)
    error = 0.0
    for low in range(15):
        inside = [i for i, p in enumerate(answers.probabilities) if low / 15 <= p.max() < (low + 1) / 15]
        if inside:
            sure = np.mean([answers.probabilities[i].max() for i in inside])
            error += len(inside) / len(labels) * abs(np.mean([right[i] for i in inside]) - sure)
    assert facts["ece"] == pytest.approx(100 * error, abs=1e-3)
    share = sum(right) / len(right)
    half = 196 * np.sqrt(share * (1 - share) / len(right))  # the normal approximation
    assert facts["high"] - facts["score"] == pytest.approx(half, rel=0.15)
    assert (found - found).to_dict() == {"score": 0.0, "low": 0.0, "high": 0.0}
    counted = metrics.count_priors(kept, (0.5, 1.0))
    assert counted["count"] == [(answers.priors == prior).sum() for prior in (0.5, 1.0)]
    assert counted["right"] == [(np.array(right) * (answers.priors == prior)).sum() for prior in (0.5, 1.0)]
    bins = metrics.bin_entropies(kept, 5)
    count, _ = np.histogram(answers.entropies, np.linspace(0, np.log(5), 11))
    assert bins["count"] == count.tolist()
    assert sum(bins["right"]) == sum(right)


def test_paired_intervals_are_narrower_than_the_scores_own() -> None:
    """Two methods that differ on few images: the difference is better known than either score."""
    answers, labels = sample_predictions(300)
    other = Prediction(answers.probabilities.copy(), None)
    other.probabilities[:6] = np.eye(5)[labels[:6]]
    weights = metrics.draw_weights(300)
    first, second = (metrics.score(entry(each, labels), weights) for each in (answers, other))
    own, gain = second.to_dict(), (second - first).to_dict()
    assert gain["high"] - gain["low"] < 0.5 * (own["high"] - own["low"])


def test_mean_iou_equals_sklearns() -> None:
    random = np.random.default_rng(1)
    logits = random.normal(size=(3, 6, 6, 4))
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    labels = random.integers(0, 4, (3, 6, 6))
    labels[0, 0] = 255
    found = metrics.score(entry(Prediction(p), labels, 255), metrics.draw_weights(3))
    counted = labels != 255
    expected = jaccard_score(labels[counted], p.argmax(-1)[counted], average="macro")
    assert found.value == pytest.approx(100 * expected, abs=1e-6)


def test_the_log_drops_an_incomplete_line_and_refuses_a_damaged_one(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    log = ResultLog(path, {"model": "a"})
    log.add("one", {"x": [1]})
    log.close()
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"key":"two"')
    again = ResultLog(path, {"model": "a"})
    assert again.entries == {"one": {"x": [1]}}
    again.close()
    assert path.read_bytes() == whole
    path.write_bytes(b"damaged\n" + whole)
    with pytest.raises(InputError, match="line 1 cannot be read"):
        ResultLog(path, {"model": "a"})
    path.write_bytes(whole)
    with pytest.raises(InputError, match="model was 'a' and is 'b'"):
        ResultLog(path, {"model": "b"})
