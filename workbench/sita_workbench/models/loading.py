"""Models by a short text such as timm:resnet50 or file.py:function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sita_adapters.errors import InputError, suggestion
from sita_adapters.export import SUFFIXES
from sita_adapters.inputs import resolve_inputs

from ..exported.runtimes import format_of, open_exported
from .digits import SPECS, load_digits_model
from .file import load_from_file
from .libraries import LIBRARIES, OWN, load_own
from .loaded import LoadedModel
from .weights import refuse_untrusted

_EXECUTES = {
    "pt2": "torch.export falls back to unrestricted unpickling, which can execute code when the file is loaded",
    "litert": "it may hold operators of TensorFlow, which can read and write files",
    "saved_model": "its graph may hold operators of TensorFlow that read and write files",
}
"""Why an exported format is opened only if it is trusted. ONNX is not listed: its operators only compute."""


def load_model(
    spec: str,
    weights: str | None = None,
    *,
    inputs: str | None = None,
    size: int | None = None,
    exported: bool = False,
    trust: bool = False,
    providers: Sequence[str] | None = None,
) -> LoadedModel:
    """Return the model that a spec names, with its weights, ready to run. Every command gets its model here.

    - `spec`: `timm:NAME`, `torchvision:NAME`, `torchvision:segmentation.NAME`, `keras:NAME` (keras.applications),
      `cifar10-resnet20` (32, 44, 56, 110), `cifar10-densenet`, `cifar10-mobilenet`, `camvid-roadnet`, `digits`
      (`digits:keras`), or `file.py:function`, which is called without arguments and returns the model, or
      (model, dict) with any of inputs, size, crop, task, scores.
      With `exported`, also a file that `sita export` wrote, which is adapted already (`LoadedModel.file`).
    - `weights`: a file, "pretrained" (the library downloads them) or "random" (always the same). Required, except for a
      function, which returns a model with weights, and for `digits`, which has its own.
    - `inputs`: a name of `sita_adapters.inputs.ENCODINGS`, instead of the model's usual encoding.
    - `size`: height and width, instead of the model's usual size.
    - `trust`: open files that can execute code when they are loaded, too.
    - `providers`: what onnxruntime runs an .onnx file on; None: the CPU.
    """
    encoding = resolve_inputs(inputs)
    if size is not None and size < 1:
        raise InputError(f"size: expected a whole number of pixels, 1 or more; received {size}.")
    library, _, name = spec.partition(":")
    if not has_weights(spec) and spec not in OWN and is_exported(spec):
        if not exported:
            raise InputError(
                f"model: expected a model that can be adapted; {spec} is an exported file, which is adapted already. "
                "Try: give it to sita predict, score or serve, or give the model that it was made from."
            )
        loaded = _load_exported(spec, weights, size, trust, providers)
    elif providers:
        raise InputError(f"--providers: expected an .onnx file, which onnxruntime runs; received {spec}.")
    elif spec in SPECS:
        loaded = load_digits_model(spec, weights)
    elif has_weights(spec):
        loaded = load_from_file(spec, weights, trust=trust)
    elif spec not in OWN and (library == spec or library not in LIBRARIES):
        raise InputError(
            "model: expected timm:NAME, torchvision:NAME, torchvision:segmentation.NAME, keras:NAME, file.py:function "
            f"or one of digits, {', '.join(OWN)}; received {spec!r}.{_advise(spec)}"
        )
    elif weights is None:
        raise InputError(
            f"weights: {spec} comes without. Expected a file, 'pretrained' (the library downloads them) or 'random' "
            "(to try things out). Try: --weights FILE."
        )
    elif spec in OWN:
        loaded = load_own(spec, weights, trust)
    else:
        loaded = LIBRARIES[library](spec, name, weights, size, trust)
    return replace(loaded, inputs=encoding or loaded.inputs, size=size or loaded.size)


def has_weights(spec: str) -> bool:
    """Whether the spec is a model that comes with its weights: a function in a file, or the digits network."""
    return spec in SPECS or spec.endswith(".py") or spec.rpartition(":")[0].endswith(".py")


def _advise(spec: str) -> str:
    _, colon, name = spec.partition(":")
    if colon:
        return suggestion(spec, (f"{known}:{name}" for known in LIBRARIES))
    return suggestion(spec, OWN) or f" Did you mean 'timm:{spec}', 'torchvision:{spec}' or 'keras:{spec}'?"


def is_exported(spec: str) -> bool:
    """Whether a spec is an exported file; raise if it is named like one but does not exist."""
    path = Path(spec)
    if path.suffix.lower() in SUFFIXES and path.suffix and not path.exists():
        raise InputError(f"Expected an exported file; {spec!r} does not exist. Try: sita export MODEL --out {spec}.")
    return format_of(path) is not None


def _load_exported(
    spec: str, weights: str | None, size: int | None, trust: bool, providers: Sequence[str] | None
) -> LoadedModel:
    """Open an exported file. Its metadata says how images are encoded and what the scores are."""
    format = format_of(Path(spec)) or "onnx"
    if weights is not None or (providers and format != "onnx"):
        option, reason = ("--weights", "contains its weights") if weights else ("--providers", "is not an .onnx file")
        raise InputError(f"{option}: {spec} {reason}. Try: leave the option out.")
    if format in _EXECUTES and not trust:
        raise refuse_untrusted(spec, _EXECUTES[format], "sita export MODEL --out model.onnx")
    file = open_exported(Path(spec), format, providers)
    metadata = file.metadata
    if metadata is None or len(metadata.input_shape) != 4:
        raise InputError(
            f"Expected a file that sita export wrote, for RGB images; {spec} has no such metadata, which says how "
            f"pixels are encoded and what the scores are. Try: sita export MODEL --out {spec}."
        )
    height, width = metadata.input_shape[2:] if file.channels_first else metadata.input_shape[1:3]
    own_size = None if height is None or width is None else (height, width)
    if size is not None and own_size not in (None, (size, size)):
        raise InputError(f"--size: {spec} was made for images of {width} × {height}; received {size}.")
    origin = f"in the file, {metadata.model}, {metadata.weights}" if metadata.model else "in the file"
    task, scores, names = metadata.task, metadata.scores, metadata.names
    return LoadedModel(spec, None, metadata.inputs, own_size, metadata.crop, task, scores, origin, names, file)
