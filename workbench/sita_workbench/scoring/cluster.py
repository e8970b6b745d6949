"""Workers on a Ray cluster: actors that receive the job, some hundred bytes, and load the model themselves."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Collection, Generator, Iterator, Sequence
from typing import Any

from sita_adapters.errors import InputError, SitaError

from ..processes import use_threads
from .shard import Job, Report, report_shard
from .workers import News, Shards, run_workers, usable_cores


def run_ray(job: Job, shards: Shards, workers: int | None, address: str | None) -> Generator[Report | str, None, None]:
    """Score these shards on a cluster: the one at `address`, or one on this machine that ends with the run."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anyone
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    import ray

    cores = min(workers or usable_cores(), len(shards))
    with contextlib.nullcontext() if ray.is_initialized() else _connect(address, cores):
        workers = workers or int(ray.cluster_resources().get("CPU", 0))
        if workers < 1:
            raise InputError(f"ray: the cluster at {address!r} has no CPUs. Try: add nodes, or set --workers.")
        actor = ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(ShardActor)
        # More attempts than on one machine: the nodes of a cluster come and go.
        yield from run_workers(lambda: RayWorker(job, actor.remote()), _receive, shards, workers, attempts=10)


def _connect(address: str | None, cores: int) -> Any:
    """Connect to a cluster, or start one whose store is small: paths and reports are."""
    import ray

    own: dict[str, Any] = {"num_cpus": cores, "object_store_memory": 100 * 2**20, "include_dashboard": False}
    settings = {"log_to_driver": False, "logging_level": logging.ERROR, **({} if address else own)}
    try:
        return ray.init(address or "local", **settings)
    except Exception as error:  # Ray raises many kinds, and a bare Exception if a node starts too slowly
        raise SitaError(
            f"ray: no cluster could be reached at {address or 'this machine'!r}: {error} Try: ray start --head, or "
            "omit --address to start a cluster on this machine."
        ) from error


def _receive(running: Collection[RayWorker]) -> tuple[RayWorker, News]:
    import ray

    streams = {worker.reports: worker for worker in running}
    ready, _ = ray.wait(list(streams), num_returns=1)
    try:
        return streams[ready[0]], ray.get(next(ready[0]))
    except ray.exceptions.RayError as error:  # the actor, or its node, is lost
        return streams[ready[0]], str(error)


class RayWorker:
    """An actor, which may still wait for a free core, and the stream of its reports."""

    def __init__(self, job: Job, actor: Any) -> None:
        self._job, self._actor = job, actor
        self.reports: Any = None

    def start(self, number: int, paths: Sequence[str]) -> None:
        """Let it score a shard."""
        self.reports = self._actor.score.options(num_returns="streaming").remote(self._job, number, paths)

    def stop(self) -> None:
        """Kill it, which frees its core."""
        import ray

        ray.kill(self._actor)


class ShardActor:
    """What runs on the cluster. The model stays loaded from shard to shard."""

    def score(self, job: Job, number: int, paths: Sequence[str]) -> Iterator[Report | SitaError]:
        """Score a shard."""
        use_threads(1)
        yield from report_shard(job, number, paths)
