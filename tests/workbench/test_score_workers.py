"""The workers of `sita score`, on this machine and on Ray: one row for every image, whatever is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from score_sets import NETWORKS, draw_images, read_rows
from serving_process import wait_for

from sita_adapters.errors import InputError, SitaError
from sita_workbench import ModelSpec, score
from sita_workbench.progress import Progress
from sita_workbench.scoring import Report, score_images

SPEC = ModelSpec("net.py:build", recipe="ops")
SHARD = 46  # two batches: 512 rows are 23 images of 22


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # drivers and Ray's processes are children of this one
    (tmp_path / "net.py").write_text(NETWORKS)


def expected_rows(paths: list[str]) -> list[dict[str, Any]]:
    """Return the rows that this process finds, without an engine."""
    parts = [paths[start : start + SHARD] for start in range(0, len(paths), SHARD)]
    return [row | {"map": None, "reason": None} for part in parts for row in score_images(SPEC, part)]


def test_workers_are_replaced_when_they_are_killed_and_nothing_is_lost() -> None:
    """The first worker dies after its first batch; its shard is done again, by another."""
    paths = [*draw_images(Path("images"), 2 * SHARD), "images/000.png"]
    seen: list[Report] = []
    progress = Mock(wraps=Progress())

    def kill_first(report: Report) -> None:
        seen.append(report)
        if len(seen) == 1:
            os.kill(report.pid, signal.SIGKILL)

    score(SPEC, paths, "out", workers=2, shard=SHARD, watch=kill_first, progress=progress)
    assert seen[0].images == SHARD // 2
    progress.say.assert_called_once_with(f"A worker was lost (signal 9); shard {seen[0].number} runs again.")
    assert read_rows() == expected_rows(paths)


@pytest.mark.slow
def test_a_shard_that_kills_every_worker_ends_the_run() -> None:
    Path("net.py").write_text("import os\n\ndef build():\n    os.kill(os.getpid(), 9)\n")
    with pytest.raises(SitaError, match=r"3 times while scoring shard 0.*signal 9.*fewer --workers"):
        score(SPEC, draw_images(Path("images"), 2), "out", shard=2)
    with pytest.raises(InputError, match="expected a function"):  # an error arrives as what it was
        score("net.py:nothing", "images", "out", workers=1)


def stop_driver(number: signal.Signals, *options: str) -> tuple[int, str, list[str]]:
    """Start `sita score` and send it a signal once there is a part; return its exit code, messages and children."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests that run in the background ignore it, and so would
    command = [sys.executable, "-m", "sita_workbench.cli", "score", "--input=images", "--output=out", *options]
    driver = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not any(Path("out/parts").glob("part-*")) and driver.poll() is None:
        time.sleep(0.02)
    children = Path(f"/proc/{driver.pid}/task/{driver.pid}/children").read_text().split()
    driver.send_signal(number)
    _, errors = driver.communicate(timeout=60)
    return driver.returncode, errors, children


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=str)
def test_a_driver_that_is_stopped_leaves_no_worker_and_resumes(number: signal.Signals) -> None:
    paths = draw_images(Path("images"), 60)
    code, errors, workers = stop_driver(number, "net.py:moody", "--shard=4", "--workers=1")
    assert number == signal.SIGKILL or (code == 130 and "rerun the same command to resume" in errors)
    assert wait_for(lambda: not any(Path("/proc", worker).exists() for worker in workers), 10)
    assert 1 <= len(list(Path("out/parts").glob("part-*"))) < 15
    score("net.py:moody", "images", "out", workers=1)
    assert [row["path"] for row in read_rows()] == paths


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_a_cluster_of_its_own_gives_the_same_rows_and_ends() -> None:
    ray = pytest.importorskip("ray")
    paths = draw_images(Path("images"), 2 * SHARD + 1)
    seen: list[Report] = []
    score(SPEC, paths, "out", engine="ray", workers=1, shard=SHARD, watch=seen.append)
    assert read_rows() == expected_rows(paths)
    assert not ray.is_initialized()
    assert len({report.pid for report in seen} - {os.getpid()}) == 1


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head without a CPU, where the driver is, and two nodes with two each."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    memory = {"object_store_memory": 80 * 2**20}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **memory})
    made.workers = [made.add_node(num_cpus=2, **memory) for _ in range(2)]
    made.wait_for_nodes()
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
def test_an_actor_a_node_and_the_driver_are_lost_and_no_image_is(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver first, by SIGKILL; in the run that resumes an actor, then a node."""
    paths = draw_images(Path("images"), 20 * SHARD)
    monkeypatch.setenv("KERAS_BACKEND", "jax")  # which the nodes that run already do not have
    Path("net.py").write_text(NETWORKS + '\nimport os\n\nassert os.environ["KERAS_BACKEND"] == "jax"\n')
    options = ("--engine=ray", f"--address={cluster.address}", "--workers=2", f"--shard={SHARD}")
    stop_driver(signal.SIGKILL, SPEC.model, "--recipe=ops", *options)
    there = {path: path.stat().st_mtime_ns for path in Path("out/parts").glob("part-*")}
    assert 1 <= len(there) < 20
    seen: list[int] = []
    removed: list[Any] = []

    def make_trouble(report: Report) -> None:
        seen.append(report.pid)
        if len(seen) == 4:
            os.kill(report.pid, signal.SIGKILL)
        if len(seen) >= 12 and not removed and report.pid != seen[3]:
            raylet = int(Path(f"/proc/{report.pid}/stat").read_text().rpartition(")")[2].split()[1])  # its parent
            nodes = {node.all_processes["raylet"][0].process.pid: node for node in cluster.workers}
            removed.append(nodes[raylet])
            threading.Thread(target=cluster.remove_node, args=(nodes[raylet], False)).start()

    settings: dict[str, Any] = {"address": cluster.address, "workers": 2, "progress": Mock(wraps=Progress())}
    scored = score(SPEC, "images", "out", engine="ray", watch=make_trouble, **settings)
    assert sum("A worker was lost" in str(call) for call in settings["progress"].say.mock_calls) >= 2
    assert (scored.rows, scored.failed) == (len(paths), 0)
    assert read_rows() == expected_rows(paths)
    assert {path: path.stat().st_mtime_ns for path in there} == there
    with pytest.raises(InputError, match="expected a function"):  # an error arrives as what it was
        score("net.py:nothing", paths, "other", engine="ray", address=cluster.address, workers=1)
