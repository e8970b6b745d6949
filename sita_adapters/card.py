"""What a user of an exported file needs to know of it, kept with it: in an ONNX file, or beside any other."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .errors import ExportError
from .inputs import Inputs
from .version import __version__

KEY = "sita_adapters"
"""The name of the entry in an ONNX file's metadata."""


@dataclass(frozen=True)
class Card:
    """How images reach an exported model, and what it answers.

    - `recipe`, `scores`, `class_axis`: what the adapted model was made with, what its scores are and where the classes.
    - `scores_place`: which of its outputs the scores are.
    - `input_shape`: None where any number goes.
    - `verdict`: the names of its outputs that tell how far an image is from the training images; empty without any.
    - `rows`: how many rows it runs for an image, which is what it costs.
    - `inputs`, `crop`, `task`, `names`, `model`, `weights`: as `sita predict` needs them, where they are known.
    """

    recipe: str
    scores: str
    class_axis: int
    scores_place: int
    input_shape: tuple[int | None, ...]
    inputs: Inputs | None = None
    crop: float = 1.0
    task: str = "classification"
    names: tuple[str, ...] = ()
    model: str = ""
    weights: str = ""
    verdict: tuple[str, ...] = ()
    rows: int | None = None

    def to_json(self) -> str:
        """Return it as text."""
        return json.dumps({**asdict(self), "version": __version__}, ensure_ascii=False)


def read_card(text: str, where: str) -> Card:
    """Return the card that `to_json` wrote."""
    try:
        fields: dict[str, Any] = json.loads(text)
        fields.pop("version", None)
        fields.setdefault("verdict", ())  # files of earlier versions have none
        for name in ("input_shape", "names", "verdict"):
            fields[name] = tuple(fields[name])
        return Card(**{**fields, "inputs": fields["inputs"] and Inputs(**fields["inputs"])})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ExportError(
            f"{where} has a description of sita-adapters that cannot be read: {error}. Remedy: export the model again."
        ) from error


def card_path(path: Path) -> Path:
    """Return where the card of a file other than ONNX lies: beside it."""
    return path.with_name(f"{path.name}.json")
