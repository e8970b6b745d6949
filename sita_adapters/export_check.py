"""What an exported file must answer, and whether it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .backend import Backend, read_adaptation
from .description import Description
from .errors import ExportError, OutputError
from .gauge import NAMES, output_names
from .observe import observe
from .outputs import Selector, find_scores, flatten
from .runtimes import Shape, first_line, open_exported
from .voting import NEAR, probabilities

TITLES = {
    "onnx": "ONNX",
    "pt2": "torch.export",
    "torchscript": "TorchScript",
    "litert": "LiteRT",
    "saved_model": "SavedModel",
}

TOLERANCE = 1e-4
"""How far a probability of the file may be from the adapted model's."""

_STRAY_PIXELS = 1e-3
"""The share of an output's places that may be further off. Where two candidates are as certain as each other to the
last digits, rounding decides which of them counts; of many thousand pixels a few are such."""


@dataclass(frozen=True, eq=False)
class Expected:
    """Images, and the adapted model's outputs on them in the file's order.

    `ties` has, by an output's place, where rounding could decide it otherwise, (N, …).
    """

    images: np.ndarray
    outputs: list[np.ndarray]
    ties: Mapping[int, np.ndarray]


@dataclass(frozen=True, eq=False)
class Check:
    """What an exported file takes (None: any number), and what it must answer.

    `batches` have several numbers of images. Which of the outputs the scores are is `scores_place`; None where none is
    known to be. `verdict_places` has those of the gauge, by name.
    """

    input_shape: Shape
    batches: tuple[Expected, ...]
    scores_place: int | None
    verdict_places: Mapping[str, int]

    @property
    def verdict(self) -> tuple[str, ...]:
        """The names of the outputs that tell how far an image is from the training images."""
        return tuple(name for name in NAMES if name in self.verdict_places)

    def is_scores(self, place: int) -> bool:
        """Whether an output is of scores, which are compared as probabilities."""
        return place in (self.scores_place, self.verdict_places.get("source"))

    def may_stray(self, place: int) -> bool:
        """Whether a few of an output's pixels may differ."""
        return place == self.scores_place or place in self.verdict_places.values()


def make_check(backend: Backend, adapted: Any, written: Any, images: np.ndarray) -> Check:
    """Run what was written, the adapted model as it is or with its verdict, and return what its file must answer."""
    adaptation = read_adaptation(adapted)
    output = backend.run(adapted, images)
    scores = _scores_path(backend, output, adaptation.output, len(images))
    names = [name for name, _ in backend.file_outputs(output if written is adapted else backend.run(written, images))]
    gauge = {} if written is adapted else {name: names.index(name) for name in NAMES if name in names}
    if gauge and scores is not None:
        paths = [path for path, _ in flatten(output, backend.ops.is_array)]
        scores = output_names(paths)[paths.index(scores)]
    place = names.index(scores) if scores in names else None
    batches = []
    for batch in (images, images[:1], np.concatenate([images, images[::-1]])):
        arrays = [backend.ops.to_numpy(array) for _, array in backend.file_outputs(backend.run(written, batch))]
        ties = _near_ties(backend, adapted, batch, place, gauge) if adaptation.recipe.candidate_count > 1 else {}
        batches.append(Expected(batch, arrays, ties))
    return Check((None, *images.shape[1:]), tuple(batches), place, gauge)


def _near_ties(
    backend: Backend, adapted: Any, images: np.ndarray, scores: int | None, gauge: Mapping[str, int]
) -> dict[int, np.ndarray]:
    """Return where rounding could decide the vote on these images otherwise, or which candidate is most certain."""
    with observe(adapted) as seen:
        backend.run(adapted, images)
    ties = {} if scores is None or seen.near_ties.all() else {scores: seen.near_ties}
    if "prior" in gauge:
        first, second = np.sort(seen.entropies, axis=1)[:, :2].swapaxes(0, 1)
        ties[gauge["prior"]] = second - first < NEAR
    return ties


def _scores_path(backend: Backend, output: Any, selector: Selector, count: int) -> str | None:
    """Return the path of the scores in an output; None where a recipe of one candidate leaves it open."""
    ops = backend.ops

    def eligible(array: Any) -> bool:
        return len(array.shape) > 1 and ops.is_float(array) and array.shape[0] == count

    try:
        return flatten(output, ops.is_array)[find_scores(output, selector, ops.is_array, eligible)][0]
    except OutputError:
        return None


def verify(path: Path, format: str, check: Check, description: Description, class_axis: int) -> float:
    """Return the largest difference from the adapted model's answers; raise where it is too large."""
    file = open_exported(path, format)
    largest = 0.0
    for batch in check.batches:
        images, expected = batch.images, batch.outputs
        try:
            named = file.run_named(images)
        except Exception as error:
            raise ExportError(
                f"{file.runtime} cannot run the exported {TITLES[format]} on {len(images)} images: "
                f"{first_line(error)} Remedy: another format."
            ) from error
        answered = list(named.values())
        if missing := [name for name in check.verdict if name not in named]:
            raise ExportError(
                f"The exported {TITLES[format]} has no outputs called {', '.join(missing)}; it has {', '.join(named)}. "
                "Remedy: export without verdict, or another format."
            )
        if [array.shape for array in answered] != [array.shape for array in expected]:
            shapes = " and ".join(", ".join(str(a.shape) for a in arrays) for arrays in (expected, answered))
            raise ExportError(
                f"On {len(images)} images the adapted model and the exported {TITLES[format]} put out the shapes "
                f"{shapes}. The model's graph depends on its example. Remedy: another format, or "
                "an example of as many images as you will run."
            )
        for place, (wanted, given) in enumerate(zip(expected, answered, strict=True)):
            gaps = _differences(wanted, given, description.scores if check.is_scores(place) else None, class_axis)
            ties = batch.ties.get(place)
            if ties is not None and ties.shape == gaps.shape:
                gaps = np.where(ties, 0.0, gaps)
            largest = max(largest, float(gaps.max(initial=0.0)))
            allowed = _STRAY_PIXELS if check.may_stray(place) and gaps.ndim > 1 else 0.0
            if not np.mean(~(gaps <= TOLERANCE)) <= allowed:
                raise ExportError(
                    f"The exported {TITLES[format]} answers otherwise than the adapted model: on {len(images)} images "
                    f"by up to {float(gaps.max()):.1e}, more than {TOLERANCE:.0e}. Nothing was written. Remedy: "
                    "another format, or another example, if two candidates of this one are equally certain."
                )
    return largest


def _differences(expected: np.ndarray, answered: np.ndarray, scores: str | None, class_axis: int) -> np.ndarray:
    """Return how far apart answers are: of scores the largest difference of a probability at every place.

    Of other outputs the difference of every number, relative to the largest of them or to 1, whichever is larger.
    """
    wanted, given = (array.astype(np.float64) for array in (expected, answered))
    if scores is None:
        return np.asarray(np.abs(wanted - given) / max(1.0, float(np.abs(wanted).max(initial=0.0))))
    gaps = np.abs(probabilities(wanted, scores, class_axis) - probabilities(given, scores, class_axis))
    return np.asarray(gaps.max(axis=class_axis) if gaps.ndim > 1 else gaps)
