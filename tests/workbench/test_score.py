"""`sita score` and `score`: the rows, the inputs, and the output folder; the shards are scored in this process."""

from __future__ import annotations

import json
import os
import re
import runpy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from invoking import invoke
from PIL import Image
from score_sets import KERAS, NETWORKS, draw_images, read_rows

import sita_adapters as sita
from sita_adapters.errors import InputError
from sita_workbench import ModelSpec, score
from sita_workbench.exported.export import export_checked
from sita_workbench.progress import Progress
from sita_workbench.scoring import Report, score_images
from sita_workbench.scoring.folder import open_folder
from sita_workbench.scoring.run import list_paths
from sita_workbench.scoring.shard import Job, score_shard
from sita_workbench.scoring.workers import Shards

NET = "net.py:build"


@pytest.fixture(autouse=True)
def in_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Score the shards in this process; return the list of those that were scored."""
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NETWORKS)
    done: list[int] = []

    def run(job: Job, shards: Shards, workers: int | None) -> Iterator[Report]:
        for number, paths in shards.items():
            yield from score_shard(job, number, paths)
            done.append(number)

    monkeypatch.setattr("sita_workbench.scoring.run.run_local", run)
    return done


def read_pixels(paths: Sequence[str]) -> torch.Tensor:
    arrays = [np.asarray(Image.open(path).convert("RGB")) for path in paths]
    return torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2).float() / 255


def load_network(name: str) -> torch.nn.Module:
    return torch.nn.Module.eval(runpy.run_path("net.py")[name]()[0])


RANDOM_VIEWS = sita.Recipe(priors=0.6, augment="paper", seed=5)


@pytest.mark.parametrize("recipe", ["ops", "augbn", "auto", "shift", "ensemble", "source", RANDOM_VIEWS], ids=str)
def test_rows_are_what_the_adapted_and_the_source_model_say(recipe: str | sita.Recipe) -> None:
    paths = draw_images(Path("images"), 30)
    spec = ModelSpec(NET, recipe=recipe if isinstance(recipe, str) else recipe.to_json())
    model = load_network("build")
    adapted = sita.adapt(model, recipe, inputs="unit")
    with torch.inference_mode(), sita.observe(adapted) as seen:
        likely = adapted(read_pixels(paths)).double().softmax(1).numpy()
        source = model(read_pixels(paths)).double().softmax(1).numpy()
    columns = pa.Table.from_pylist(score_images(spec, paths)).to_pydict()
    assert columns["path"] == paths
    assert columns["label"] == likely.argmax(1).tolist()
    assert columns["source_label"] == source.argmax(1).tolist()
    assert columns["changed"] == (likely.argmax(1) != source.argmax(1)).tolist()
    np.testing.assert_allclose(columns["probability"], likely.max(1), atol=1e-5)
    np.testing.assert_allclose(columns["entropy"], -(likely * np.log(likely)).sum(1), atol=1e-4)
    np.testing.assert_allclose(columns["prior"], seen.priors, atol=1e-6)
    np.testing.assert_allclose(columns["source_probability"], source.max(1), atol=1e-5)
    assert recipe in ("source", RANDOM_VIEWS) or any(columns["changed"])


def test_exported_files_are_scored_as_the_model_is() -> None:
    paths = draw_images(Path("images"), 10)
    adapted = sita.adapt(load_network("build"), inputs="unit")
    export_checked(adapted, "net.onnx", read_pixels(paths[:2]), diagnostics=True)
    live, file = (score_images(ModelSpec(spec), paths) for spec in (NET, "net.onnx"))
    for one, other in zip(live, file, strict=True):
        assert {**one, **other} == pytest.approx(one, abs=1e-4)


def test_a_segmentation_model_writes_label_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = draw_images(Path("images"), 5)
    scored = score("net.py:segment", paths, "out", shard=3)
    model = load_network("segment")
    with torch.inference_mode():
        labels = sita.adapt(model, task="segmentation")(read_pixels(paths)).argmax(1).numpy()
        source = model(read_pixels(paths)).argmax(1).numpy()
    for row, expected, plain in zip(read_rows(), labels, source, strict=True):
        np.testing.assert_array_equal(np.asarray(Image.open(Path("out", row["map"]))), expected)
        assert row["label"] == np.bincount(expected.ravel()).argmax()
        assert row["changed"] == pytest.approx((expected != plain).mean())
    assert scored.changed == pytest.approx((labels != source).mean())
    full = OSError(28, "No space left on device")  # no fault of an image
    monkeypatch.setattr("sita_workbench.scoring.shard.write_label_map", Mock(side_effect=full))
    with pytest.raises(OSError, match="No space left"):
        score("net.py:segment", paths, "other")


@pytest.mark.slow
def test_a_keras_model_is_scored_as_its_adapted_model_predicts() -> None:
    Path("keras_net.py").write_text(KERAS)
    paths = draw_images(Path("images"), 10)
    score(ModelSpec("keras_net.py:build", recipe="ops"), paths, "out")
    model = runpy.run_path("keras_net.py")["build"]()[0]
    images = read_pixels(paths).permute(0, 2, 3, 1).numpy()
    for row, scores in zip(read_rows(), sita.adapt(model, "ops", inputs="unit").predict(images), strict=True):
        assert row["label"] == scores.argmax()
        likely = np.exp(scores.astype(np.float64))
        assert row["probability"] == pytest.approx((likely / likely.sum()).max(), abs=1e-5)


def test_folders_and_lists_are_read_in_order() -> None:
    paths = draw_images(Path("images"), 3)
    draw_images(Path("images/more"), 1)
    os.rename(paths[2], b"images/caf\xe9.png")
    Path("images/notes.md").write_text("no image")
    assert list_paths("images") == [*paths[:2], "images/caf\udce9.png", "images/more/000.png"]
    assert list_paths([paths[1], Path(paths[0]), paths[1]]) == [paths[1], paths[0], paths[1]]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"paths": "none.txt"}, "at least one path"),
        ({"paths": "other.parquet"}, "is a binary file"),
        ({"paths": ["a.png", "b.png"], "output": "none"}, "None of 2 images could be scored.*No such file"),
        ({"spec": ModelSpec(NET, recipe=sita.Recipe(priors=0.8, share="batch").to_json())}, "share='image'"),
        ({"engine": "spark"}, "engine: expected 'local' or 'ray'"),
        ({"address": "auto"}, "address: expected engine='ray'"),
    ],
)
def test_what_cannot_be_scored_is_refused_and_does_not_block_the_folder(changes: dict[str, Any], words: str) -> None:
    Path("none.txt").write_text("\n")
    pq.write_table(pa.table({"id": [1]}), "other.parquet")
    paths = draw_images(Path("images"), 2)
    with pytest.raises(InputError, match=words):
        score(**({"spec": NET, "paths": paths, "output": "out"} | changes))
    assert score(NET, paths, "out").rows == 2


def test_a_run_resumes_with_what_is_missing_and_keeps_failures(in_process: list[int]) -> None:
    paths = draw_images(Path("images"), 10)
    Path(paths[1]).write_bytes(Path(paths[1]).read_bytes()[:60])
    os.rename(paths.pop(), b"images/caf\xe9.png")
    os.mkfifo("images/pipe.png")
    names = [*paths, paths[4], "images/caf\udce9.png", "images/gone.png", "images/pipe.png"]
    Path("list.txt").write_bytes(os.fsencode("\n".join(names)))
    first = score(NET, "list.txt", "out", shard=4)
    assert in_process == [0, 1, 2, 3]
    rows = read_rows()
    assert [row["path"] for row in rows] == [name.replace("\udce9", "\\udce9") for name in names]
    assert (first.rows, first.failed) == (10, 3)
    reasons = {row["path"]: row["reason"] for row in rows if row["reason"] is not None}
    assert all((row["label"] is None) == (row["path"] in reasons) for row in rows)
    assert list(reasons) == [paths[1], "images/gone.png", "images/pipe.png"]
    for reason, words in zip(reasons.values(), ("truncated", "No such file", "not a regular file"), strict=True):
        assert words in reason
    Path("out/parts/part-00001.parquet").unlink()
    Path("out/parts/.part-00001-abc.parquet").write_text("half")
    progress = Mock(wraps=Progress())
    assert score(NET, "list.txt", "out", progress=progress) == first
    assert in_process == [0, 1, 2, 3, 1]
    progress.say.assert_called_once_with("9 of 13 images are already done.")
    assert read_rows() == rows
    assert not list(Path("out/parts").glob(".*"))


def test_damaged_parts_are_done_again_and_nothing_is_mixed(in_process: list[int]) -> None:
    paths = draw_images(Path("images"), 8)
    score(NET, paths, "out", shard=2)
    rows = read_rows()
    parts = [Path(f"out/parts/part-0000{number}.parquet") for number in range(4)]
    parts[0].write_bytes(parts[0].read_bytes()[:-20])  # truncated
    probabilities = pq.read_metadata(parts[1]).row_group(0).column(3)
    whole = bytearray(parts[1].read_bytes())
    whole[probabilities.data_page_offset - 1] ^= 1  # the last byte of the page before, which has the values
    parts[1].write_bytes(whole)
    score(ModelSpec(NET, recipe="bn"), paths, "other", shard=2)
    parts[3].write_bytes(Path("other/parts/part-00003.parquet").read_bytes())  # of another run
    in_process.clear()
    score(NET, paths, "out")
    assert read_rows() == rows
    assert in_process == [0, 1, 3]
    assert json.loads(pq.read_metadata(parts[2]).metadata[b"sita"])["recipe"] == "auto"


def test_images_on_which_the_model_fails_have_a_reason_and_others_the_rows_that_they_have_alone() -> None:
    paths = draw_images(Path("images"), 8, sides=(12, 12, 16))  # they run in batches of one size each
    spec, white = ModelSpec("net.py:moody", recipe="augbn"), ["images/white.png", "images/tiny.png"]
    for path, side in zip(white, (12, 2), strict=True):
        Image.new("RGB", (side, side), "white").save(path)
    scored = score_images(spec, [paths[0], *white, *paths[1:]])
    alone = [row for path in paths for row in score_images(spec, [path])]
    bad = [scored.pop(1)["reason"] for _ in white]
    assert [row["path"] for row in scored] == paths
    np.testing.assert_allclose([r["probability"] for r in scored], [r["probability"] for r in alone], atol=1e-5)
    assert "returned NaN" in bad[0]
    assert re.fullmatch(r".*2 × 2.*Try: --size.*", bad[1])


def test_another_model_recipe_or_list_is_refused(in_process: list[int]) -> None:
    paths = draw_images(Path("images"), 4)
    score(NET, paths, "out", shard=2)
    for changes, words in (
        ({"spec": ModelSpec(NET, recipe="augbn")}, "recipe was 'auto' and is 'augbn'"),
        ({"spec": ModelSpec(NET, size=10)}, "size was None and is 10"),
        ({"paths": paths[:3]}, "images was 4 and is 3"),
        ({"paths": paths[::-1]}, "input list was"),
        ({"shard": 3}, "shard was 2 and is 3"),
    ):
        with pytest.raises(InputError, match=f"another run: .*{words}.*Try: another --output"):
            score(**({"spec": NET, "paths": paths, "output": "out"} | changes))
    Path("net.py").write_text(NETWORKS + "\n# another file\n")
    with pytest.raises(InputError, match=r"model was 'net\.py sha256"):
        score(NET, paths, "out")
    with pytest.raises(InputError, match="holds other files"):
        score(NET, paths, "images")
    with open_folder(Path("new"), {}, paths, None), pytest.raises(InputError, match="another run is writing to new"):
        score(NET, paths, "new")
    assert in_process == [0, 1]


def test_the_command_names_the_classes() -> None:
    draw_images(Path("images"), 4)
    Path("names.txt").write_text("ant\nbee\ncat\ndog\n")
    told = invoke("score", NET, "--input=images", "--output=out", "--labels=names.txt", "--recipe=bn")
    assert "4 images scored, 0 failed." in told
    for row in read_rows():
        assert row["class_name"] == ["ant", "bee", "cat", "dog"][row["label"]]


def test_the_example_for_spark_maps_tables_of_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    pd = pytest.importorskip("pandas")
    monkeypatch.setattr("sita_workbench.scoring.use_threads", lambda count: None)
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "spark_scoring.py"))
    paths = [*draw_images(Path("images"), 3), "gone.png"]
    answers = next(example["Score"](ModelSpec(NET))(iter([pd.DataFrame({"path": paths})])))
    assert answers["path"].tolist() == paths
    assert answers["label"].tolist()[:3] == [row["label"] for row in score_images(ModelSpec(NET), paths[:3])]
    assert "No such file" in answers["reason"].iloc[-1]
