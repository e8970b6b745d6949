"""An exported file in place of a model: what `sita predict` asks it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sita_adapters.errors import InputError
from sita_adapters.inputs import read_inputs
from sita_adapters.recipe import Task
from sita_adapters.runtimes import SUFFIXES, ExportedFile, format_of, open_exported, run_checked

from ..models.loading import Size, Subject
from .answers import Answer, read_scores_of


def is_exported(spec: str) -> bool:
    """Whether a spec is the name of an exported file; raise where it would be, but is not there."""
    path = Path(spec)
    if path.suffix.lower() in SUFFIXES and path.suffix and not path.exists():
        raise InputError(f"Expected an exported file; {spec!r} does not exist. Remedy: sita export MODEL --out {spec}.")
    return format_of(path) is not None


@dataclass(frozen=True, eq=False)
class AskedFile:
    """An exported file, ready to be asked. The source model is not in it."""

    subject: Subject
    recipe: str
    file: ExportedFile

    def answer(self, path: Path, pixels: np.ndarray) -> Answer:
        """Return what the file says of an image in bytes (h, w, 3)."""
        first = _channels_first(self.file)
        encoded = self.subject.encode(pixels[None])
        batch = np.ascontiguousarray(np.moveaxis(encoded, -1, 1) if first else encoded)
        card = self.file.card
        outputs = run_checked(self.file, batch)
        scores = outputs[card.scores_place if card else 0]
        class_axis = card.class_axis if card else (1 if first else -1)
        raw = np.moveaxis(scores, class_axis, -1)[0].astype(np.float64)
        return Answer(path, read_scores_of(raw, card.scores if card else _guess(raw), self.subject), None, None)


def open_model(
    spec: str, *, weights: str | None, inputs: str | None, size: int | None, task: Task | None, crop: float | None
) -> AskedFile:
    """Return an exported file, and how images reach it: as its card says, or as the caller does."""
    if weights is not None:
        raise InputError(f"--weights: {spec} has its weights in it. Remedy: leave them out.")
    path = Path(spec)
    file = open_exported(path, format_of(path) or "onnx")
    card = file.card
    known: Size = _size(file)
    if size is not None and known not in (None, size):
        raise InputError(
            f"--size: {spec} was made for images of {known}; received {size}. Remedy: leave it out, or export the "
            f"model with --size {size}."
        )
    subject = Subject(
        spec,
        None,
        read_inputs(inputs) or (card.inputs if card else None),
        known or size,
        crop or (card.crop if card else 1.0),
        task or ("segmentation" if card and card.task == "segmentation" else "classification"),
        card.scores if card else None,
        weights=f"in the file, {card.model}, {card.weights}" if card and card.model else "in the file",
        names=card.names if card else (),
    )
    if subject.inputs is None:
        raise InputError(
            f"{spec} does not say how its pixels are encoded. Remedy: --inputs NAME, or export it with sita export."
        )
    return AskedFile(subject, card.recipe if card else "as exported", file)


def _channels_first(file: ExportedFile) -> bool:
    shape = file.input_shape
    return shape is not None and len(shape) == 4 and shape[1] == 3 and shape[-1] != 3


def _size(file: ExportedFile) -> Size:
    """Return the height and width that a file takes; None where it does not say."""
    shape = file.input_shape
    if shape is None or len(shape) != 4:
        return None
    height, width = shape[2:] if _channels_first(file) else shape[1:3]
    if height is None or width is None:
        return None
    return height if height == width else (height, width)


def _guess(raw: np.ndarray) -> str:
    """Return what the scores of a file without a card look like."""
    looks_sure = bool((raw >= 0).all()) and bool(np.allclose(raw.sum(axis=-1), 1.0, atol=1e-3))
    return "probabilities" if looks_sure else "logits"
