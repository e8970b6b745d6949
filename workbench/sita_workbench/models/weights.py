"""Weights from a file into a model: reads them, checks that they fit, and finds their number of classes."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from sita_adapters.errors import InputError

from .trusting import refuse_untrusted

TORCH_ENDINGS = (".safetensors", ".pt", ".pth", ".pth.tar", ".bin", ".npz")
KERAS_ENDINGS = (".keras", ".weights.h5", ".h5", ".npz", ".safetensors")

Build: TypeAlias = Callable[[int | None], Any]
"""Makes the model for a number of classes; None: its own number."""

_Shapes: TypeAlias = Mapping[str, tuple[int, ...]]

# The keys under which training frameworks store the weights, and the prefixes that they add to the names.
_WRAPPINGS = ("state_dict", "model_state_dict", "model", "net")
_PREFIXES = ("module.", "_orig_mod.", "model.")

# What torch.load(weights_only=True) says of a file that holds more than tensors.
_PICKLED = ("Unsupported global", "Unsupported class", "TorchScript archive")

_SHOWN = 3


def find_file(spec: str, weights: str, endings: tuple[str, ...]) -> Path:
    """Return the path of a file of weights; raise where it does not exist or has another ending."""
    path = Path(weights)
    if not path.name.lower().endswith(endings):
        raise InputError(
            f"weights: expected 'pretrained', 'random' or a file that ends in {', '.join(endings)} for {spec}; "
            f"received {weights!r}."
        )
    if not path.is_file():
        raise InputError(f"weights: expected a file; there is no {weights!r}.")
    return path


def name_file(path: Path) -> str:
    """Return the file's name and the beginning of its sha256, as reports show them."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return f"{path.name} sha256 {digest.hexdigest()[:12]}"


def load_torch(build: Build, path: Path, spec: str, *, trust: bool = False) -> Any:
    """Return the module with the file's weights, made for their number of classes.

    `trust` unpickles whatever the file holds, a whole module for one, of which the weights are taken.
    """
    import torch

    model = build(None)
    state = _without_prefix(_read_state(path, trust), model.state_dict())
    stored = {name: tuple(value.shape) for name, value in state.items()}
    if classes := _other_classes(stored, _shapes(model.state_dict()), axis=0):
        model = build(classes)
    own = _shapes(model.state_dict())
    # Old files lack these counters, which only training uses; evaluation needs no auxiliary classifier.
    spare = {name for name in (*own, *stored) if name.endswith("num_batches_tracked")}
    spare |= {name for name in stored.keys() - own.keys() if name.startswith("aux_classifier.")}
    _check_fit(spec, path, stored, own, spare)
    with torch.no_grad():
        model.load_state_dict({name: value for name, value in state.items() if name in own}, strict=False)
    return model


def _read_state(path: Path, trust: bool) -> dict[str, Any]:
    """Return the tensors of a file by name, unwrapped."""
    import torch

    try:
        if path.suffix.lower() in (".safetensors", ".npz"):
            return {name: torch.from_numpy(value) for name, value in _read_arrays(path).items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # on other people's pickles, which are refused below
            found = torch.load(path, map_location="cpu", weights_only=not trust)
    except InputError:
        raise
    except Exception as error:
        if not trust and any(sign in str(error) for sign in _PICKLED):
            reason = "it holds pickled objects, which can execute code when they are loaded"
            raise refuse_untrusted(f"weights: {path}", reason, "torch.save(model.state_dict(), path)") from error
        # torch's own words would advise to execute whatever the file holds.
        reason = "torch.save did not write it, or wrote more than tensors."
        raise InputError(
            f"weights: {path} cannot be read as a file of tensors: "
            f"{reason if 'weights_only' in str(error) else first_line(error)} "
            "Try: torch.save(model.state_dict(), path), not the model itself."
        ) from error
    if isinstance(found, torch.nn.Module):
        found = found.state_dict()
    for key in _WRAPPINGS:
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
            break
    items = found.items() if isinstance(found, Mapping) else ()
    tensors = {name: value for name, value in items if isinstance(value, torch.Tensor)}
    if not tensors:
        received = f"a dict of {', '.join(map(repr, list(found)[:5]))}" if items else type(found).__name__
        raise InputError(
            f"weights: expected tensors by name in {path}, as model.state_dict() has them; received {received}."
        )
    return tensors


def _without_prefix(state: dict[str, Any], own: Collection[str]) -> dict[str, Any]:
    """Return the weights without the prefix that DataParallel, torch.compile or a training framework added."""
    for prefix in _PREFIXES:
        ours = any(name.startswith(prefix) for name in own)
        if not ours and all(name.startswith(prefix) for name in state):
            state = {name.removeprefix(prefix): value for name, value in state.items()}
    return state


def load_keras(build: Build, path: Path, spec: str, *, trust: bool = False) -> Any:
    """Return the Keras model with the file's weights; a .keras file contains the model as well.

    Without `trust`, Keras' safe mode refuses what a .keras file could execute: Lambda layers, for one.
    """
    import keras

    name = path.name.lower()
    if name.endswith((".npz", ".safetensors")):
        return _load_keras_arrays(build, path, spec)
    try:
        if name.endswith(".keras"):
            return keras.saving.load_model(path, compile=False, safe_mode=not trust)
        model = build(None)
        model.load_weights(path)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"weights: {path} does not fit {spec}: {first_line(error)} "
            "Try: name the model that these weights were saved from."
        ) from error
    return model


