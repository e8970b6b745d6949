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

from sita_adapters import engine
from sita_adapters.errors import InputError, ModelError, OutputError, SitaError, SitaWarning
from sita_adapters.outputs import OutputLayout
from sita_adapters.probe import InputRecorder, leave_out, probe_model
from sita_adapters.random_images import perturb, random_like

from .batchnorm import AdaptedBatchNorm, prepare
from .call import AdaptedCall
from .inspection import check_example, find_layers, type_of_images, walk_layers
from .ops import KERAS
from .variables import SharedVariable

_OPEN_SIZE = 64
"""Height and width of random images if the model takes any."""


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
    zeros = np.zeros((1, *(size or _OPEN_SIZE for size in image.shape[1:])), type_of_images(image))
    images = random_like(zeros if example is None else check_example(image, example, InputError))
    recorder, reads, inputs = InputRecorder(KERAS), _Reads(), dict[str, Any]()

    def record(name: str, x: Any) -> None:
        if not KERAS.is_traced(x):  # if it is, the layer refuses
            recorder.record(name, x)
            inputs.setdefault(name, x[:1])

    def run(which: Sequence[int], *, perturbed: bool = False, fresh: bool = False) -> Any:
        values = perturb(images[list(which)], _precision(image.dtype)) if perturbed else images[list(which)]
        rows = ops.convert_to_tensor(values, dtype=image.dtype)
        context = engine.ForwardContext(layer.adaptation, engine.PLAIN, len(which), KERAS, record=record)
        with nullcontext() if inputs else reads:  # the first time
            output = engine.run_rows([rows], lambda some: _run(layer, some, fresh), context)
        _check_parts(output)
        return output

    layout = probe_model(run, recorder, layer.adaptation, layer.adaptation.model_name, image)
    blends = layer.adaptation.plan_for(layer.adaptation.kinds[0])[0].blends
    if blends:
        _check_bypass(reads.variables, layer)
        _check_called([info.name for info in layer.adaptation.layers if info.adapted], set(inputs), layer)
    _check_layers(layer, inputs)
    return replace(layout, notes=_notes(layer))


def _run(layer: AdaptedCall, rows: list[Any], fresh: bool) -> Any:
    """Run the clone. If it fails and the source has layers that never ran, name them."""
    try:
        return layer.run_clone(rows, cloned=layer.hidden.make_clone() if fresh else None)
    except SitaError:
        raise
    except Exception as error:
        if unbuilt := [path for path, inner in walk_layers(layer.hidden.source) if not inner.built]:
            raise ModelError(
                f"{layer.adaptation.model_name} has unbuilt layers ({', '.join(unbuilt[:3])}), and fails: {error} "
                "Try: call the model once on an image batch, then adapt it."
            ) from error
        raise


def _precision(dtype: Any) -> float:
    """Return the precision of a floating-point type; 0 for others."""
    known = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
    return known.get(keras.backend.standardize_dtype(dtype), 0.0)


def _check_parts(output: Any) -> None:
    """Raise if an output contains something that a graph cannot return."""
    for path, part in tree.flatten_with_path(output):
        if not KERAS.is_array(part):
            where = f" at {'.'.join(map(str, path))}" if path else ""
            raise OutputError(
                f"The model returns {part!r}{where}, which no graph of Keras can return. Expected tensors, or tuples, "
                "lists and dicts of them. Try: adapt a model around it that returns these."
            )


def _check_called(names: list[str], called: set[str], layer: AdaptedCall) -> None:
    source, missed = layer.adaptation.model_name, [name for name in names if name not in called]
    compiled = {name for each in layer.hidden.layers for name, value in vars(each).items() if _is_compiled(value)}
    if missed and compiled:
        raise ModelError(
            f"{source} does not call {', '.join(missed[:3])}, unless it does so inside {', '.join(sorted(compiled))}: "
            "functions that are compiled already, for the source model. Expected layers that the model calls itself. "
            "Try: leave compilation to Keras, which compiles the whole model."
        )
    if not called:
        raise ModelError(
            f"{source} calls none of its {len(names)} adapted layers. Expected layers that are called, not their "
            "variables used by functions (ops.batch_normalization)."
        )
    if missed:
        warnings.warn(
            f"{source} does not call {len(missed)} of its {len(names)} adapted layers, which have no effect: "
            f"{', '.join(missed)}. Try: leave them out with layers=, if that is intended.",
            SitaWarning,
            stacklevel=5,
        )


def _is_compiled(value: Any) -> bool:
    """Whether this is a tf.function, or a function that jax.jit made."""
    return hasattr(value, "get_concrete_function") or (hasattr(value, "lower") and hasattr(value, "trace"))


