"""Models by a short text such as timm:resnet50 or file.py:function."""

from __future__ import annotations

from dataclasses import replace

from sita_adapters.errors import InputError, suggestion
from sita_adapters.inputs import read_inputs

from .file import load_from_file
from .libraries import LIBRARIES, OWN
from .loaded import LoadedModel


def load_model(
    spec: str, weights: str | None = None, *, inputs: str | None = None, size: int | None = None
) -> LoadedModel:
    """Return the model that a spec names, with its weights, ready to run.

    - `spec`: `timm:NAME`, `torchvision:NAME`, `torchvision:segmentation.NAME`, `keras:NAME` (keras.applications),
      `cifar10-resnet20` (32, 44, 56, 110), `camvid-roadnet`, or `file.py:function`, which is called without arguments
      and returns the model, or (model, dict) with any of inputs, size, crop, task, scores.
    - `weights`: a file, "pretrained" (the library downloads them) or "random" (always the same). Required, except for a
      function, which returns a model with weights.
    - `inputs`: a name of `sita_adapters.inputs.ENCODINGS`, instead of the model's usual encoding.
    - `size`: height and width, instead of the model's usual size.
    """
    encoding = read_inputs(inputs)
    if size is not None and size < 1:
        raise InputError(f"size: expected a whole number of pixels, 1 or more; received {size}.")
    library, colon, name = spec.partition(":")
    if has_weights(spec):
        loaded = load_from_file(spec, weights)
    elif colon and library in LIBRARIES:
        loaded = LIBRARIES[library](spec, name, _require_weights(spec, weights), size)
    elif spec in OWN:
        loaded = OWN[spec](spec, _require_weights(spec, weights))
    else:
        raise InputError(
            "model: expected timm:NAME, torchvision:NAME, torchvision:segmentation.NAME, keras:NAME, file.py:function "
            f"or one of {', '.join(OWN)}; received {spec!r}.{_advise(spec)}"
        )
    return replace(loaded, inputs=encoding or loaded.inputs, size=size or loaded.size)


def has_weights(spec: str) -> bool:
    """Whether the spec is a function in a file, which returns a model with weights."""
    return spec.endswith(".py") or spec.rpartition(":")[0].endswith(".py")


def _advise(spec: str) -> str:
    _, colon, name = spec.partition(":")
    if colon:
        return suggestion(spec, (f"{known}:{name}" for known in LIBRARIES))
    return suggestion(spec, OWN) or f" Did you mean 'timm:{spec}', 'torchvision:{spec}' or 'keras:{spec}'?"


def _require_weights(spec: str, weights: str | None) -> str:
    if weights is None:
        raise InputError(
            f"weights: {spec} comes without. Expected a file, 'pretrained' (the library downloads them) or 'random' "
            "(to try things out). Remedy: --weights FILE."
        )
    return weights
