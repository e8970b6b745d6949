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

from sita_adapters.engine import PLAIN, run_rows
from sita_adapters.errors import InputError, ModelError, OutputError, SitaError, SitaWarning
from sita_adapters.probe import InputRecorder, check_called, not_batchnorm_error, probe_model
from sita_adapters.probe_inputs import change_statistics, perturb
from sita_adapters.state import Adaptation, ForwardContext, ProbeResult

from .batchnorm import AdaptedBatchNorm
from .clone import Clones, SharedVariable
from .inspection import check_training, find_layers, random_images, walk
from .ops import ENGINE, KERAS

_PRECISIONS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def probe(layer: Any, image: Any, example: Any, channel_axis: int | None) -> ProbeResult:
    """Return what is established about a model, on random images like the example or of the model's input shape."""
    clones, adaptation = layer.hidden, layer.adaptation
    check_training(clones.source)
    images, watcher = random_images(image, example, InputError), _Watcher(clones)

    def run(which: Sequence[int], *, perturbed: bool = False, fresh: bool = False) -> Any:
        values = images[list(which)]
        if perturbed:
            values = perturb(values, _PRECISIONS.get(keras.backend.standardize_dtype(image.dtype), 0.0))
        rows = ops.convert_to_tensor(values, dtype=image.dtype)
        context = ForwardContext(adaptation, PLAIN, len(which), KERAS, record=watcher.record)
        cloned = clones.make_clone() if fresh else clones.clone
        try:
            with nullcontext() if watcher.inputs else watcher.reads:  # until an adapted layer has run
                output = run_rows([rows], lambda some: layer.own_forward(some, cloned), context)
        except SitaError:
            raise
        except Exception as error:
            if unbuilt := [path for path, inner in walk(clones.source) if not getattr(inner, "built", True)]:
                raise ModelError(
                    f"{adaptation.model_name} has unbuilt layers ({', '.join(unbuilt[:3])}), and fails: {error} "
                    "Try: call the model once on an image batch, then adapt it."
                ) from error
            raise
        _refuse_values(output)
        return output

    rank = len(image.shape)
    found = probe_model(run, watcher.recorder, adaptation, image, image_rank=rank, channel_axis=lambda: channel_axis)
    watcher.check(adaptation)
    return replace(found, notes=watcher.notes(clones.opaque))


def _refuse_values(output: Any) -> None:
    """Raise if an output holds anything but tensors."""
    for path, part in tree.flatten_with_path(output):
        if not KERAS.is_array(part) or "string" in str(part.dtype):
            where = f" at {'.'.join(map(str, path))}" if path else ""
            raise OutputError(
                f"The model returns {part!r}{where}, which no Keras graph can return, or which is text. Expected "
                "tensors of numbers, or tuples, lists and dicts of them. Try: adapt a model that returns these."
            )


class _Reads(keras.StatelessScope):
    """Records which variables are read inside: Keras asks the scope for every value."""

    def __init__(self) -> None:
        super().__init__()
        self.variables: list[Any] = []

    def get_current_value(self, variable: Any) -> Any:
        """Return the value that was assigned inside, if any."""
        self.variables.append(variable)
        return super().get_current_value(variable)


class _Watcher:
    """Watches the adapted layers: what their inputs are, and whether other BatchNorm layers run in their place."""

    def __init__(self, clones: Clones) -> None:
        self.source, self.recorder, self.reads = clones.source, InputRecorder(KERAS), _Reads()
        self.norms = {each.sita_name: each for _, each in walk(clones.clone) if isinstance(each, AdaptedBatchNorm)}
        self.inputs: dict[str, Any] = {}  # a part of the first input of each adapted layer, if its class is not known

    def record(self, name: str, x: Any) -> None:
        """Record the input of an adapted layer."""
        self.recorder.record(name, ops.convert_to_numpy(x) if ENGINE == "jax" else x)  # JAX compiles every operation
        if name not in self.inputs:
            self.inputs[name] = None if self.norms[name].is_known() else ops.copy(x[:1])

    def check(self, adaptation: Adaptation) -> None:
        """Raise if BatchNorm layers bypass the adaptation, or an adapted layer that ran is no BatchNorm."""
        if any(plan.blends for plan in adaptation.plans.values()):
            self._check_bypass(adaptation)
            self._check_compiled(adaptation)
            check_called(self.inputs, adaptation)
        inputs, norms = self.inputs, self.norms
        if wrong := [name for name, x in inputs.items() if x is not None and not _is_normalizing(norms[name], x)]:
            raise not_batchnorm_error(wrong, type(norms[wrong[0]]).__bases__[-1].__name__, adaptation)

    def _check_bypass(self, adaptation: Adaptation) -> None:
        """Raise if statistics were read that are not the clone's: a BatchNorm layer ran that is not adapted."""
        found = find_layers(self.source)
        skipped = {id(v) for info in adaptation.layers if not info.adapted for v in found[info.name].variables}
        read = [v for v in self.reads.variables if not isinstance(v, SharedVariable) and id(v) not in skipped]
        if names := _layers_of_statistics(read):
            raise ModelError(
                f"The clone of {adaptation.model_name} runs {', '.join(names)} of the source model: from a closure, a "
                "class, a global or an object that is not a layer. Try: make BatchNorm layers attributes of the layers "
                "that call them, alone or in lists and dicts."
            )

    def notes(self, opaque: Sequence[str]) -> tuple[str, ...]:
        """Return, and warn about, what is not adapted: other frameworks' layers, and norms of a class of their own."""
        known = {id(v) for layer in find_layers(self.source).values() for v in layer.variables}
        shared = [v for v in self.reads.variables if isinstance(v, SharedVariable)]
        others = _layers_of_statistics([v for v in shared if id(v.source) not in known])
        whys = (
            (opaque, "run another framework's layers: BatchNorm layers in them are not adapted"),
            (others, "normalize like BatchNorm, but are no BatchNormalization: not adapted"),
        )
        notes = tuple(f"{', '.join(names)} {why}" for names, why in whys if names)
        for note in notes:
            warnings.warn(f"{note}.", SitaWarning, stacklevel=5)
        return notes

    def _check_compiled(self, adaptation: Adaptation) -> None:
        """Raise if an adapted layer that was not called may be inside a function that is compiled already."""
        missed = [info.name for info in adaptation.layers if info.adapted and info.name not in self.inputs]
        attributes = [item for _, inner in walk(self.source) for item in vars(inner).items()]
        marks = ("get_concrete_function", "clear_cache")  # of a tf.function, and of what jax.jit returns
        compiled = {name for name, value in attributes if any(hasattr(value, mark) for mark in marks)}
        if missed and compiled:
            raise ModelError(
                f"{adaptation.model_name} does not call {', '.join(missed[:3])}, unless it does so inside functions "
                f"that are already compiled, {', '.join(sorted(compiled))}. Try: leave compilation to Keras."
            )


def _layers_of_statistics(variables: Sequence[Any]) -> list[str]:
    """Return the names of the layers whose moving statistics are among these variables."""
    paths = (variable.path.split("/") for variable in variables)
    norms = (path for path in paths if path[-1] in ("moving_mean", "moving_variance"))
    return [*dict.fromkeys("/".join(path[-2:-1]) for path in norms)]


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
