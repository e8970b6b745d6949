"""Processes that check members, one at a time each, and survive a member that does not let its process survive."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from .members import Member, Outcome, members_of

TIME_LIMIT = 300.0
"""Seconds for one member."""

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "KERAS_BACKEND": "tensorflow",
    "HF_HUB_OFFLINE": "1",  # a configuration that asks for weights shall fail, not download
}


def check_all(members: Iterable[Member], processes: int) -> Iterator[tuple[Member, Outcome]]:
    """Yield every member with its outcome, as they are done."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    free: SimpleQueue[Worker] = SimpleQueue()
    workers = [Worker() for _ in range(processes)]
    for worker in workers:
        free.put(worker)

    def run(member: Member) -> tuple[Member, Outcome]:
        worker = free.get()
        try:
            return member, worker.check(member)
        finally:
            free.put(worker)

    pool = ThreadPoolExecutor(processes)
    try:
        for done in as_completed([pool.submit(run, member) for member in members]):
            yield done.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # an interrupted run starts nothing more
        for worker in workers:
            worker.stop()


class Worker:
    """A process that checks one member after the other; a new one takes its place if it dies."""

    def __init__(self) -> None:
        self.process: Any = None
        self.connection: Any = None

    def check(self, member: Member) -> Outcome:
        """Return the outcome of a member."""
        if self.process is None:
            self._start()
        self.connection.send((member.library, member.key))
        try:
            if self.connection.poll(TIME_LIMIT):
                return Outcome(**self.connection.recv())
            verdict = f"crash: it took more than {TIME_LIMIT:.0f} seconds"
        except EOFError:
            self.process.join()
            verdict = f"crash: the process ended with code {self.process.exitcode}"
        self.stop()
        return Outcome(verdict, member.name)

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other,), daemon=True)
        self.process.start()
        other.close()

    def stop(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.connection.close()
            self.process = None


def _serve(connection: Connection) -> None:
    """Check what is asked for, until the other end is closed."""
    warnings.simplefilter("ignore")
    while True:
        try:
            library, key = connection.recv()
        except (EOFError, KeyboardInterrupt):
            return
        connection.send(dataclasses.asdict(check_member(library, key)))


def check_member(library: str, key: str) -> Outcome:
    """Check a member in this process. What it raises is its verdict."""
    started = time.perf_counter()
    member_name = key
    try:
        check = _checks_of(library)
        member = members_of(library)[key]
        member_name = member.name
        outcome = check(member)
    except Exception as error:
        first_line = (str(error).strip().splitlines() or [""])[0]
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}, line {frame.lineno}"
        outcome = Outcome(f"crash: {type(error).__name__}: {first_line} ({where})", member_name)
    outcome.seconds = round(time.perf_counter() - started, 1)
    return outcome


def _checks_of(library: str) -> Callable[[Member], Outcome]:
    if library.startswith("keras"):
        from .keras_checks import check as check_keras

        return check_keras
    import torch

    import sita_workbench.models.torchvision_compat  # noqa: F401  (before timm and torchvision)

    from .torch_checks import check as check_torch

    torch.set_num_threads(1)
    return check_torch
