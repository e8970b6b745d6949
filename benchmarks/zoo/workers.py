"""Processes that check members. A member that ends its process, or takes too long, costs the others nothing."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator

from .members import Member, Outcome

TIME_LIMIT = 300
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
    """Yield every member with its outcome, in order."""
    os.environ.update(ENVIRONMENT)
    with multiprocessing.get_context("spawn").Pool(processes) as pool:  # it replaces a process that ends
        for member, check in [(member, pool.apply_async(check_member, (member,))) for member in members]:
            try:
                yield member, check.get(TIME_LIMIT + 60)
            except multiprocessing.TimeoutError:
                yield member, Outcome(f"crash: its process ended, or took more than {TIME_LIMIT} seconds")


def check_member(member: Member) -> Outcome:
    """Check a member in this process, which ends after the time limit. What the member raises is its verdict."""
    signal.alarm(TIME_LIMIT)
    warnings.simplefilter("ignore")
    started = time.perf_counter()
    try:
        outcome = _check(member)
    except Exception as error:
        traceback.print_exc()
        outcome = Outcome(f"crash: {type(error).__name__}: {error}")
    signal.alarm(0)
    outcome.seconds = round(time.perf_counter() - started, 1)
    return outcome


def _check(member: Member) -> Outcome:
    if member.library.startswith("keras"):
        from .keras_checks import check as check_keras

        return check_keras(member)
    import torch

    import sita_workbench.models.torchvision_compat  # noqa: F401  (before timm and torchvision)

    from .torch_checks import check as check_torch

    torch.set_num_threads(1)
    return check_torch(member)
