"""Whether an exported file answers as the adapted model does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import sita_adapters as sita
from sita_adapters.backend import Backend, read_adaptation
from sita_adapters.description import Description
from sita_adapters.errors import ExportError, OutputError
from sita_adapters.export import TITLES, first_line
from sita_adapters.gauge import NAMES, output_names
from sita_adapters.outputs import Selector, find_scores, flatten
from sita_adapters.voting import near_ties, probabilities

from .runtimes import Shape, open_exported

TOLERANCE = 1e-4
"""How far a probability of the file may be from the adapted model's."""

_NEAR = 1e-4
"""The difference of two entropies, in nats, below which rounding may decide which one is lower."""

_STRAY_PIXELS = 1e-3
"""The share of an output's pixels that may differ more. If two candidates are equally certain up to rounding, either
may win; among many thousand pixels this happens to a few."""


@dataclass(frozen=True, eq=False)
class Expected:
    """Images, and the adapted model's outputs for them in the file's order.

    `ties` holds, by an output's index, where rounding could decide otherwise, (N, …).
    """

    images: np.ndarray
    outputs: list[np.ndarray]
    ties: Mapping[int, np.ndarray]


@dataclass(frozen=True, eq=False)
class Check:
    """The input that an exported file takes (None: any number), and the outputs it must return.

    `batches` differ in their number of images. `scores_index` says which output holds the scores; None if that is not
    known. `diagnostics_index` has the outputs of the diagnostics by name.
    """

    input_shape: Shape
    batches: tuple[Expected, ...]
    scores_index: int | None
    diagnostics_index: Mapping[str, int]

    @property
    def diagnostics(self) -> tuple[str, ...]:
        """The names of the outputs that tell how far an image is from the training images."""
        return tuple(name for name in NAMES if name in self.diagnostics_index)

    def is_scores(self, index: int) -> bool:
        """Whether an output holds scores, which are compared as probabilities."""
        return index in (self.scores_index, self.diagnostics_index.get("source"))

    def may_stray(self, index: int) -> bool:
        """Whether a few of an output's pixels may differ."""
        return index == self.scores_index or index in self.diagnostics_index.values()


def make_check(backend: Backend, adapted: Any, written: Any, images: np.ndarray) -> Check:
    """Run the model that was written, with or without diagnostics, and return what its file must answer."""
    adaptation = read_adaptation(adapted)
    output = backend.run(adapted, images)
    scores = _scores_path(backend, output, adaptation.output, len(images))
    names = [name for name, _ in backend.file_outputs(output if written is adapted else backend.run(written, images))]
    diagnostics = {} if written is adapted else {name: names.index(name) for name in NAMES if name in names}
    if diagnostics and scores is not None:
        paths = [path for path, _ in flatten(output, backend.ops.is_array)]
        scores = output_names(paths)[paths.index(scores)]
    index = names.index(scores) if scores in names else None
    batches = []
    for batch in (images, images[:1], np.concatenate([images, images[::-1]])):
        arrays = [backend.ops.to_numpy(array) for _, array in backend.file_outputs(backend.run(written, batch))]
        ties = _near_ties(backend, adapted, batch, index, diagnostics) if adaptation.recipe.candidate_count > 1 else {}
        batches.append(Expected(batch, arrays, ties))
    return Check((None, *images.shape[1:]), tuple(batches), index, diagnostics)


def _near_ties(
    backend: Backend, adapted: Any, images: np.ndarray, scores: int | None, diagnostics: Mapping[str, int]
) -> dict[int, np.ndarray]:
    """Return where rounding could change the vote on these images, or which candidate is most certain."""
    with sita.observe(adapted) as seen:
        backend.run(adapted, images)
    votes = near_ties(seen.entropies, seen.kept, seen.labels)
    ties = {} if scores is None or votes.all() else {scores: votes}
    if "prior" in diagnostics:
        first, second = np.sort(seen.entropies, axis=1)[:, :2].swapaxes(0, 1)
        ties[diagnostics["prior"]] = second - first < _NEAR
    return ties


def _scores_path(backend: Backend, output: Any, selector: Selector, count: int) -> str | None:
    """Return the path of the scores in an output; None if a recipe of one candidate leaves it open."""
    ops = backend.ops

    def eligible(array: Any) -> bool:
        return len(array.shape) > 1 and ops.is_float(array) and array.shape[0] == count

    try:
        return flatten(output, ops.is_array)[find_scores(output, selector, ops.is_array, eligible)][0]
    except OutputError:
        return None


def verify(path: Path, format: str, check: Check, description: Description, class_axis: int) -> float:
    """Return the largest difference from the adapted model's answers; raise if it is too large."""
    file, largest = open_exported(path, format), 0.0
    for batch in check.batches:
        count = len(batch.images)
        try:
            named = file.run_named(batch.images)
        except Exception as error:
            raise ExportError(
                f"{file.runtime} cannot run the exported {TITLES[format]} on {count} images: {first_line(error)} "
                "Try: another format."
            ) from error
        answered = list(named.values())
        _check_outputs(named, batch, check, format)
        for index, (wanted, given) in enumerate(zip(batch.outputs, answered, strict=True)):
            gaps = _differences(wanted, given, description.scores if check.is_scores(index) else None, class_axis)
            ties = batch.ties.get(index)
            if ties is not None and ties.shape == gaps.shape:
                gaps = np.where(ties, 0.0, gaps)
            largest = max(largest, float(gaps.max(initial=0.0)))
            allowed = _STRAY_PIXELS if check.may_stray(index) and gaps.ndim > 1 else 0.0
            if not np.mean(~(gaps <= TOLERANCE)) <= allowed:
                raise ExportError(
                    f"Expected the exported {TITLES[format]} to answer as the adapted model does, within "
                    f"{TOLERANCE:.0e}; on {count} images it differs by up to {float(gaps.max()):.1e}. No file was "
                    "written. Try: another format, or another example if two candidates of this one are equally "
                    "certain."
                )
    return largest


def _check_outputs(named: Mapping[str, np.ndarray], batch: Expected, check: Check, format: str) -> None:
    """Raise unless a file returned outputs of the expected names and shapes."""
    if missing := [name for name in check.diagnostics if name not in named]:
        raise ExportError(
            f"Expected outputs called {', '.join(missing)} in the exported {TITLES[format]}; received "
            f"{', '.join(named)}. Try: export without diagnostics, or another format."
        )
    wanted, given = ([array.shape for array in arrays] for arrays in (batch.outputs, named.values()))
    if wanted != given:
        raise ExportError(
            f"On {len(batch.images)} images, expected outputs of shape {', '.join(map(str, wanted))}, as the adapted "
            f"model returns; the exported {TITLES[format]} returned {', '.join(map(str, given))}. The model's graph "
            "depends on its example. Try: another format, or an example of as many images as you will run."
        )


def _differences(expected: np.ndarray, answered: np.ndarray, scores: str | None, class_axis: int) -> np.ndarray:
    """Return how far apart answers are: for scores, the largest difference of a probability at every position.

    For other outputs, the difference of every number, relative to the largest of them or to 1, whichever is larger.
    """
    wanted, given = (array.astype(np.float64) for array in (expected, answered))
    if scores is None:
        return np.asarray(np.abs(wanted - given) / max(1.0, float(np.abs(wanted).max(initial=0.0))))
    gaps = np.abs(probabilities(wanted, scores, class_axis) - probabilities(given, scores, class_axis))
    return np.asarray(gaps.max(axis=class_axis) if gaps.ndim > 1 else gaps)
