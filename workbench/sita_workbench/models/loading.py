"""Load models by names such as timm:resnet50 or file.py:function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sita_adapters.errors import InputError, suggestion
from sita_adapters.export import SUFFIXES
from sita_adapters.inputs import resolve_inputs
from sita_adapters.recipe import Task

from ..exported.runtimes import open_onnx
from .digits import SPECS, load_digits_model
from .file import load_from_file
from .libraries import LIBRARIES, OWN, load_own
from .loaded import LoadedModel


def load_model(
    spec: str,
    weights: str | None = None,
    *,
    inputs: str | None = None,
    size: int | None = None,
    task: Task | None = None,
    exported: bool = False,
    trust: bool = False,
    providers: Sequence[str] | None = None,
) -> LoadedModel:
    """Return the model that a spec names, with its weights, ready to run. Every command gets its model here.

    - `spec`: `timm:NAME`, `torchvision:NAME`, `torchvision:segmentation.NAME`, `keras:NAME` (keras.applications),
      `cifar10-resnet20` (32, 44, 56, 110), `camvid-roadnet`, `digits`
      (`digits:keras`), or `file.py:function`, which is called without arguments and returns the model, or
      (model, dict) with any of inputs, size, crop, task, scores.
      With `exported`, also an ONNX file from `sita export`, which is already adapted (`LoadedModel.file`).
    - `weights`: a file, "pretrained" (the library downloads them) or "random" (always the same). Required, except for
      functions, which return a model with weights, and for `digits`, which includes them.
    - `inputs`: a name of `sita_adapters.inputs.ENCODINGS`, instead of the model's default encoding.
    - `size`, `task`: the height and width, and the task, instead of the model's defaults.
    - `trust`: also open files that can execute code when they are loaded.
    - `providers`: onnxruntime's execution providers for an .onnx file; None for the CPU.
    """
    encoding = resolve_inputs(inputs)
    if size is not None and size < 1:
        raise InputError(f"size: expected a whole number of pixels, 1 or more; received {size}.")
    library, _, name = spec.partition(":")
    if Path(spec).suffix.lower() in SUFFIXES and Path(spec).suffix:
        if not exported:
            raise InputError(
                f"model: expected a model that can be adapted; {spec} is an exported file, which is already adapted. "
                "Try: sita predict, score or serve, or the model that it was exported from."
            )
        loaded = _load_exported(spec, weights, size, providers)
    elif providers:
        raise InputError(f"--providers: expected an .onnx file; received {spec}.")
    elif spec in SPECS:
        loaded = load_digits_model(spec, weights)
    elif has_weights(spec):
        loaded = load_from_file(spec, weights, trust=trust)
    elif spec not in OWN and (library == spec or library not in LIBRARIES):
        close = suggestion(spec, OWN) or f" Did you mean 'timm:{spec}', 'torchvision:{spec}' or 'keras:{spec}'?"
        raise InputError(
            "model: expected timm:NAME, torchvision:NAME, torchvision:segmentation.NAME, keras:NAME, file.py:function "
            f"or one of digits, {', '.join(OWN)}; received {spec!r}.{'' if ':' in spec else close}"
        )
    elif weights is None:
        raise InputError(
            f"weights: {spec} comes without weights. Expected a file, 'pretrained' (the library downloads them) or "
            "'random' (to try things out). Try: --weights FILE."
        )
    elif spec in OWN:
        loaded = load_own(spec, weights, trust)
    else:
        loaded = LIBRARIES[library](spec, name, weights, size, trust)
    return replace(loaded, inputs=encoding or loaded.inputs, size=size or loaded.size, task=task or loaded.task)


def has_weights(spec: str) -> bool:
    """Whether the spec is a model that comes with its weights: a function in a file, or the digits network."""
    return spec in SPECS or spec.endswith(".py") or spec.rpartition(":")[0].endswith(".py")


def _load_exported(spec: str, weights: str | None, size: int | None, providers: Sequence[str] | None) -> LoadedModel:
    """Open an exported file. Its metadata says how images are encoded and what the scores are."""
    if not Path(spec).is_file() or not spec.lower().endswith(".onnx"):
        raise InputError(f"Expected an existing .onnx file; received {spec!r}. Try: sita export MODEL --out model.onnx")
    if weights is not None:
        raise InputError(f"--weights: {spec} contains its weights. Try: omit the option.")
    file = open_onnx(Path(spec), providers)
    metadata = file.metadata
    if metadata is None or len(metadata.input_shape) != 4:
        raise InputError(
            f"Expected an .onnx file for RGB images from sita export; {spec} has no such metadata (pixel encoding and "
            f"kind of scores). Try: sita export MODEL --out {spec}."
        )
    height, width = metadata.input_shape[2:] if file.channels_first else metadata.input_shape[1:3]
    own_size = None if height is None or width is None else (height, width)
    if size is not None and own_size not in (None, (size, size)):
        raise InputError(f"--size: {spec} was made for images of {width} × {height}; received {size}.")
    origin = f"in the file, {metadata.model}, {metadata.weights}" if metadata.model else "in the file"
    task, scores, names = metadata.task, metadata.scores, metadata.names
    return LoadedModel(spec, None, metadata.inputs, own_size, metadata.crop, task, scores, origin, names, file)
