"""Exported files as models: what `sita export` wrote, opened by the runtime of its format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sita_adapters.errors import InputError
from sita_adapters.export import SUFFIXES

from ..exported.runtimes import ExportedFile, format_of, open_exported
from .loaded import LoadedModel
from .weights import refuse_untrusted

_EXECUTES = {
    "pt2": "torch.export falls back to unrestricted unpickling, which can execute code when the file is loaded",
    "litert": "it may hold operators of TensorFlow, which can read and write files",
    "saved_model": "its graph may hold operators of TensorFlow that read and write files",
}
"""Why a format is opened only if it is trusted. ONNX is not listed: its operators only compute."""


def is_exported(spec: str) -> bool:
    """Whether a spec is an exported file; raise if it is named like one but does not exist."""
    path = Path(spec)
    if path.suffix.lower() in SUFFIXES and path.suffix and not path.exists():
        raise InputError(f"Expected an exported file; {spec!r} does not exist. Try: sita export MODEL --out {spec}.")
    return format_of(path) is not None


def load_exported(
    spec: str, *, weights: str | None, size: int | None, trust: bool, providers: Sequence[str] | None
) -> LoadedModel:
    """Open an exported file. Its metadata says how images are encoded and what the scores are."""
    path = Path(spec)
    format = format_of(path) or "onnx"
    if weights is not None or (providers and format != "onnx"):
        option, reason = ("--weights", "contains its weights") if weights else ("--providers", "is not an .onnx file")
        raise InputError(f"{option}: {spec} {reason}. Try: leave the option out.")
    if format in _EXECUTES and not trust:
        raise refuse_untrusted(spec, _EXECUTES[format], "sita export MODEL --out model.onnx")
    file = open_exported(path, format, providers)
    metadata = file.metadata
    if metadata is None or len(metadata.input_shape) != 4:
        raise InputError(
            f"Expected a file that sita export wrote, for RGB images; {spec} has no such metadata, which says how "
            f"pixels are encoded and what the scores are. Try: sita export MODEL --out {spec}."
        )
    height, width = metadata.input_shape[2:] if channels_first(file) else metadata.input_shape[1:3]
    own_size = None if height is None or width is None else height if height == width else (height, width)
    if size is not None and own_size not in (None, size):
        raise InputError(
            f"--size: {spec} was made for images of {own_size}; received {size}. Try: leave it out, or export the "
            f"model with --size {size}."
        )
    return LoadedModel(
        spec,
        None,
        metadata.inputs,
        own_size or size,
        metadata.crop,
        metadata.task,
        metadata.scores,
        weights=f"in the file, {metadata.model}, {metadata.weights}" if metadata.model else "in the file",
        names=metadata.names,
        file=file,
    )


def channels_first(file: ExportedFile) -> bool:
    """Whether a file takes images with their channels first."""
    shape = file.input_shape or ()
    return len(shape) == 4 and shape[1] == 3 and shape[-1] != 3
