"""`sita score --engine ray`: the answers of the local engine, whatever is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from score_sets import NETWORKS, draw_images, progress_to, read_rows

from sita_adapters.errors import InputError
from sita_workbench import ModelSpec, score
from sita_workbench.scoring import Report, score_images

ray = pytest.importorskip("ray")

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]

SPEC = ModelSpec("net.py:build", recipe="ops")
SHARD = 46  # two batches: 512 rows are 23 images of 22


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # Ray's processes are children of this one
    (tmp_path / "net.py").write_text(NETWORKS)


def expected_rows(paths: list[str]) -> list[dict[str, Any]]:
    """Return the rows that this process finds, without an engine."""
    parts = [paths[start : start + SHARD] for start in range(0, len(paths), SHARD)]
    return [row | {"map": None} for part in parts for row in score_images(SPEC, part).rows]


def test_a_cluster_of_its_own_gives_the_same_rows_and_ends() -> None:
    paths = draw_images(Path("images"), 2 * SHARD + 1)
    seen: list[Report] = []
    score(SPEC, paths, "out", engine="ray", workers=1, shard=SHARD, watch=seen.append)
    assert read_rows() == expected_rows(paths)
    assert not ray.is_initialized()
    assert len({report.pid for report in seen} - {os.getpid()}) == 1


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_an_error_of_a_worker_arrives_as_what_it_was(engine: Literal["local", "ray"]) -> None:
    with pytest.raises(InputError, match="expected a function"):
        score("net.py:nothing", draw_images(Path("images"), 2), "out", engine=engine, workers=1)


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head without a CPU, where the driver is, and two nodes with two each."""
    from ray.cluster_utils import Cluster

    memory = {"object_store_memory": 80 * 2**20}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **memory})
    try:
        made.workers = [made.add_node(num_cpus=2, **memory) for _ in range(2)]
        made.wait_for_nodes()
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


DRIVER = """
import sys
from sita_workbench import ModelSpec, score
score(ModelSpec("net.py:build", recipe="ops"), "images", "out", engine="ray", address=sys.argv[1], workers=2, shard=46,
      watch=lambda report: print("done" if report.done else "batch", flush=True))
"""


def test_an_actor_a_node_and_the_driver_are_lost_and_no_image_is(cluster: Any) -> None:
    """The driver first, by SIGKILL; in the run that resumes an actor, then a node. Reports, not files, trigger it."""
    paths = draw_images(Path("images"), 20 * SHARD)
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, cluster.address], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    next(line for line in driver.stdout if line.startswith("done"))
    driver.kill()
    driver.wait()
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

    said: list[str] = []
    settings: dict[str, Any] = {"address": cluster.address, "workers": 2, "progress": progress_to(said)}
    scored = score(SPEC, "images", "out", engine="ray", watch=make_trouble, **settings)
    assert removed
    assert sum("A worker was lost" in message for message in said) >= 2
    assert (scored.rows, scored.failed) == (len(paths), 0)
    assert read_rows() == expected_rows(paths)
    assert {path: path.stat().st_mtime_ns for path in there} == there
