"""A model that a function in the user's own Python file returns: `file.py:function`."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from sita_adapters.backend import backend_of
from sita_adapters.errors import InputError, suggestion
from sita_adapters.inputs import resolve_inputs

from . import weights as model_weights
from .libraries import keras_size, quiet_tensorflow
from .loaded import LoadedModel

SETTINGS = ("inputs", "size", "crop", "task", "scores")
"""What the function may say about its model."""


def load_from_file(spec: str, weights: str | None, *, trust: bool = False) -> LoadedModel:
    """Return the model that the function returns, with the weights of a file where one is given."""
    if weights in ("random", "pretrained"):
        raise InputError(
            f"weights: {spec} decides its weights itself; received {weights!r}. Try: leave it out, or give a file."
        )
    quiet_tensorflow()
    model, settings, keras = _call(spec)
    origin = "its own"
    if weights is not None:
        endings = model_weights.KERAS_ENDINGS if keras else model_weights.TORCH_ENDINGS
        load = model_weights.load_keras if keras else model_weights.load_torch
        path, own = model_weights.find_file(spec, weights, endings), model
        model, origin = load(lambda classes: own, path, spec, trust=trust), model_weights.name_file(path)
    if keras:
        settings = {"size": keras_size(model), **settings}
    else:
        model.eval()
    crop = 1.0 if settings.get("task") == "segmentation" else 0.875
    return LoadedModel(spec, model, **{"inputs": None, "crop": crop, **settings}, weights=origin)


def _call(spec: str) -> tuple[Any, dict[str, Any], bool]:
    """Return the model, its settings, and whether it is a Keras model."""
    file, _, name = (spec, "", "") if spec.endswith(".py") else spec.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise InputError(f"model: expected a Python file before the colon; there is no {file!r}.")
    with _imports_from(path.resolve().parent):
        module = _load(path)
        returned = _run(path, spec, _find(module, path, name))
    model, settings = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, {})
    owner = type(backend_of(model)).__module__
    return model, _read_settings(spec, settings), owner.startswith("sita_keras")


@contextmanager
def _imports_from(folder: Path) -> Iterator[None]:
    """Let the file import its neighbours, as if Python ran it as a script."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _load(path: Path) -> ModuleType:
    name = f"sita_model_{path.stem}"
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # copying and pickling look classes up there
    _run(path, str(path), lambda: found.loader.exec_module(module))  # type: ignore[union-attr]
    return module


def _run(path: Path, what: str, run: Callable[[], Any]) -> Any:
    """Run the user's code. An error names the line of the file."""
    try:
        return run()
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == path.resolve()]
        where = f" in line {lines[-1]}" if lines else ""
        raise InputError(f"{what} failed{where}: {type(error).__name__}: {error}{_hint(error)}") from error


def _hint(error: Exception) -> str:
    if "torchvision::" not in str(error):  # elsewhere torch, which the hint's module imports, may not be installed
        return ""
    from .torchvision_compat import torchvision_hint

    return torchvision_hint(error)


def _find(module: ModuleType, path: Path, name: str) -> Callable[[], Any]:
    function = getattr(module, name, None) if name else None
    if callable(function):
        return function  # type: ignore[no-any-return]
    own = [
        key
        for key, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not key.startswith("_")
    ]
    wanted = f"received {name!r}" if name else "received none"
    raise InputError(
        f"model: expected a function of {path} after the colon; {wanted}. It has: {', '.join(own) or 'none'}."
        f"{suggestion(name, own)}"
    )


def _read_settings(spec: str, settings: Any) -> dict[str, Any]:
    if not isinstance(settings, dict):
        raise InputError(
            f"{spec}: expected the model, or (model, dict) with any of {', '.join(SETTINGS)}; "
            f"received the model and a {type(settings).__name__}."
        )
    for key in settings:
        if key not in SETTINGS:
            raise InputError(
                f"{spec}: expected any of {', '.join(SETTINGS)} in the dict beside the model; received {key!r}."
                f"{suggestion(str(key), SETTINGS)}"
            )
    read = dict(settings)
    read["inputs"] = resolve_inputs(read.get("inputs"))
    if read.get("task", "classification") not in ("classification", "segmentation"):
        raise InputError(f"{spec}: task: expected 'classification' or 'segmentation'; received {read['task']!r}.")
    crop = read.get("crop", 1.0)
    if not isinstance(crop, int | float) or not 0 < crop <= 1:
        raise InputError(f"{spec}: crop: expected a share above 0 and up to 1; received {crop!r}.")
    if "size" in read:
        read["size"] = _read_size(spec, read["size"])
    return read


def _read_size(spec: str, size: Any) -> Any:
    sides = size if isinstance(size, tuple | list) and len(size) == 2 else (size,)
    if size is None or all(isinstance(side, int) and side > 0 for side in sides):
        return tuple(size) if isinstance(size, list) else size
    raise InputError(f"{spec}: size: expected pixels, one number or (height, width); received {size!r}.")
