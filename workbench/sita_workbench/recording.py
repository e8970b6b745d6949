"""The diagnostics of an adapted model's call: λ, entropy and, unlike in `sita.observe`, the source's scores."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from sita_adapters.backend import backend_of
from sita_adapters.diagnostics import Diagnostics
from sita_adapters.engine import thread
from sita_adapters.ops import Ops


class _Recorder(dict[str, np.ndarray]):
    def append(self, diagnostics: Diagnostics, ops: Ops) -> None:
        """Keep the diagnostics of a call, if its output has class scores. It may run its images in several rounds."""
        if "entropies" in diagnostics.arrays:
            for name, array in diagnostics.outputs(ops).items():
                found = ops.to_numpy(array)
                self[name] = np.concatenate([self[name], found]) if name in self else found


@contextmanager
def record_diagnostics(adapted: Any) -> Iterator[dict[str, np.ndarray]]:
    """Yield a dict that gets the diagnostics of one call inside the block, in this thread, named as in a file."""
    with backend_of(adapted).observing(adapted) as key:
        recorder, others = _Recorder(), thread.observers
        thread.observers = (*others, (key, recorder))
        try:
            yield recorder
        finally:
            thread.observers = others
