"""The metadata of an exported file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from sita_adapters.errors import ExportError
from sita_adapters.inputs import Inputs
from sita_adapters.recipe import Task
from sita_adapters.version import __version__
from sita_adapters.voting import Scores

KEY = "sita_adapters"
"""The name of the entry in an ONNX file's metadata."""


@dataclass(frozen=True)
class ExportMetadata:
    """How to encode images for an exported model, and what it returns.

    - `scores`: the kind of its scores, for example "logits"; None if that is not known.
    - `scores_name`: the name of the output with the scores.
    - `class_axis`: the axis of the classes in that output, counted from the end.
    - `input_shape`: None stands for any number.
    - `inputs`: how pixels are encoded.
    - `crop`: the share of an image's shorter side that the center crop keeps.
    - `diagnostics`: the names of the outputs for monitoring shift.
    - `rows`: the rows per image.
    """

    recipe: str
    scores: Scores | None
    class_axis: int
    scores_name: str
    input_shape: tuple[int | None, ...]
    inputs: Inputs | None = None
    crop: float = 1.0
    task: Task = "classification"
    names: tuple[str, ...] = ()
    model: str = ""
    weights: str = ""
    diagnostics: tuple[str, ...] = ()
    rows: int | None = None

    def to_json(self) -> str:
        """Return the metadata as text."""
        return json.dumps({**asdict(self), "version": __version__}, ensure_ascii=False)


def read_metadata(text: str, where: str) -> ExportMetadata:
    """Return the metadata that `to_json` wrote; `where` names the file in errors."""
    try:
        written = json.loads(text)
        fields = {name: value for name, value in written.items() if name != "version"}
        fields |= {name: tuple(written[name]) for name in ("input_shape", "names", "diagnostics")}
        fields["inputs"] = None if written["inputs"] is None else Inputs(**written["inputs"])
        return ExportMetadata(**fields)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ExportError(
            f"Expected metadata of this version of sita-adapters; the metadata in {where} cannot be read: {error}. "
            "Try: export the model again."
        ) from error


def write_into_onnx(path: Path, metadata: ExportMetadata) -> None:
    """Write metadata into an ONNX file."""
    import onnx

    model = onnx.load(str(path))
    entry = model.metadata_props.add()
    entry.key, entry.value = KEY, metadata.to_json()
    onnx.save(model, str(path))
