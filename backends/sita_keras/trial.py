"""The trial of a clone: what is found out about a model by running it, when it is adapted."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import FrameType
from typing import Any

import keras
import numpy as np
from keras import tree
from keras.src.backend.common import global_state

from sita_adapters import engine
from sita_adapters.errors import BypassError, InputError, OutputError, SitaWarning
from sita_adapters.trial import Findings, Witness, hold_trial, made_up, shake

from .call import AdaptedCall
from .inspection import find_layers, walk_layers
from .ops import KERAS
from .state import left_unchanged

_OPEN_SIZE = 64
"""The size of a trial image where the model takes any."""


def try_out(layer: AdaptedCall, image: Any, example: Any) -> Findings:
    """Hold the clone's trial, on images like the example or of the model's own input shape."""
    source = type(layer.source).__name__
    made = made_up(_read_example(image, example))
    witness, called, left = Witness(KERAS), set(), []
    norms: list[Any] = []

    def watch(name: str, x: Any) -> None:
        called.add(name)
        witness.watch(name, x)

    def run(which: Sequence[int], *, fresh: bool, seed: int, shaken: bool = False) -> Any:
        images = shake(made[list(which)], _precision(image.dtype)) if shaken else made[list(which)]
        rows = keras.ops.convert_to_tensor(images, dtype=image.dtype)
        call = engine.Call(layer.adaptation, engine.PLAIN, len(which), KERAS, watch=watch)
        seeds = [(each.state, np.asarray([seed, 0], "uint32")) for each in _seed_generators(layer.source)]
        watching = _running_norms(norms) if fresh else nullcontext()  # once is enough, and it takes its time
        with left_unchanged((layer.hidden.clone, layer.source), seeds) as changed, watching:
            output = engine.run_rows([rows], layer.run_clone, call)
        left.extend(changed)
        _check_parts(output)
        return output

    findings = hold_trial(run, witness, source, image)
    layer.called = tuple(place for place, info in enumerate(layer.adaptation.layers) if info.name in called)
    if layer.adaptation.plan_for(layer.adaptation.kinds[0])[0].blends:
        _check_strays(norms, layer)
        _check_called([info.name for info in layer.adaptation.layers if info.adapted], called, source)
    return replace(findings, keeps_state=bool(left))


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
    """Raise where an output has something in it that a graph could not put out."""
    for path, part in tree.flatten_with_path(output):
        if not KERAS.is_array(part):
            where = f" at {'.'.join(map(str, path))}" if path else ""
            raise OutputError(
                f"The model returns {part!r}{where}, which no graph of Keras can put out. Expected tensors, or tuples, "
                "lists and dicts of them. Remedy: adapt a model around it that returns these."
            )


def _seed_generators(model: Any) -> list[Any]:
    found = [seed for layer in model._flatten_layers() for seed in layer._seed_generators]
    shared = global_state.get_global_attribute("global_seed_generator")  # None until somebody draws without a seed
    return found if shared is None else [*found, shared]


def _check_called(names: list[str], called: set[str], source: str) -> None:
    missed = [name for name in names if name not in called]
    if not called:
        raise BypassError(
            f"{source} calls none of its {len(names)} adapted layers, so nothing would be adapted. Expected layers "
            "that are called, not their variables used by functions (ops.batch_normalization)."
        )
    if missed:
        warnings.warn(
            f"{source} does not call {len(missed)} of its {len(names)} adapted layers, which have no effect then: "
            f"{', '.join(missed)}. Remedy: leave them out with layers=, if that is as it should be.",
            SitaWarning,
            stacklevel=5,
        )


@contextmanager
def _running_norms(ran: list[Any]) -> Iterator[None]:
    """Note every BatchNormalization that runs inside, also one that no attribute of the model leads to.

    Nothing of the layers has to be changed for it: Python's profiler tells of every call.
    """

    def look(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name == "call":
            layer = frame.f_locals.get("self")
            if isinstance(layer, keras.layers.BatchNormalization):
                ran.append(layer)

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(before)


def _check_strays(ran: list[Any], layer: AdaptedCall) -> None:
    """Raise where a BatchNorm layer ran that is not the clone's, and so is not adapted."""
    left_alone = [norm for place, norm in enumerate(find_layers(layer.source).values()) if place not in layer.chosen]
    known = {id(inner) for _, inner in walk_layers(layer.hidden.clone)} | set(map(id, left_alone))
    names = [*dict.fromkeys(norm.name for norm in ran if id(norm) not in known)]
    if names:
        raise BypassError(
            f"{type(layer.source).__name__} runs {', '.join(names)} in a way that a clone cannot follow, so that "
            "nothing would be adapted there: from a closure, a class, a global or an object that is no layer. Expected "
            "BatchNorm layers that are attributes of the layers that call them, alone or in lists and dicts. Remedy: "
            "hold them so."
        )
