"""Weights from a file into a model: reads them safely, checks that they fit, and finds their number of classes."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from sita_adapters.errors import InputError

from ..exported.runtimes import first_line

_TORCH_ENDINGS = (".safetensors", ".pt", ".pth", ".pth.tar", ".bin")
_KERAS_ENDINGS = (".keras", ".weights.h5", ".h5")

Build: TypeAlias = Callable[[int | None], Any]
"""Makes the model for a number of classes; None: its own number."""

# The keys under which training frameworks store the weights, and the prefixes that they add to the names.
_WRAPPINGS = ("state_dict", "model_state_dict", "model", "net")
_PREFIXES = ("module.", "_orig_mod.", "model.")


def load_weights(build: Build, spec: str, weights: str, *, keras: bool, trust: bool) -> tuple[Any, str]:
    """Return the model with the weights of a file, made for their number of classes, and the file's name and digest.

    `trust` unpickles a PyTorch file, for example a whole module, and takes its weights. Without it, Keras' safe mode
    refuses code in a .keras file, for example Lambda layers.
    """
    path, endings = Path(weights), _KERAS_ENDINGS if keras else _TORCH_ENDINGS
    if not path.name.lower().endswith(endings) or not path.is_file():
        raise InputError(
            f"weights: expected 'pretrained', 'random' or an existing file that ends in {', '.join(endings)} for "
            f"{spec}; received {weights!r}."
        )
    return (_load_keras if keras else _load_torch)(build, path, spec, trust), name_file(path)


def name_file(path: Path) -> str:
    """Return the file's name and the beginning of its sha256, as reports show them."""
    return f"{path.name} sha256 {hashlib.sha256(path.read_bytes()).hexdigest()[:12]}"


def _load_torch(build: Build, path: Path, spec: str, trust: bool) -> Any:
    model = build(None)
    state = _without_prefix(_read_state(path, trust), model.state_dict())
    if classes := _other_classes(state, model.state_dict()):
        model = build(classes)
    own = model.state_dict()
    _check_fit(spec, path, state, own)
    model.load_state_dict({name: value for name, value in state.items() if name in own}, strict=False)
    return model


def _read_state(path: Path, trust: bool) -> dict[str, Any]:
    """Return the tensors of a file by name, unwrapped."""
    import torch

    try:
        if path.suffix.lower() == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # on other people's pickles, which are refused below
            found = torch.load(path, map_location="cpu", weights_only=not trust)
    except Exception as error:
        # torch's own message suggests loading the file without this protection.
        raise InputError(
            f"weights: {path} was not opened: it is damaged, or holds pickled objects, which can execute code when "
            "they are loaded. Expected a file that holds only tensors. Try: torch.save(model.state_dict(), path); or "
            "--trust, if you trust the author of the file."
        ) from error
    if isinstance(found, torch.nn.Module):
        found = found.state_dict()
    items: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    items = next((items[key] for key in _WRAPPINGS if isinstance(items.get(key), Mapping)), items)
    tensors = {name: value for name, value in items.items() if isinstance(value, torch.Tensor)}
    if not tensors:
        received = f"a dict of {', '.join(map(repr, list(items)[:5]))}" if items else type(found).__name__
        raise InputError(f"weights: expected a state dict (named tensors) in {path}; received {received}.")
    return tensors


def _without_prefix(state: dict[str, Any], own: Collection[str]) -> dict[str, Any]:
    """Return the weights without the prefix that DataParallel, torch.compile or a training framework added."""
    for prefix in _PREFIXES:
        ours = any(name.startswith(prefix) for name in own)
        if not ours and all(name.startswith(prefix) for name in state):
            state = {name.removeprefix(prefix): value for name, value in state.items()}
    return state


def _load_keras(build: Build, path: Path, spec: str, trust: bool) -> Any:
    """Return the Keras model with the file's weights; a .keras file contains the model as well."""
    import keras

    model = None if path.name.lower().endswith(".keras") else build(None)
    try:
        if model is None:
            return keras.saving.load_model(path, compile=False, safe_mode=not trust)
        model.load_weights(path)
    except Exception as error:
        raise InputError(
            f"weights: {path} does not fit {spec}: {first_line(error)} "
            "Try: name the model that these weights were saved from."
        ) from error
    return model


def _other_classes(stored: Mapping[str, Any], own: Mapping[str, Any]) -> int | None:
    """Return the file's number of classes if its weights differ from the model's only in that."""
    shapes = [(stored[name].shape, own[name].shape) for name in own.keys() & stored.keys()]
    counts = {(theirs[0], ours[0]) for theirs, ours in shapes if theirs != ours and theirs and ours}
    classes, before = counts.pop() if len(counts) == 1 else (None, None)
    return None if classes == before else classes


def _check_fit(spec: str, path: Path, stored: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raise unless the file's weights have the names and shapes of the model's."""
    theirs, ours = ({name: tuple(value.shape) for name, value in each.items()} for each in (stored, own))
    wrong = [name for name in {**ours, **theirs} if theirs.get(name) != ours.get(name)]
    # Old files lack these counters, which only training uses; evaluation needs no auxiliary classifier.
    wrong = [name for name in wrong if not name.endswith("num_batches_tracked")]
    wrong = [name for name in wrong if name in ours or not name.startswith("aux_classifier.")]
    if wrong:
        some = "; ".join(f"{name}: {theirs.get(name, 'none')} for {ours.get(name, 'none')}" for name in wrong[:2])
        raise InputError(
            f"weights: {path.name} does not fit {spec}: {len(wrong)} weights differ ({some}). "
            "Try: name the model that these weights were saved from."
        )
