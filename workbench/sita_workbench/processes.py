"""Worker processes, of `sita score` and `sita serve`: their threads, and their end."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time

GRACE_SECONDS = 10
"""How long a process may take to end after it is asked to, for example to finish its requests."""

_THREADS = [f"{library}_NUM_THREADS" for library in ("OMP", "MKL", "OPENBLAS")]
_THREADS += ["TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"]


def use_threads(count: int) -> None:
    """Let this process compute with this many threads.

    Frameworks that are not imported yet read it from the environment. For torch, it can be set at any time.
    """
    os.environ.update(dict.fromkeys(_THREADS, str(count)))
    if count == 1:
        os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(count)


def end_with_parent() -> None:
    """Let this process end when its parent has ended, even if the parent was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_SECONDS + 1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
