"""`sita score` and `score`: an answer for every image of a set, once, whatever happens to the workers."""

from __future__ import annotations

import io
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from rich.console import Console
from score_sets import NETWORKS, draw_images, without_time
from typer.testing import CliRunner

import sita_adapters as sita
from sita_adapters.errors import InputError, SitaError
from sita_workbench import ModelSpec, Scored, cli, score
from sita_workbench.exported.export import export_checked
from sita_workbench.scoring import display, local, score_images, score_shard, worker
from sita_workbench.scoring.events import BatchDone, Events
from sita_workbench.scoring.folder import OutputFolder, choose_shard, held
from sita_workbench.scoring.inputs import list_paths
from sita_workbench.scoring.spec import Job

NET = "net.py:build"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "net.py").write_text(NETWORKS)
    return tmp_path


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Score the shards in this process; return the list of those that were."""
    done: list[int] = []

    def run(job: Job, numbers: Sequence[int], workers: int, events: Events) -> None:
        for number in numbers:
            events.shard(score_shard(job, number, lambda images, number=number: events.batch(_batch(number, images))))
            done.append(number)

    monkeypatch.setattr(local, "run_local", run)
    return done


def _batch(number: int, images: int) -> BatchDone:
    return BatchDone(number, images, os.getpid())


def read_pixels(paths: Sequence[str]) -> torch.Tensor:
    arrays = [np.asarray(Image.open(path).convert("RGB")) for path in paths]
    return torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2).float() / 255


@pytest.mark.parametrize("recipe", ["ops", "augbn", "auto", "shift", "ensemble", "source"])
def test_rows_are_what_the_adapted_and_the_source_model_say(recipe: str) -> None:
    paths = draw_images(Path("images"), 30)
    scored = score_images(ModelSpec(NET, recipe=recipe), paths)
    model = runpy.run_path("net.py")["build"]()[0].eval()
    adapted = sita.adapt(model, recipe)
    with torch.inference_mode(), sita.observe(adapted) as seen:
        likely = adapted(read_pixels(paths)).double().softmax(1).numpy()
        source = model(read_pixels(paths)).double().softmax(1).numpy()
    assert not scored.failed
    columns = pa.Table.from_pylist(scored.rows).to_pydict()
    assert columns["path"] == paths
    assert columns["label"] == likely.argmax(1).tolist()
    assert columns["source_label"] == source.argmax(1).tolist()
    np.testing.assert_allclose(columns["probability"], likely.max(1), atol=1e-5)
    np.testing.assert_allclose(columns["entropy"], -(likely * np.log(likely)).sum(1), atol=1e-4)
    np.testing.assert_allclose(columns["prior"], seen.priors, atol=1e-6)
    np.testing.assert_allclose(columns["source_probability"], source.max(1), atol=1e-5)
    assert min(columns["milliseconds"]) > 0
    assert recipe == "source" or columns["label"] != columns["source_label"]


def test_exported_files_are_scored_as_the_model_is_and_only_with_trust_where_they_could_run_code() -> None:
    paths = draw_images(Path("images"), 10)
    model, about = runpy.run_path("net.py")["build"]()
    adapted = sita.adapt(model.eval(), inputs=about["inputs"])
    export_checked(adapted, "net.onnx", read_pixels(paths[:2]), diagnostics=True)
    live, file = (score_images(ModelSpec(spec), paths).rows for spec in (NET, "net.onnx"))
    for one, other in zip(live, file, strict=True):
        for column in ("path", "label", "source_label"):
            assert one[column] == other[column]
        for column in ("probability", "entropy", "prior", "source_probability"):
            assert one[column] == pytest.approx(other[column], abs=1e-4)
    with pytest.raises(InputError, match="recipe of its own"):
        score_images(ModelSpec("net.onnx", recipe="ops"), paths)
    export_checked(adapted, "net.pt2", read_pixels(paths[:2]))
    with pytest.raises(SitaError, match="--trust"):
        score_images(ModelSpec("net.pt2"), paths)
    trusted = score_images(ModelSpec("net.pt2", trust=True, inputs="unit"), paths)
    assert not trusted.failed
    assert [row["label"] for row in trusted.rows] == [row["label"] for row in live]


def test_random_views_are_drawn_by_the_recipes_own_seed() -> None:
    paths = draw_images(Path("images"), 6)
    recipe = sita.Recipe(priors=0.6, augment="paper", seed=5)
    rows = score_images(ModelSpec(NET, recipe=recipe.to_json()), paths).rows
    model = runpy.run_path("net.py")["build"]()[0].eval()
    with torch.inference_mode():
        likely = sita.adapt(model, recipe, inputs="unit")(read_pixels(paths)).softmax(1).numpy()
    np.testing.assert_allclose([row["probability"] for row in rows], likely.max(1), atol=1e-5)


def test_images_of_several_sizes_keep_their_order() -> None:
    """They run in batches of one size each, and get the answers that they get alone."""
    paths = draw_images(Path("images"), 9, sides=(12, 12, 16))
    spec = ModelSpec("net.py:any_size", recipe="augbn")
    rows = score_images(spec, paths).rows
    alone = [row for path in paths for row in score_images(spec, [path]).rows]
    assert [row["path"] for row in rows] == paths
    np.testing.assert_allclose([r["probability"] for r in rows], [r["probability"] for r in alone], atol=1e-5)


def test_a_segmentation_model_writes_label_maps(in_process: list[int]) -> None:
    paths = draw_images(Path("images"), 5)
    rows = score(ModelSpec("net.py:segment"), paths, "out", shard=3).read().to_pylist()
    model = runpy.run_path("net.py")["segment"]()[0].eval()
    with torch.inference_mode():
        labels = sita.adapt(model, task="segmentation")(read_pixels(paths)).argmax(1).numpy()
        source = model(read_pixels(paths)).argmax(1).numpy()
    for row, expected, plain in zip(rows, labels, source, strict=True):
        np.testing.assert_array_equal(np.asarray(Image.open(Path("out", row["map"]))), expected)
        assert row["label"] == np.bincount(expected.ravel()).argmax()
        assert row["changed"] == pytest.approx((expected != plain).mean())
    assert len({row["map"] for row in rows}) == 5


def test_a_full_disk_is_no_fault_of_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sita_workbench.label_maps.write_label_map", write)
    with pytest.raises(OSError, match="No space left"):
        score_images(ModelSpec("net.py:segment"), draw_images(Path("images"), 2), maps=Path("maps"))


def test_inputs_are_a_folder_a_parquet_file_or_a_list() -> None:
    paths = draw_images(Path("images"), 3) + draw_images(Path("images/more"), 1)
    paths[-1] = "images/more/000.png"
    Path("images/notes.md").write_text("no image")
    assert list_paths("images") == sorted(paths)
    twice = [paths[1], paths[0], paths[1]]
    Path("list.txt").write_text("\n".join(twice) + "\n\n")
    pq.write_table(pa.table({"id": [1, 2, 3], "path": twice}), "list.parquet")
    assert list_paths("list.txt") == list_paths(Path("list.parquet")) == list_paths(twice) == twice


@pytest.mark.parametrize(
    ("name", "words"),
    [("none.txt", "at least one path"), ("gone", "there is no gone"), ("other.parquet", "column 'path'.*it has id")],
)
def test_inputs_that_are_none_are_refused(name: str, words: str) -> None:
    Path("none.txt").write_text("\n")
    pq.write_table(pa.table({"id": [1]}), "other.parquet")
    with pytest.raises(InputError, match=words):
        list_paths(name)


def test_shards_depend_on_the_number_of_images_alone() -> None:
    assert [choose_shard(images) for images in (1, 32, 33, 2000, 32_000, 10**6)] == [1, 1, 2, 63, 1000, 1000]


def test_a_run_goes_on_with_what_is_missing_and_keeps_failures(in_process: list[int]) -> None:
    paths = draw_images(Path("images"), 10)
    Path(paths[1]).write_bytes(Path(paths[1]).read_bytes()[:60])
    Path("list.txt").write_text("\n".join([*paths, paths[4], "images/gone.png"]))
    first = score(NET, "list.txt", "out", shard=4)
    assert in_process == [0, 1, 2]
    rows = first.read().to_pylist()
    assert [row["path"] for row in rows] == [paths[0], *paths[2:], paths[4]]
    assert (first.rows, first.failed) == (10, 2)
    Path("out/parts/part-00001.parquet").unlink()
    Path("out/parts/.part-00001-abc.parquet").write_text("half")
    Path("out/failed.parquet").unlink()
    again = score(NET, "list.txt", "out")
    assert in_process == [0, 1, 2, 1]
    assert again == first
    assert without_time(again.read().to_pylist()) == without_time(rows)
    failed = again.read_failed().to_pydict()
    assert failed["path"] == [paths[1], "images/gone.png"]
    assert re.search("truncated", failed["reason"][0])
    assert re.search("No such file", failed["reason"][1])
    assert not list(Path("out/parts").glob(".*"))


def test_damaged_parts_are_done_again_and_nothing_is_mixed(in_process: list[int]) -> None:
    paths = draw_images(Path("images"), 8)
    first = score(NET, paths, "out", shard=2)
    rows = without_time(first.read().to_pylist())
    parts = [Path(f"out/parts/part-0000{number}.parquet") for number in range(4)]
    parts[0].write_bytes(parts[0].read_bytes()[:-20])  # truncated
    probabilities = pq.read_metadata(parts[1]).row_group(0).column(3)
    whole = bytearray(parts[1].read_bytes())
    whole[probabilities.data_page_offset - 1] ^= 1  # the last byte of the page before, which has the values
    parts[1].write_bytes(whole)
    score(ModelSpec(NET, recipe="bn"), paths, "other", shard=2)
    parts[3].write_bytes(Path("other/parts/part-00003.parquet").read_bytes())  # of another run
    in_process.clear()
    assert without_time(score(NET, paths, "out").read().to_pylist()) == rows
    assert in_process == [0, 1, 3]
    said = json.loads(pq.read_metadata(parts[2]).metadata[b"sita"])
    assert (said["recipe"], said["images"]) == ("auto", 8)


def test_two_runs_do_not_write_to_one_folder(in_process: list[int]) -> None:
    paths = draw_images(Path("images"), 4)
    with held(OutputFolder(Path("out"))), pytest.raises(InputError, match="another run is writing to out"):
        score(NET, paths, "out")
    assert [path.name for path in Path("out").iterdir()] == [".lock"]
    assert score(NET, paths, "out").rows == 4


def test_a_name_that_is_not_utf8_is_scored(in_process: list[int]) -> None:
    paths = draw_images(Path("images"), 2)
    os.rename(paths[0], b"images/caf\xe9.png")
    assert score(NET, "images", "out").read().column("path").to_pylist() == ["images/001.png", "images/caf\\udce9.png"]
    Path("list.txt").write_bytes(b"images/caf\xe9.png\n")
    assert score(NET, "list.txt", "other").rows == 1


def test_an_image_that_the_model_fails_on_is_a_failure_of_its_own() -> None:
    paths = draw_images(Path("images"), 3, sides=(12, 12, 2))  # too small for the second convolution
    draw_images(Path("images"), 2)
    scored = score_images(ModelSpec("net.py:any_size", recipe="bn"), [paths[2], *paths[:2]])
    assert [row["path"] for row in scored.rows] == paths[:2]
    assert re.search(r"2 × 2.*Try: --size", scored.failed[0]["reason"])


def test_another_model_recipe_or_list_is_refused(in_process: list[int]) -> None:
    paths = draw_images(Path("images"), 4)
    score(NET, paths, "out", shard=2)
    for spec, listed, shard, words in (
        (ModelSpec(NET, recipe="augbn"), paths, None, "recipe was 'auto' and is 'augbn'"),
        (ModelSpec("net.py:any_size"), paths, None, "model was"),
        (ModelSpec(NET, size=10), paths, None, "size was None and is 10"),
        (ModelSpec(NET), paths[:3], None, "images was 4 and is 3"),
        (ModelSpec(NET), paths[::-1], None, "input list was"),
        (ModelSpec(NET), paths, 3, "shard was 2 and is 3"),
    ):
        with pytest.raises(InputError, match=f"another run: .*{words}.*Try: another --output"):
            score(spec, listed, "out", shard=shard)
    Path("net.py").write_text(NETWORKS + "\n# another file\n")
    with pytest.raises(InputError, match=r"model was 'net\.py sha256"):
        score(NET, paths, "out")
    Path("photos").mkdir()
    Path("photos/cat.txt").touch()
    with pytest.raises(InputError, match="holds other files"):
        score(NET, paths, "photos")
    assert in_process == [0, 1]


def test_a_run_that_got_nowhere_does_not_bar_the_folder(in_process: list[int]) -> None:
    paths = draw_images(Path("images"), 2)
    with pytest.raises(InputError, match="nothing is called so"):
        score(ModelSpec("net.py:nothing is called so"), paths, "out")
    assert score(NET, paths, "out").rows == 2


def test_a_set_without_any_image_is_an_error(in_process: list[int]) -> None:
    with pytest.raises(InputError, match=r"None of 2 images could be scored.*No such file"):
        score(NET, ["a.png", "b.png"], "out")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"engine": "spark"}, "engine: expected 'local' or 'ray'"),
        ({"workers": 0}, "workers: expected"),
        ({"address": "auto"}, "address: expected engine='ray'"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        score(NET, ["a.png"], "out", **settings)
    assert not Path("out").exists()


def test_a_batchs_statistics_are_not_shared() -> None:
    recipe = sita.Recipe(priors=0.8, share="batch").to_json()
    with pytest.raises(InputError, match="share='image'"):
        score_images(ModelSpec(NET, recipe=recipe), draw_images(Path("images"), 1))


def test_a_job_crosses_to_another_process_as_text() -> None:
    job = Job(ModelSpec("net.py:build", names=("cat", "dög")).resolved(), "out", "/", "{}", "jax")
    assert Job.from_json(job.to_json()) == job
    assert job.spec.model == f"{Path.cwd() / 'net.py'}:build"


def test_a_worker_describes_errors() -> None:
    out = io.StringIO()
    job = Job(ModelSpec("net.py:build", recipe="oops"), str(Path.cwd()), "/")
    worker._score(job, 0, out)
    message = json.loads(out.getvalue())
    assert "inputs.arrow" in message["error"]["message"]


def test_workers_are_replaced_when_they_are_killed_and_nothing_is_lost() -> None:
    """The first worker dies after its first batch; its shard is done again, by another."""
    paths = draw_images(Path("images"), 90)
    killed: list[BatchDone] = []

    def kill_first(done: BatchDone) -> None:
        if not killed:
            killed.append(done)
            os.kill(done.pid, signal.SIGKILL)

    spec = ModelSpec(NET, recipe="ops")
    scored = score(spec, [*paths, paths[0]], "out", workers=2, shard=45, watch=kill_first)
    assert killed[0].images == 23  # 512 rows of 22 to an image
    rows = scored.read().to_pylist()
    assert [row["path"] for row in rows] == [*paths, paths[0]]
    parts = [paths[:45], paths[45:], paths[:1]]
    expected = [row for part in parts for row in score_images(spec, part).rows]
    assert without_time(rows) == without_time(expected)


def test_the_pace_says_how_long_the_rest_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 10.0, 20.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    pace = display.Pace(1000, 100_000)
    assert str(pace) == "1,000 of 100,000 images, 1.0 %"
    for images in (1020, 1520, 2020):
        pace.note(images)
    assert str(pace) == "2,020 of 100,000 images, 2.0 %, 50 images/s, 33 min left"


@pytest.mark.parametrize("terminal", [True, False], ids=["bar", "lines"])
def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "_SECONDS", 0.0)
    out = io.StringIO()
    shown = display.ConsoleDisplay(Console(file=out, force_terminal=terminal, width=80))
    with shown.track(20, 50):
        shown.show(30, 0)
        shown.show(40, 2)
        shown.say("A worker was lost.")
    text = out.getvalue()
    assert re.search(r"80\.0 %, .* images/s, .* left, 2 failed", text)
    assert "A worker was lost." in text
    assert ("\x1b" in text) == terminal


def test_the_summary_counts_priors_and_changes() -> None:
    text = "\n".join(Scored(Path("out"), 200, 3, 0.125, {0.5: 50, 1.0: 150}, ("gone",)).lines())
    assert "200 images have an answer, 3 failed." in text
    assert "12.5 % of the labels differ" in text
    assert re.search(r"0\.500   25\.0 %  █{10}\n  1\.000   75\.0 %  █{30}\n", text)


def test_the_command_shows_what_it_found(in_process: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    draw_images(Path("images"), 4)
    Path("names.txt").write_text("ant\nbee\ncat\ndog\n")
    arguments = ["score", NET, "--input", "images", "--output", "out", "--labels", "names.txt", "--recipe", "bn"]
    result = CliRunner().invoke(cli.make_app(), arguments)
    assert result.exit_code == 0, result.output
    assert "4 images have an answer, 0 failed." in result.stdout
    row = pq.read_table("out/parts").to_pylist()[0]
    assert row["class_name"] == ["ant", "bee", "cat", "dog"][row["label"]]
    assert row["prior"] == pytest.approx(16 / 17)
    assert json.loads(Path("out/summary.json").read_text())["rows"] == 4
    told = CliRunner().invoke(cli.make_app(), ["score", "--help"]).stdout
    for word in ("sita score timm:resnet50", "--engine ray --address auto", "one thread", "failed.parquet"):
        assert word in re.sub(r"[\s│]+", " ", told)


def test_the_example_for_spark_maps_tables_of_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Spark, which calls it with an iterator of tables; `main` says what is missing."""
    pd = pytest.importorskip("pandas")
    monkeypatch.setattr("sita_workbench.scoring.scorer.use_one_thread", lambda: None)
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "spark_scoring.py"))
    paths = draw_images(Path("images"), 3)
    tables = [pd.DataFrame({"path": paths[:2]}), pd.DataFrame({"path": [paths[2], "gone.png"]})]
    answers = pd.concat(example["Score"](ModelSpec(NET))(iter(tables)))
    expected = [row["label"] for part in (paths[:2], paths[2:]) for row in score_images(ModelSpec(NET), part).rows]
    assert answers["path"].tolist() == [*paths, "gone.png"]
    assert answers["label"].tolist()[:3] == expected
    assert "No such file" in answers["reason"].iloc[-1]
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(SystemExit, match="needs pyspark"):
        example["main"]()


