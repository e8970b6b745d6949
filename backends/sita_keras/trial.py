"""The probe of a clone: what is found out about a model by running it, when it is adapted."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import keras
import numpy as np
from keras import tree

from sita_adapters import engine
from sita_adapters.errors import (
    BypassError,
    CloneError,
    InputError,
    OutputError,
    SitaError,
    SitaWarning,
    UninitialisedModelError,
)
from sita_adapters.trial import Findings, Witness, hold_trial, made_up, shake

from .call import AdaptedCall
from .inspection import find_layers, walk_layers
from .ops import KERAS
from .variables import SharedVariable

_OPEN_SIZE = 64
"""The size of a random image where the model takes any."""


class _Reads(keras.StatelessScope):
    """Records which variables are read inside. (Keras asks the scope for every value.)"""

    def __init__(self) -> None:
        super().__init__()
        self.variables: list[Any] = []

    def get_current_value(self, variable: Any) -> Any:
        """Return the value that was assigned inside, if any."""
        self.variables.append(variable)
        return super().get_current_value(variable)


def try_out(layer: AdaptedCall, image: Any, example: Any) -> Findings:
    """Probe the clone, on random images like the example or of the model's own input shape."""
    made = made_up(_read_example(image, example))
    witness, called, reads = Witness(KERAS), set(), _Reads()

    def watch(name: str, x: Any) -> None:
        called.add(name)
        witness.watch(name, x)

    def run(which: Sequence[int], *, fresh: bool, seed: int, shaken: bool = False) -> Any:
        images = shake(made[list(which)], _precision(image.dtype)) if shaken else made[list(which)]
        rows = keras.ops.convert_to_tensor(images, dtype=image.dtype)
        call = engine.Call(layer.adaptation, engine.PLAIN, len(which), KERAS, watch=watch)
        with nullcontext() if called else reads:  # the first time
            output = engine.run_rows([rows], lambda some: _run(layer, some), call)
        _check_parts(output)
        return output

    findings = hold_trial(run, witness, layer.source_name, image)
    if findings.keeps_state:
        raise CloneError(
            f"{layer.source_name} answers differently after earlier calls: it keeps something from call to call. "
            "Expected an answer that depends on the images alone. Try: adapt a model whose `call` changes nothing."
        )
    layer.called = tuple(place for place, info in enumerate(layer.adaptation.layers) if info.name in called)
    if layer.adaptation.plan_for(layer.adaptation.kinds[0])[0].blends:
        _check_strays(reads.variables, layer)
        _check_called([info.name for info in layer.adaptation.layers if info.adapted], called, layer.source_name)
    return findings


def _run(layer: AdaptedCall, rows: list[Any]) -> Any:
    """Run the clone; where it fails, and layers of the source have never run, say which."""
    try:
        return layer.run_clone(rows)
    except SitaError:
        raise
    except Exception as error:
        if unbuilt := [path for path, inner in walk_layers(layer.hidden.source) if not inner.built]:
            raise UninitialisedModelError(
                f"{layer.source_name} has layers that are not built ({', '.join(unbuilt[:3])}), and fails: {error} "
                "Try: call the model once on an image batch, then adapt it."
            ) from error
        raise


def _precision(dtype: Any) -> float:
    """Return how finely a floating-point type counts; of others, 0."""
    known = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
    return known.get(keras.backend.standardize_dtype(dtype), 0.0)


def _read_example(image: Any, example: Any) -> np.ndarray:
    """Return images as the model takes them, in a precision that numpy knows."""
    dtype = "float32" if KERAS.is_float(image) else keras.backend.standardize_dtype(image.dtype)
    if example is None:
        return np.zeros((1, *(size or _OPEN_SIZE for size in image.shape[1:])), dtype)
    parts = tree.flatten(example)
    shape = tuple(np.shape(parts[0])) if len(parts) == 1 else ()
    if len(shape) != len(image.shape) or any(
        size not in (None, given) for size, given in zip(image.shape[1:], shape[1:], strict=True)
    ):
        received = f"{len(parts)} arrays" if len(parts) != 1 else f"shape {shape}"
        raise InputError(
            f"example: expected a batch of images as the model takes them, {tuple(image.shape)}; received {received}."
        )
    return np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(parts[0], dtype)))


def _check_parts(output: Any) -> None:
    """Raise where an output has something in it that a graph could not return."""
    for path, part in tree.flatten_with_path(output):
        if not KERAS.is_array(part):
            where = f" at {'.'.join(map(str, path))}" if path else ""
            raise OutputError(
                f"The model returns {part!r}{where}, which no graph of Keras can return. Expected tensors, or tuples, "
                "lists and dicts of them. Try: adapt a model around it that returns these."
            )


def _check_called(names: list[str], called: set[str], source: str) -> None:
    missed = [name for name in names if name not in called]
    if not called:
        raise BypassError(
            f"{source} calls none of its {len(names)} adapted layers, so nothing would be adapted. Expected layers "
            "that are called, not their variables used by functions (ops.batch_normalization)."
        )
    if missed:
        warnings.warn(
            f"{source} does not call {len(missed)} of its {len(names)} adapted layers, so they have no effect: "
            f"{', '.join(missed)}. Try: leave them out with layers=, if that is intended.",
            SitaWarning,
            stacklevel=5,
        )


def _check_strays(read: list[Any], layer: AdaptedCall) -> None:
    """Raise where statistics were read that are not the clone's: a BatchNorm layer ran that is not adapted."""
    found = enumerate(find_layers(layer.hidden.source).values())
    left_out = [id(v) for place, norm in found if place not in layer.chosen for v in norm.variables]
    paths = [
        variable.path.split("/")
        for variable in read
        if variable.name in ("moving_mean", "moving_variance")
        and not isinstance(variable, SharedVariable)
        and id(variable) not in left_out
    ]
    if names := [*dict.fromkeys("/".join(path[-2:-1]) for path in paths)]:
        raise BypassError(
            f"{layer.source_name} runs {', '.join(names)} in a way that a clone cannot follow, so it would stay "
            "unadapted: from a closure, a class, a global or an object that is no layer. Expected BatchNorm layers "
            "that are attributes of the layers that call them, alone or in lists and dicts. Try: hold them so."
        )
