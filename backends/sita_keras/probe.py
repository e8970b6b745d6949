"""The probe of a Keras model: plain runs of its clone on random images, when it is adapted."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import keras
import numpy as np
from keras import ops, tree
from keras.src.models import Functional

from sita_adapters import engine
from sita_adapters.errors import InputError, ModelError, OutputError, SitaError, SitaWarning
from sita_adapters.outputs import OutputLayout
from sita_adapters.probe import (
    InputRecorder,
    change_statistics,
    check_called,
    not_batchnorm_error,
    perturb,
    probe_model,
)

from .batchnorm import AdaptedBatchNorm
from .call import AdaptedCall
from .clone import SharedVariable
from .inspection import find_layers, random_images, walk
from .ops import ENGINE, KERAS

_PRECISIONS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


class _Reads(keras.StatelessScope):
    """Records which variables are read inside: Keras asks the scope for every value."""

    def __init__(self) -> None:
        super().__init__()
        self.variables: list[Any] = []

    def get_current_value(self, variable: Any) -> Any:
        """Return the value that was assigned inside, if any."""
        self.variables.append(variable)
        return super().get_current_value(variable)


def probe(layer: AdaptedCall, image: Any, example: Any) -> OutputLayout:
    """Return what is established about a clone, on random images like the example or of the model's input shape."""
    _refuse_training(layer.hidden.source)
    images, model_name = random_images(image, example, InputError), layer.adaptation.model_name
    recorder, reads, inputs = InputRecorder(KERAS), _Reads(), dict[str, Any]()
    norms = {each.sita_name: each for _, each in walk(layer.hidden.clone) if isinstance(each, AdaptedBatchNorm)}

    def record(name: str, x: Any) -> None:
        if not KERAS.is_traced(x):  # if it is, the layer refuses
            recorder.record(name, ops.convert_to_numpy(x) if ENGINE == "jax" else x)  # JAX compiles every operation
            inputs.setdefault(name, None if norms[name].is_known() else x[:1])

    def run(which: Sequence[int], *, perturbed: bool = False, fresh: bool = False) -> Any:
        precision = _PRECISIONS.get(keras.backend.standardize_dtype(image.dtype), 0.0)
        values = perturb(images[list(which)], precision) if perturbed else images[list(which)]
        rows = ops.convert_to_tensor(values, dtype=image.dtype)
        context = engine.ForwardContext(layer.adaptation, engine.PLAIN, len(which), KERAS, record=record)
        cloned = layer.hidden.make_clone() if fresh else layer.hidden.clone
        try:
            with nullcontext() if inputs else reads:  # until an adapted layer has run
                output = engine.run_rows([rows], lambda some: layer.run_clone(some, cloned), context)
        except Exception as error:
            unbuilt = [path for path, inner in walk(layer.hidden.source) if not getattr(inner, "built", True)]
            if isinstance(error, SitaError) or not unbuilt:
                raise
            raise ModelError(
                f"{model_name} has unbuilt layers ({', '.join(unbuilt[:3])}), and fails: {error} "
                "Try: call the model once on an image batch, then adapt it."
            ) from error
        for path, part in tree.flatten_with_path(output):
            if not KERAS.is_array(part):
                where = f" at {'.'.join(map(str, path))}" if path else ""
                raise OutputError(
                    f"The model returns {part!r}{where}, which no Keras graph can return. Expected tensors, or "
                    "tuples, lists and dicts of them. Try: adapt a model around it that returns these."
                )
        return output

    layout = probe_model(run, recorder, layer.adaptation, model_name, image)
    if layer.adaptation.plan_for(layer.adaptation.kinds[0])[0].blends:
        _check_bypass(reads.variables, layer)
        _check_compiled(inputs, layer)
        check_called(inputs, layer.adaptation)
    _check_layers(norms, inputs)
    if not layer.hidden.opaque:
        return layout
    note = f"{', '.join(layer.hidden.opaque)} run another framework's layers: BatchNorm layers in them are not adapted"
    warnings.warn(f"{note}.", SitaWarning, stacklevel=4)
    return replace(layout, notes=(note,))