def _load_keras_arrays(build: Build, path: Path, spec: str) -> Any:
    """Load arrays that are called `<layer>/<weight>`."""
    model = build(None)
    arrays = _read_arrays(path)
    stored = _shapes(arrays)
    if classes := _other_classes(stored, _shapes(_keras_variables(model)), axis=-1):
        model = build(classes)
    variables = _keras_variables(model)
    _check_fit(spec, path, stored, _shapes(variables), ())
    for name, variable in variables.items():
        variable.assign(arrays[name].astype(variable.dtype))
    return model


def _keras_variables(model: Any) -> dict[str, Any]:
    pairs = [(f"{layer.name}/{variable.name}", variable) for layer in model.layers for variable in layer.weights]
    if len(dict(pairs)) < len(pairs):
        raise InputError(
            f"weights: {model.name} has layers within layers, so that the names <layer>/<weight> of a file of arrays "
            "are ambiguous. Try: model.save_weights('model.weights.h5')."
        )
    return dict(pairs)


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        if path.suffix.lower() == ".safetensors":
            from safetensors.numpy import load_file

            return dict(load_file(path))
        with np.load(path) as stored:
            return dict(stored)
    except Exception as error:
        reason = "it holds no arrays of numbers." if "allow_pickle" in str(error) else first_line(error)
        raise InputError(f"weights: {path} cannot be read: {reason}") from error


def _shapes(weights: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in weights.items()}


def _other_classes(stored: _Shapes, own: _Shapes, axis: int) -> int | None:
    """Return the file's number of classes where it differs from the model in nothing else.

    Then only the last layers' weights have another shape, and only along the axis of the classes.
    """
    counts = set()
    for name in own.keys() & stored.keys():
        theirs, ours = list(stored[name]), list(own[name])
        if theirs == ours:
            continue
        if len(theirs) != len(ours) or not ours:
            return None
        counts.add((theirs.pop(axis), ours.pop(axis)))
        if theirs != ours:
            return None
    return counts.pop()[0] if len(counts) == 1 else None


def _check_fit(spec: str, path: Path, stored: _Shapes, own: _Shapes, spare: Collection[str]) -> None:
    missing = [name for name in own if name not in stored and name not in spare]
    unexpected = [name for name in stored if name not in own and name not in spare]
    reshaped = [f"{name} {stored[name]} for {own[name]}" for name in own if stored.get(name, own[name]) != own[name]]
    found = (
        (f"{len(missing)} of {len(own)} missing", missing),
        (f"{len(unexpected)} unexpected", unexpected),
        (f"{len(reshaped)} of another shape", reshaped),
    )
    if any(names for _, names in found):
        details = "; ".join(f"{text} ({_sample(names)})" for text, names in found if names)
        raise InputError(
            f"weights: {path.name} does not fit {spec}: {details}. "
            "Try: name the model that these weights were saved from."
        )


def _sample(names: list[str]) -> str:
    return ", ".join([*names[:_SHOWN], *(["…"] if len(names) > _SHOWN else [])])


def first_line(error: Exception) -> str:
    """Return the first line of an error message as a sentence; frameworks add pages of advice."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return line if line.endswith(".") else f"{line}."