@pytest.mark.slow
def test_a_shard_that_kills_every_worker_ends_the_run() -> None:
    Path("net.py").write_text("import os\n\ndef build():\n    os.kill(os.getpid(), 9)\n")
    with pytest.raises(SitaError, match=r"3 times while they scored shard 0 \(signal 9\).*fewer --workers"):
        score(NET, draw_images(Path("images"), 2), "out", shard=2)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=str)
def test_a_driver_that_is_stopped_leaves_no_worker_and_goes_on(number: signal.Signals) -> None:
    paths = draw_images(Path("images"), 60)
    Path("slow.py").write_text(NETWORKS + SLOW)
    code = """
from sita_workbench import score
score("slow.py:drowsy", "images", "out", shard=4, workers=1, watch=lambda done: print(done.pid, flush=True))
"""
    command = ["-m", "sita_workbench.cli", "score", "slow.py:drowsy", "--input", "images", "--output", "out"]
    started = ["-c", code] if number == signal.SIGKILL else [*command, "--shard", "4", "--workers", "1"]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests that run in the background ignore it, and so would
    driver = subprocess.Popen(
        [sys.executable, *started],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=_environment(),
    )
    part = OutputFolder(Path("out")).part(1)
    while not part.exists() and driver.poll() is None:
        time.sleep(0.05)
    driver.send_signal(number)
    out, errors = driver.communicate(timeout=60)
    if number == signal.SIGINT:
        assert driver.returncode == 130
        assert "the same command goes on with what is missing" in errors
    else:
        assert _is_gone(int(out.split()[-1]))
    there = len(list(Path("out/parts").glob("part-*")))
    assert 2 <= there < 15
    assert score("slow.py:drowsy", "images", "out", workers=1).read().column("path").to_pylist() == paths