def _check_bypass(read: list[Any], layer: AdaptedCall) -> None:
    """Raise if statistics were read that are not the clone's: a BatchNorm layer ran that is not adapted."""
    found = enumerate(find_layers(layer.hidden.source).values())
    skipped = [id(v) for place, norm in found if place not in layer.chosen for v in norm.variables]
    paths = [
        variable.path.split("/")
        for variable in read
        if variable.name in ("moving_mean", "moving_variance")
        and not isinstance(variable, SharedVariable)
        and id(variable) not in skipped
    ]
    if names := [*dict.fromkeys("/".join(path[-2:-1]) for path in paths)]:
        raise ModelError(
            f"The clone of {layer.adaptation.model_name} runs {', '.join(names)} of the source model: from a closure, "
            "a class, a global or an object that is no layer. Expected BatchNorm layers that are attributes of the "
            "layers that call them, alone or in lists and dicts. Try: make them such attributes."
        )


def _check_layers(layer: AdaptedCall, inputs: dict[str, Any]) -> None:
    """Raise if a layer that ran is not a BatchNorm layer, by the property that the method rests on."""
    norms = {each.sita_name: each for _, each in walk_layers(layer.hidden.clone) if isinstance(each, AdaptedBatchNorm)}
    wrong = [name for name, x in inputs.items() if not _is_normalizing(norms[name], x, layer)]
    if wrong:
        remedy = (
            "there is no other BatchNorm layer to adapt" if len(wrong) == len(norms) else f"Try: {leave_out(*wrong)}"
        )
        kind = type(norms[wrong[0]]).__bases__[-1].__name__
        raise ModelError(
            f"{', '.join(wrong[:4])} ({kind}) does not normalize its input with its moving statistics: changing these "
            "is not the same as changing the input. Expected a layer that "
            f"computes (x − mean) / sqrt(variance + ε) first, and anything else afterwards; {remedy}."
        )


def _is_normalizing(norm: Any, x: Any, layer: AdaptedCall) -> bool:
    """Whether, with other statistics (m', v'), a layer returns the same for x' as it does for x.

    x' = (x − m) / √(v + ε) · √(v' + ε) + m'
    """
    x = x if KERAS.is_float(x) else KERAS.precise(x)
    random = np.random.default_rng(0)
    mean, variance = (ops.convert_to_numpy(each.value) for each in (norm.moving_mean, norm.moving_variance))
    if x.shape[norm.axis] != len(mean):
        return False
    values = ops.convert_to_numpy(KERAS.precise(x)).astype(np.float64)
    column = [-1 if place == norm.axis % values.ndim else 1 for place in range(values.ndim)]
    mean, variance = mean.astype(np.float64), variance.astype(np.float64)
    other_mean = mean + random.normal(size=mean.shape) * np.sqrt(variance + norm.epsilon)
    other_variance = (variance + norm.epsilon) * random.uniform(0.25, 4.0, mean.shape)
    scale = np.sqrt((other_variance + norm.epsilon) / (variance + norm.epsilon)).reshape(column)
    moved = (values - mean.reshape(column)) * scale + other_mean.reshape(column)
    context = engine.ForwardContext(layer.adaptation, engine.PLAIN, 1, KERAS)
    prepare(context, x)
    try:
        expected = engine.run_rows([x], lambda rows: norm.call(rows[0]), context)
        statistics = [(norm.moving_mean, other_mean), (norm.moving_variance, other_variance)]
        scope = keras.StatelessScope([(v, ops.convert_to_tensor(value, v.dtype)) for v, value in statistics])
        with scope:
            found = engine.run_rows([ops.convert_to_tensor(moved, x.dtype)], lambda rows: norm.call(rows[0]), context)
    except SitaError:
        raise
    except Exception:
        return False
    expected, found = (np.nan_to_num(ops.convert_to_numpy(KERAS.precise(each))) for each in (expected, found))
    room = 1e-3 if _precision(x.dtype) <= 2.0**-23 and "float32" in str(norm.compute_dtype) else 0.1
    return bool(np.abs(found - expected).max() <= room * max(float(np.abs(expected).max()), 1e-30))


def _notes(layer: AdaptedCall) -> tuple[str, ...]:
    """Return, and warn about, layers in which nothing is adapted."""
    if not layer.hidden.opaque:
        return ()
    note = f"{', '.join(layer.hidden.opaque)} run another framework's layers: BatchNorm layers in them are not adapted"
    warnings.warn(f"{note}.", SitaWarning, stacklevel=4)
    return (note,)
