"""Exported files as models: what `sita export` wrote, opened by the runtime of its format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sita_adapters.errors import InputError
from sita_adapters.export import SUFFIXES

from ..exported.runtimes import ExportedFile, format_of, open_exported
from .loaded import LoadedModel, Size
from .trusting import refuse_untrusted

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
    """Open an exported file. Its metadata says how images are encoded, unless the caller's options do."""
    if weights is not None:
        raise InputError(f"--weights: {spec} contains its weights. Try: leave the option out.")
    path = Path(spec)
    format = format_of(path) or "onnx"
    if format in _EXECUTES and not trust:
        raise refuse_untrusted(spec, _EXECUTES[format], "sita export MODEL --out model.onnx")
    if providers and format != "onnx":
        raise InputError(
            f"--providers: expected an .onnx file, which onnxruntime runs; received {spec}. Try: leave it out."
        )
    file = open_exported(path, format, providers)
    metadata, own_size = file.metadata, _size(file)
    if size is not None and own_size not in (None, size):
        raise InputError(
            f"--size: {spec} was made for images of {own_size}; received {size}. Try: leave it out, or export the "
            f"model with --size {size}."
        )
    return LoadedModel(
        spec,
        None,
        metadata.inputs if metadata else None,
        own_size or size,
        metadata.crop if metadata else 1.0,
        "segmentation" if metadata and metadata.task == "segmentation" else "classification",
        metadata.scores if metadata else None,
        weights=f"in the file, {metadata.model}, {metadata.weights}" if metadata and metadata.model else "in the file",
        names=metadata.names if metadata else (),
        file=file,
    )


def channels_first(file: ExportedFile) -> bool:
    """Whether a file takes images with their channels first; a .pt2 file does not say, and does."""
    shape = file.input_shape
    if shape is None and format_of(file.path) == "pt2":
        return True
    return shape is not None and len(shape) == 4 and shape[1] == 3 and shape[-1] != 3


def _size(file: ExportedFile) -> Size:
    """Return the height and width that a file takes; None if it does not say."""
    shape = file.input_shape
    if shape is None or len(shape) != 4:
        return None
    height, width = shape[2:] if channels_first(file) else shape[1:3]
    if height is None or width is None:
        return None
    return height if height == width else (height, width)
