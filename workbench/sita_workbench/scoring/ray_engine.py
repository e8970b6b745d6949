"""The Ray engine: Ray Data maps the numbers of the shards over a pool of actors, one per worker.

An actor is given the job, some hundred bytes, and makes the model itself: so Ray can start it again anywhere. Its part
on disk is what counts; the row that it returns only says that it is there.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from sita_adapters.errors import InputError, SitaError

from .events import BatchDone, Events, to_error
from .local import usable_cores
from .shard import Report, ShardDone, score_shard
from .spec import Job

_STORE = 100 * 2**20
"""Memory for the objects of a cluster of our own: rows here are tiny."""

_ATTEMPTS = 10
"""How often a shard is begun. More often than by local workers: the nodes of a cluster come and go."""

_POLL_SECONDS = 0.5


class ShardActor:
    """An actor of the pool. The model is loaded with the first shard, so that an error comes back as a row."""

    def __init__(self, job: Job, board: Any) -> None:
        from .scorer import use_one_thread

        use_one_thread()
        self._job, self._board = job, board

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[str]]:
        """Score the shards of a batch, which are one."""
        import ray

        node = ray.get_runtime_context().get_node_id()
        number = int(batch["number"][0])

        def report(images: int) -> None:
            self._board.add.remote((number, images, os.getpid(), node))

        return {"message": [json.dumps(self._score(number, report))]}

    def _score(self, number: int, report: Report) -> dict[str, Any]:
        from .worker import describe_error

        try:
            _refuse_after_kills(number, self._attempt(number))
            return {"done": asdict(score_shard(self._job, number, report))}
        except Exception as error:
            return {"error": describe_error(error)}

    def _attempt(self, number: int) -> int:
        """Return how often the shard was begun, this time included; Ray itself would begin it for ever."""
        import ray

        try:
            return int(ray.get(self._board.begin.remote(number)))
        except ray.exceptions.RayError:  # the board is lost
            return 1


def _refuse_after_kills(number: int, attempt: int) -> None:
    if attempt > _ATTEMPTS:
        raise SitaError(
            f"Actors ended {_ATTEMPTS} times while they scored shard {number}. What is done is kept. Try: fewer "
            "--workers, if memory ran out."
        )


class Board:
    """The actor to which the others report what they do, and which the driver reads."""

    def __init__(self) -> None:
        self._reports: list[tuple[int, int, int, str]] = []
        self._begun = Counter[int]()

    def begin(self, number: int) -> int:
        """Count that a shard is begun, and return how often it was."""
        self._begun[number] += 1
        return self._begun[number]

    def add(self, report: tuple[int, int, int, str]) -> None:
        """Take a report."""
        self._reports.append(report)

    def take(self) -> list[tuple[int, int, int, str]]:
        """Return the reports since the last time."""
        reports, self._reports = self._reports, []
        return reports


def run_ray(job: Job, numbers: Sequence[int], workers: int | None, events: Events, address: str | None) -> None:
    """Score these shards on a cluster: the one at `address`, or one on this machine that ends with the run."""
    cores = min(workers or usable_cores(), len(numbers))
    with _connected(address, cores):
        import ray

        workers = workers or int(ray.cluster_resources().get("CPU", 0))
        if workers < 1:
            raise InputError(f"ray: the cluster at {address!r} has no CPU to offer. Try: add nodes, or --workers.")
        # On the driver's node: it must not vanish with another one.
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=True
        )
        board = ray.remote(num_cpus=0, scheduling_strategy=here)(Board).remote()
        with _polling(board, events):
            for message in _map(job, numbers, min(workers, len(numbers)), board):
                if "error" in message:
                    raise to_error(**message["error"])
                done = message["done"]
                events.shard(ShardDone(**{**done, "warnings": tuple(done["warnings"])}))


def _map(job: Job, numbers: Sequence[int], workers: int, board: Any) -> Iterator[dict[str, Any]]:
    import ray

    # One block per shard: an actor that is lost loses the shard that it was at, and nothing else.
    rows = ray.data.from_items([{"number": number} for number in numbers], override_num_blocks=len(numbers))
    scored = rows.map_batches(
        ShardActor,
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=workers, max_tasks_in_flight_per_actor=2),
        num_cpus=1,
        fn_constructor_args=(job, board),
    )
    context = ray.data.DataContext.get_current()
    before, context.enable_progress_bars = context.enable_progress_bars, False
    try:
        for row in scored.iter_rows():
            yield json.loads(row["message"])
    finally:
        context.enable_progress_bars = before


@contextlib.contextmanager
def _connected(address: str | None, cores: int) -> Iterator[None]:
    """Connect to a cluster, or start one; a connection that was there before stays."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anyone
    # Ray warns of arguments in its object store, which Ray Data itself puts there: on the driver's node, with which
    # the run ends anyway.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    import ray
    import ray.data

    logging.getLogger("ray.data").setLevel(logging.ERROR)  # it announces every step
    if ray.is_initialized():
        yield
        return
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address is None:
            ray.init("local", num_cpus=cores, object_store_memory=_STORE, include_dashboard=False, **quiet)
        else:
            ray.init(address, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise SitaError(
            f"ray: no cluster could be reached at {address or 'this machine'!r}: {error} Try: ray start --head, or "
            "leave --address out for a cluster of its own."
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _polling(board: Any, events: Events) -> Iterator[None]:
    """Pass the reports of the batches on while inside. Should the board be lost, only they are."""
    import ray

    ended = threading.Event()

    def poll() -> None:
        last = False
        while not last:
            last = ended.wait(_POLL_SECONDS)
            with contextlib.suppress(ray.exceptions.RayError):
                for report in ray.get(board.take.remote()):
                    events.batch(BatchDone(*report))

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=10)