SLOW = """

class Drowsy(nn.Sequential):
    def forward(self, x):
        import time

        time.sleep(0.3)
        return super().forward(x)


def drowsy():
    model, settings = build()
    return Drowsy(*model), settings
"""


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def _is_gone(pid: int) -> bool:
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.slow
def test_keras_models_run_on_the_backend_that_the_driver_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    Path("knet.py").write_text(KERAS)
    paths = draw_images(Path("images"), 4)
    scored = score(ModelSpec("knet.py:build", recipe="augbn"), paths, "out", workers=1)
    assert scored.read().column("class_name").null_count == 4
    assert scored.rows == 4


KERAS = """
import keras


def build():
    assert keras.backend.backend() == "tensorflow"
    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential([
        layers.Input((12, 12, 3)), layers.Conv2D(4, 3), layers.BatchNormalization(), layers.ReLU(),
        layers.GlobalAveragePooling2D(), layers.Dense(3, activation="softmax"),
    ])
    return model, {"inputs": "unit", "crop": 1.0}
"""


@pytest.mark.real
def test_trained_weights_label_real_images(data: Path, in_process: list[int]) -> None:
    with np.load(data / "cifar10" / "test_1000.npz") as stored:
        images, labels = stored["images"][:40], stored["labels"][:40]
    Path("images").mkdir()
    for place, pixels in enumerate(images):
        Image.fromarray(pixels).save(f"images/{place:02d}.png")
    weights = data / "weights" / "cifar10_resnet20.safetensors"
    scored = score(ModelSpec("cifar10-resnet20", str(weights), "augbn"), "images", "out")
    rows = scored.read().to_pylist()
    assert np.mean([row["source_label"] == label for row, label in zip(rows, labels, strict=True)]) > 0.8
    assert {row["class_name"] for row in rows} & {"cat", "ship", "frog"}
