"""Whether an exported file answers as the adapted model does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import sita_adapters as sita
from sita_adapters.backend import adaptation_of, backend_of
from sita_adapters.engine import latest_layout
from sita_adapters.errors import ExportError
from sita_adapters.export import TITLES, name_outputs
from sita_adapters.outputs import ScoresLayout, flatten
from sita_adapters.voting import probabilities

from ..near_ties import NEAR, near_ties
from ..recording import record_diagnostics
from .runtimes import first_line, open_exported

TOLERANCE = 1e-4
"""How far a probability of the file may be from the adapted model's."""

_STRAY_PIXELS = 1e-3
"""The share of an output's pixels that may differ more. If two candidates are equally confident up to rounding, either
may win; among many thousand pixels this happens to a few."""


@dataclass(frozen=True, eq=False)
class Expected:
    """Images, and the adapted model's outputs for them by their names in the file.

    `ties` tells, by an output's name, where rounding could decide otherwise, (N, …). `scores_name` is the output that
    is the scores, and `scores` says what they are; None if that is not known.
    """

    images: np.ndarray
    outputs: Mapping[str, np.ndarray]
    ties: Mapping[str, np.ndarray]
    scores: ScoresLayout | None
    scores_name: str
    diagnostics: tuple[str, ...]


def expect(adapted: Any, images: np.ndarray, *, diagnostics: bool) -> Expected:
    """Run the adapted model, and return what its file must answer."""
    backend, adaptation = backend_of(adapted), adaptation_of(adapted)
    with record_diagnostics(adapted) as recorded, sita.observe(adapted) as observation:
        output = backend.run(adapted, images)
    own = [(path, backend.ops.to_numpy(array)) for path, array in flatten(output, backend.ops.is_array)]
    told = recorded if diagnostics else {}
    outputs, scores = name_outputs(own, told), latest_layout(adaptation).scores
    name = list(outputs)[0 if scores is None else scores.index]
    ties = {}
    if scores is not None and adaptation.recipe.candidate_count > 1:
        votes = near_ties(observation.entropies, observation.kept, observation.labels)
        if adaptation.recipe.combine == "vote" and not votes.all():
            ties[name] = votes
        first, second = np.sort(observation.entropies, axis=1)[:, :2].swapaxes(0, 1)
        ties["prior"] = second - first < NEAR
    return Expected(images, outputs, ties, scores, name, tuple(told))


def verify(path: Path, format: str, batches: list[Expected]) -> float:
    """Return the largest difference from the adapted model's answers; raise if it is too large."""
    file, largest = open_exported(path, format), 0.0
    for batch in batches:
        count = len(batch.images)
        try:
            answered = file.run_named(batch.images)
        except Exception as error:
            raise ExportError(
                f"{file.runtime} cannot run the exported {TITLES[format]} on {count} images: {first_line(error)} "
                "Try: another format."
            ) from error
        _check_shapes(answered, batch, format)
        for name, wanted in batch.outputs.items():
            is_scores = name in (batch.scores_name, "source" if batch.diagnostics else None)
            gaps = _differences(wanted, answered[name], batch.scores if is_scores else None)
            ties = batch.ties.get(name)
            if ties is not None and ties.shape == gaps.shape:
                gaps = np.where(ties, 0.0, gaps)
            largest = max(largest, float(gaps.max(initial=0.0)))
            may_stray = gaps.ndim > 1 and (is_scores or name in batch.diagnostics)
            if not np.mean(~(gaps <= TOLERANCE)) <= (_STRAY_PIXELS if may_stray else 0.0):
                raise ExportError(
                    f"Expected the exported {TITLES[format]} to answer as the adapted model does, within "
                    f"{TOLERANCE:.0e}; on {count} images it differs by up to {float(gaps.max()):.1e}. No file was "
                    "written. Try: another format, or another example if two candidates of this one are equally "
                    "confident."
                )
    return largest


def _check_shapes(answered: Mapping[str, np.ndarray], batch: Expected, format: str) -> None:
    """Raise unless a file returned outputs of the expected names and shapes."""
    if missing := [name for name in batch.outputs if name not in answered]:
        raise ExportError(
            f"Expected outputs called {', '.join(missing)} in the exported {TITLES[format]}; received "
            f"{', '.join(answered)}. Try: another format."
        )
    wanted, given = ([arrays[name].shape for name in batch.outputs] for arrays in (batch.outputs, answered))
    if wanted != given:
        raise ExportError(
            f"On {len(batch.images)} images, expected outputs of shape {', '.join(map(str, wanted))}, as the adapted "
            f"model returns; the exported {TITLES[format]} returned {', '.join(map(str, given))}. The model's graph "
            "depends on its example. Try: another format, or an example of as many images as you will run."
        )


def _differences(expected: np.ndarray, answered: np.ndarray, scores: ScoresLayout | None) -> np.ndarray:
    """Return how far apart answers are: for scores, the largest difference of a probability at every position.

    For other outputs, the difference of every number, relative to the largest of them or to 1, whichever is larger.
    """
    wanted, given = (array.astype(np.float64) for array in (expected, answered))
    if scores is None:
        return np.asarray(np.abs(wanted - given) / max(1.0, float(np.abs(wanted).max(initial=0.0))))
    p, q = (probabilities(array, scores.kind, scores.class_axis) for array in (wanted, given))
    gaps = np.abs(p - q)
    return np.asarray(gaps.max(axis=scores.class_axis) if gaps.ndim > 1 else gaps)
