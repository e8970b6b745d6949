"""What a user of an exported file needs to know about it: stored inside an ONNX file, or beside any other."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sita_adapters.errors import ExportError
from sita_adapters.inputs import Inputs
from sita_adapters.version import __version__
from sita_adapters.voting import Scores

from ..files import write_text

KEY = "sita_adapters"
"""The name of the entry in an ONNX file's metadata."""


@dataclass(frozen=True)
class ExportMetadata:
    """How to encode images for an exported model, and what it returns.

    Attributes:
        recipe: What the model was adapted with.
        scores: What its scores are, for example "logits"; None if that is not known.
        class_axis: The axis of the classes in the scores, counted from the end.
        scores_name: The name of the output that is the scores.
        input_shape: The shape of the images that it takes; None stands for any number.
        inputs: How pixels are encoded, if known.
        crop: The share of an image's shorter side that the center crop keeps.
        task: "classification" or "segmentation".
        names: The names of the classes, if known.
        model: The text that the model was loaded by.
        weights: Where its weights come from.
        diagnostics: The names of the outputs that tell how far an image is from the training images.
        rows: How many rows it runs for one image, which is what it costs.
    """

    recipe: str
    scores: Scores | None
    class_axis: int
    scores_name: str
    input_shape: tuple[int | None, ...]
    inputs: Inputs | None = None
    crop: float = 1.0
    task: str = "classification"
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
        fields: dict[str, Any] = json.loads(text)
        for name in ("version", "sha256"):
            fields.pop(name, None)
        for name in ("input_shape", "names", "diagnostics"):
            fields[name] = tuple(fields[name])
        metadata = ExportMetadata(**fields)
        return replace(metadata, inputs=None if metadata.inputs is None else Inputs(**fields["inputs"]))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ExportError(
            f"Expected metadata of this version of sita-adapters; {where} has some that cannot be read: {error}. "
            "Try: export the model again."
        ) from error


def metadata_path(path: Path) -> Path:
    """Return where the metadata of a file other than ONNX is: beside it."""
    return path.with_name(f"{path.name}.json")


def write_into_onnx(path: Path, metadata: ExportMetadata) -> None:
    """Write metadata into an ONNX file."""
    import onnx

    model = onnx.load(str(path))
    entry = model.metadata_props.add()
    entry.key, entry.value = KEY, metadata.to_json()
    onnx.save(model, str(path))


def write_beside(path: Path, metadata: ExportMetadata) -> None:
    """Write the metadata of a file of any other format, with the hash of the file that it describes."""
    fields = {**json.loads(metadata.to_json()), "sha256": _hash(path)}
    write_text(metadata_path(path), json.dumps(fields, ensure_ascii=False))


def read_beside(path: Path) -> ExportMetadata | None:
    """Return the metadata beside a file, if there is any; raise if it describes another file.

    `sita.export` may have replaced the file and left the metadata, which would decode its answers wrongly.
    """
    beside = metadata_path(path)
    if not beside.is_file():
        return None
    text = beside.read_text(encoding="utf-8")
    metadata = read_metadata(text, str(beside))
    if json.loads(text).get("sha256") != _hash(path):
        raise ExportError(
            f"Expected the file that {beside} describes; received another {path.name}. Try: export it again with sita "
            f"export, or remove {beside}."
        )
    return metadata


def _hash(path: Path) -> str:
    """Return the SHA-256 of a file, or of all files in a folder."""
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            digest.update(file.read_bytes())
    return digest.hexdigest()
