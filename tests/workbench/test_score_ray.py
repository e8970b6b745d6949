"""`sita score --engine ray`: the answers of the local engine, whatever dies on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from score_sets import NETWORKS, draw_images, without_time

from sita_adapters.errors import InputError
from sita_workbench import ModelSpec, score
from sita_workbench.scoring import score_images
from sita_workbench.scoring.events import BatchDone

ray = pytest.importorskip("ray")

pytestmark = pytest.mark.xdist_group("ray")

SPEC = ModelSpec("net.py:build", recipe="ops")
SHARD = 46  # two batches: 512 rows are 23 images of 22


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # Ray's processes are children of this one
    (tmp_path / "net.py").write_text(NETWORKS)
    return tmp_path


def expected_rows(paths: list[str]) -> list[dict[str, Any]]:
    """Return what the shard function says in this process, where no engine is."""
    parts = [paths[start : start + SHARD] for start in range(0, len(paths), SHARD)]
    return without_time([row for part in parts for row in score_images(SPEC, part).rows])


@pytest.mark.slow
def test_a_cluster_of_its_own_gives_the_same_rows_and_ends() -> None:
    paths = draw_images(Path("images"), 2 * SHARD + 1)
    seen: list[BatchDone] = []
    scored = score(SPEC, paths, "out", engine="ray", workers=1, shard=SHARD, watch=seen.append)
    assert without_time(scored.read().to_pylist()) == expected_rows(paths)
    assert not ray.is_initialized()
    assert seen
    assert {done.pid for done in seen}.isdisjoint({os.getpid()})


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
      watch=lambda done: print("batch", done.number, flush=True))
"""


@pytest.mark.slow
def test_an_actor_a_node_and_the_driver_are_lost_and_no_image_is(cluster: Any) -> None:
    """The driver first, by SIGKILL; in the run that goes on an actor, then a node. Batches, not files, trigger it."""
    paths = draw_images(Path("images"), 20 * SHARD)
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, cluster.address], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    processed = 0
    for line in driver.stdout:
        processed += line.startswith("batch")
        if processed == 7:
            driver.kill()
            break
    driver.wait()
    there = {path.name: path.stat().st_mtime_ns for path in Path("out/parts").glob("part-*")}
    assert 1 <= len(there) < 20

    trouble = Trouble(cluster)
    scored = score(SPEC, "images", "out", engine="ray", address=cluster.address, workers=2, watch=trouble)
    assert trouble.killed is not None
    assert trouble.removed is not None
    assert (scored.rows, scored.failed) == (len(paths), 0)
    assert without_time(scored.read().to_pylist()) == expected_rows(paths)
    untouched = {name: Path("out/parts", name).stat().st_mtime_ns for name in there}
    assert untouched == there


class Trouble:
    """Kills the process of the fourth batch, and removes the node of the first one some batches later."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._batches = 0
        self.killed: int | None = None
        self.removed: str | None = None

    def __call__(self, done: BatchDone) -> None:
        self._batches += 1
        if self._batches == 4:
            self.killed = done.pid
            os.kill(done.pid, signal.SIGKILL)
        if self._batches >= 8 and self.removed is None and done.pid != self.killed:
            self.removed = done.node
            node = next(node for node in self._cluster.workers if node.node_id == done.node)
            threading.Thread(target=self._cluster.remove_node, args=(node,), kwargs={"allow_graceful": False}).start()


@pytest.mark.slow
def test_an_error_of_a_worker_arrives_as_what_it_was() -> None:
    with pytest.raises(InputError, match="expected a function"):
        score("net.py:nothing", draw_images(Path("images"), 2), "out", engine="ray", workers=1)
