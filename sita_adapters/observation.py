"""What the candidates decided, told to whoever listens in this thread. Nobody listening costs nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .plan import Plan
from .voting import Verdict


@dataclass(frozen=True)
class Heard:
    """One vote, in the framework's own arrays, and the priors of its candidates."""

    verdict: Verdict
    priors: tuple[float, ...]


class _Listening(threading.local):
    heard: list[Heard] | None = None


_listening = _Listening()


@contextmanager
def listen() -> Iterator[list[Heard]]:
    """Collect every vote of this thread while inside."""
    outer, _listening.heard = _listening.heard, []
    try:
        yield _listening.heard
    finally:
        _listening.heard = outer


def tell(verdict: Verdict, plan: Plan) -> None:
    """Tell a listener, if there is one, of a vote."""
    if _listening.heard is not None:
        _listening.heard.append(Heard(verdict, tuple(plan.priors[row] for row in plan.answers)))
