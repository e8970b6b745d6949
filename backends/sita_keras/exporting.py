"""Adapted Keras models as files: ONNX, LiteRT and SavedModel, by Keras' own exporters."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import keras

from sita_adapters.errors import ExportError
from sita_adapters.export import name_outputs, require_exporter
from sita_adapters.outputs import flatten

from .inspection import arrange, random_images
from .model import AdaptedModel
from .ops import ENGINE, KERAS

_EXPORTERS: dict[str, dict[str, tuple[str, ...]]] = {
    "onnx": {"tensorflow": ("onnx", "tf2onnx"), "torch": ("onnx",)},
    "litert": {"tensorflow": ()},
    "saved_model": {"tensorflow": (), "jax": ("tensorflow",)},
}
"""For each format, the backends of Keras that can write it for any number of images, and the packages they need."""

FORMATS = tuple(_EXPORTERS)


class Exportable(keras.Model):
    """An adapted model that returns its outputs by name, and the diagnostics among them if asked."""

    def __init__(self, adapted: AdaptedModel, diagnostics: bool) -> None:
        super().__init__(name=adapted.name)
        self.adapted, self.diagnostics = adapted, diagnostics

    def call(self, inputs: Any, training: bool | None = None) -> dict[str, Any]:
        """Return the answer, by name."""
        (images,) = keras.tree.flatten(inputs)
        found: dict[str, Any] = {}
        if self.diagnostics:
            answer = self.adapted.call_layer().run(images, diagnosed=True)
            assert answer.diagnostics is not None
            output, found = answer.rebuild(KERAS), answer.diagnostics.outputs(KERAS)
        else:
            output = self.adapted.call_layer()(images)
        named = name_outputs(flatten(output, KERAS.is_array), found)
        return {name: named[name] for name in sorted(named)}  # as Keras flattens a dict, but a tracer would not


def write(adapted: AdaptedModel, path: Path, format: str, example: Any, diagnostics: bool) -> tuple[int | None, ...]:
    """Write an adapted model to a file that takes any number of images."""
    able = list(_EXPORTERS[format])
    if ENGINE not in able:
        others = [other for other, engines in _EXPORTERS.items() if ENGINE in engines]
        raise ExportError(
            f"Keras on {ENGINE} cannot export to {format}; {' and '.join(able)} can. Try: KERAS_BACKEND={able[0]} "
            f"(a saved .keras file loads there), or one of {', '.join(others)}."
        )
    if format == "litert" and find_spec("keras.src.export.litert") is None:
        raise ExportError(f"Keras {keras.__version__} cannot export to LiteRT. Try: a newer Keras (3.15.1 can).")
    require_exporter(*_EXPORTERS[format][ENGINE], to=format)
    image = adapted.inputs[0]
    if example is None and None in image.shape[1:]:
        raise ExportError(
            f"example: the model takes images of any size, {tuple(image.shape)}, but a file is made for one size. "
            "Try: sita.export(adapted, path, example=images), with images of the size you will use."
        )
    images = random_images(image, example, ExportError)
    spec = keras.InputSpec(shape=(None, *images.shape[1:]), dtype=image.dtype, name=image.name)
    model = Exportable(adapted, diagnostics)
    logging.disable(logging.WARNING)  # the exporters' own messages, which some print, or warn
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            output = model(arrange(adapted, images))  # Keras exports what was called
            name = "tf_saved_model" if format == "saved_model" else format
            model.export(str(path), format=name, verbose=False, input_signature=[arrange(adapted, spec)])
    finally:
        logging.disable(logging.NOTSET)
    if format == "onnx":
        _name_onnx_outputs(path, list(output))
    return (None, *images.shape[1:])


def _name_onnx_outputs(path: Path, names: list[str]) -> None:
    """Give the outputs of an ONNX file these names: on torch, Keras' exporter leaves them numbers."""
    import onnx

    model = onnx.load(str(path))
    for output, name in zip(model.graph.output, names, strict=True):
        if output.name != name:  # by an operator that copies: what else reads the output, in a subgraph, still finds it
            model.graph.node.append(onnx.helper.make_node("Identity", [output.name], [name]))
            output.name = name
    onnx.save(model, str(path))
