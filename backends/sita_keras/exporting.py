"""Adapted Keras models as files: ONNX, LiteRT and SavedModel, by Keras' own exporters."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import tree

from sita_adapters.errors import ExportError
from sita_adapters.export import require_exporter
from sita_adapters.gauge import name_outputs
from sita_adapters.outputs import flatten

from .model import AdaptedModel
from .ops import KERAS

FORMATS = ("onnx", "litert", "saved_model")

_ABLE = {"onnx": ("tensorflow", "torch"), "litert": ("tensorflow",), "saved_model": ("tensorflow", "jax")}
"""The backends of Keras that can write a format, for any number of images."""

_PACKAGES = {
    ("onnx", "tensorflow"): ("onnx", "tf2onnx"),
    ("onnx", "torch"): ("onnx",),
    ("saved_model", "jax"): ("tensorflow",),
}


class WithVerdict(keras.Model):
    """An adapted model that puts out the gauge of shift beside its own outputs, all of them by name."""

    def __init__(self, adapted: AdaptedModel) -> None:
        super().__init__(name=adapted.name)
        self.adapted = adapted
        self._inputs_struct = adapted._inputs_struct  # where `write` and `run` look how images are handed over
        self.run_eagerly = adapted.run_eagerly

    def call(self, inputs: Any, training: bool | None = None) -> dict[str, Any]:
        """Return the adapted model's answer, and the gauge."""
        (images,) = tree.flatten(inputs)
        output, gauge = self.adapted.adapted_call.call_with_gauge(images)
        named = name_outputs(flatten(output, KERAS.is_array), gauge)
        return {name: named[name] for name in sorted(named)}  # as Keras flattens a dict, where a tracer would not


def write(adapted: keras.Model, path: Path, format: str, images: np.ndarray) -> None:
    """Write an adapted model, as it is or with its verdict, to a file that takes any number of images."""
    engine = keras.backend.backend()
    if engine not in _ABLE[format]:
        able = {kind: ", ".join(engines) for kind, engines in _ABLE.items() if engine in engines}
        raise ExportError(
            f"Keras on {engine} cannot export to {format}; {' and '.join(_ABLE[format])} can. Try: "
            f"KERAS_BACKEND={_ABLE[format][0]} (a saved .keras file loads there), or one of {', '.join(able)}."
        )
    if format == "litert" and find_spec("keras.src.export.litert") is None:
        raise ExportError(f"Keras {keras.__version__} cannot export to LiteRT. Try: a newer Keras (3.15.1 can).")
    require_exporter(*_PACKAGES.get((format, engine), ()), to=format)
    signature = [tree.map_structure(lambda _: _spec(adapted, images), adapted._inputs_struct)]
    with _quiet():
        output = adapted(arrange_inputs(adapted, images))  # Keras exports no model that was never called
        kind = {"saved_model": "tf_saved_model"}.get(format, format)
        adapted.export(str(path), format=kind, verbose=False, input_signature=signature)
    if format == "onnx" and isinstance(adapted, WithVerdict):
        _name_onnx_outputs(path, list(output))


def _name_onnx_outputs(path: Path, names: list[str]) -> None:
    """Give the outputs of an ONNX file these names: on torch, Keras' exporter leaves them numbers.

    Each by an operator that copies, so that whatever else reads the output, a subgraph for one, still finds it.
    """
    import onnx

    model = onnx.load(str(path))
    for output, name in zip(model.graph.output, names, strict=True):
        if output.name != name:
            model.graph.node.append(onnx.helper.make_node("Identity", [output.name], [name]))
            output.name = name
    onnx.save(model, str(path))


def file_outputs(output: Any) -> list[tuple[str, Any]]:
    """Return the arrays of an output in the order that Keras flattens it in, which files keep."""
    found = []
    for path, array in tree.flatten_with_path(output):
        name = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
        found.append((name or "the output", array))
    return found


def read_example(adapted: keras.Model, example: Any) -> np.ndarray:
    """Return at least two images: the example, or noise where the model says how large they are."""
    (image,) = tree.flatten(adapted._inputs_struct)
    sizes = tuple(image.shape[1:])
    if example is None:
        if None in sizes:
            raise ExportError(
                f"example: the model takes images of any size, {tuple(image.shape)}, and a file is made for one. "
                "Try: sita.export(adapted, path, example=images) of the size that you will run."
            )
        random = np.random.default_rng(0)
        noise = random.normal(size=(2, *sizes)) if "float" in image.dtype else random.integers(0, 256, (2, *sizes))
        return noise.astype(image.dtype)
    images = np.asarray(keras.ops.convert_to_numpy(example)).astype(image.dtype)
    fits = images.ndim == len(sizes) + 1 and all(
        size in (None, given) for size, given in zip(sizes, images.shape[1:], strict=True)
    )
    if not fits or len(images) == 0:
        raise ExportError(
            f"example: expected a batch of images as the adapted model takes them, {tuple(image.shape)}; received "
            f"shape {images.shape}."
        )
    return images if len(images) > 1 else np.concatenate([images, images[..., ::-1, :]])


def _spec(adapted: keras.Model, images: np.ndarray) -> Any:
    (image,) = tree.flatten(adapted._inputs_struct)
    return keras.InputSpec(shape=(None, *images.shape[1:]), dtype=image.dtype, name=image.name)


def arrange_inputs(adapted: keras.Model, images: np.ndarray) -> Any:
    """Return the images as the model takes them: by name, or in a list, where it was made so."""
    return tree.pack_sequence_as(adapted._inputs_struct, [images])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporters' own notes off the screen."""
    loggers = [logging.getLogger(name) for name in ("tf2onnx", "tensorflow", "absl")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on exporters that will go one day
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