def _refuse_training(source: keras.Model) -> None:
    """Raise if a graph calls a layer with training=True: `predict` would ignore it, and a call would not."""
    graphs = [inner for _, inner in walk(source) if isinstance(inner, Functional)]
    nodes = [node for graph in graphs for level in graph._nodes_by_depth.values() for node in level]
    if nodes := [node for node in nodes if node.arguments.kwargs.get("training") is True]:
        raise ModelError(
            f"The layer {nodes[0].operation.name!r} is called with training=True, which model.predict ignores and "
            "model(images) does not. Expected layers that run in evaluation mode. Try: call it without training=."
        )


def _check_bypass(read: list[Any], layer: AdaptedCall) -> None:
    """Raise if statistics were read that are not the clone's: a BatchNorm layer ran that is not adapted."""
    found = find_layers(layer.hidden.source)
    skipped = {id(v) for info in layer.adaptation.layers if not info.adapted for v in found[info.name].variables}
    foreign = [v.path.split("/") for v in read if not isinstance(v, SharedVariable) and id(v) not in skipped]
    norms = [path for path in foreign if path[-1] in ("moving_mean", "moving_variance")]
    if names := dict.fromkeys("/".join(path[-2:-1]) for path in norms):
        raise ModelError(
            f"The clone of {layer.adaptation.model_name} runs {', '.join(names)} of the source model: "
            "from a closure, a class, a global or an object that is not a layer. Expected BatchNorm layers that are "
            "attributes of the layers that call them, alone or in lists and dicts. Try: make them such attributes."
        )


def _check_compiled(called: dict[str, Any], layer: AdaptedCall) -> None:
    """Raise if an adapted layer that was not called may be inside a function that is compiled already."""
    missed = [info.name for info in layer.adaptation.layers if info.adapted and info.name not in called]
    attributes = [item for _, inner in walk(layer.hidden.source) for item in vars(inner).items()]
    marks = ("get_concrete_function", "clear_cache")  # of a tf.function, and of what jax.jit returns
    compiled = {name for name, value in attributes if any(hasattr(value, mark) for mark in marks)}
    if missed and compiled:
        raise ModelError(
            f"{layer.adaptation.model_name} does not call {', '.join(missed[:3])}, unless it does so inside "
            f"{', '.join(sorted(compiled))}: functions already compiled for the source model. Expected "
            "layers that the model calls itself. Try: leave compilation to Keras, which compiles the whole model."
        )


def _check_layers(norms: dict[str, Any], inputs: dict[str, Any]) -> None:
    """Raise if a layer that ran is not a BatchNorm layer, by the property that the method rests on."""
    if wrong := [name for name, x in inputs.items() if x is not None and not _is_normalizing(norms[name], x)]:
        raise not_batchnorm_error(wrong, type(norms[wrong[0]]).__bases__[-1].__name__, len(norms))


def _is_normalizing(norm: Any, x: Any) -> bool:
    """Whether changing the statistics of a layer is the same as changing its input (`change_statistics`)."""
    x = x if KERAS.is_float(x) else KERAS.precise(x)
    known = (x, norm.moving_mean, norm.moving_variance)
    values, mean, variance = (ops.convert_to_numpy(KERAS.precise(each)).astype(np.float64) for each in known)
    if x.shape[norm.axis] != len(mean):
        return False
    other_mean, other_variance, moved = change_statistics(values, mean, variance, norm.epsilon, norm.axis)
    statistics = [(norm.moving_mean, other_mean), (norm.moving_variance, other_variance)]
    others = keras.StatelessScope([(v, ops.convert_to_tensor(value, v.dtype)) for v, value in statistics])
    mode = {"training": False} if norm._call_has_training_arg else {}
    try:
        expected = super(AdaptedBatchNorm, norm).call(x, **mode)
        with others:
            found = super(AdaptedBatchNorm, norm).call(ops.convert_to_tensor(moved, x.dtype), **mode)
    except Exception:
        return False
    expected, found = (np.nan_to_num(ops.convert_to_numpy(KERAS.precise(each))) for each in (expected, found))
    dtypes = {keras.backend.standardize_dtype(x.dtype), norm.compute_dtype}
    tolerance = 1e-3 if dtypes <= {"float32", "float64"} else 0.1
    return bool(np.abs(found - expected).max() <= tolerance * max(np.abs(expected).max(), 1e-30))
