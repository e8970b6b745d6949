"""How many threads a worker process computes with."""

from __future__ import annotations

import os
import sys

_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
)


def use_threads(count: int) -> None:
    """Let this process compute with this many threads.

    Frameworks that are not imported yet read it from the environment; torch can be told at any time.
    """
    os.environ.update(dict.fromkeys(_VARIABLES, str(count)))
    if count == 1:
        os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(count)
