"""A model that a function in the user's own Python file returns: `file.py:function`."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path
from typing import Any

from sita_adapters.backend import backend_of
from sita_adapters.errors import InputError, expect_one_of, suggestion
from sita_adapters.inputs import resolve_inputs

from .libraries import keras_size, quiet_tensorflow
from .loaded import LoadedModel
from .weights import load_weights

_SETTINGS = ("inputs", "size", "crop", "task", "scores")


def load_from_file(spec: str, weights: str | None, *, trust: bool = False) -> LoadedModel:
    """Return the model that the function returns, with the weights of a file if one is given."""
    if weights in ("random", "pretrained"):
        raise InputError(
            f"weights: {spec} sets its own weights; received {weights!r}. Try: omit the option, or give a file."
        )
    quiet_tensorflow()
    returned = _call(spec)
    own, given = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, {})
    keras = type(backend_of(own)).__module__.startswith("sita_keras")
    settings, model, origin = _read_settings(spec, given), own, "its own"
    if weights is not None:
        model, origin = load_weights(lambda classes: own, spec, weights, keras=keras, trust=trust)
    if keras:
        settings = {"size": keras_size(model), **settings}
    else:
        model.eval()
    crop = 1.0 if settings.get("task") == "segmentation" else 0.875
    return LoadedModel(spec, model, **{"crop": crop, **settings}, weights=origin)


def _call(spec: str) -> Any:
    """Run the file, with imports from its folder, as if it were a script, and return what its function returns."""
    file, _, function = (spec, "", "") if spec.endswith(".py") else spec.rpartition(":")
    path, name = Path(file), f"sita_model_{Path(file).stem}"
    found = importlib.util.spec_from_file_location(name, path)
    if not path.is_file() or found is None or found.loader is None:
        raise InputError(f"model: expected a Python file before the colon; {file!r} does not exist.")
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # copying and pickling look classes up there
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        found.loader.exec_module(module)
        if callable(call := getattr(module, function, None)):
            return call()
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == path.resolve()]
        where = f" in line {lines[-1]}" if lines else ""
        raise InputError(f"{spec} failed{where}: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(folder)
    close = suggestion(function, [key for key, value in vars(module).items() if callable(value)])
    raise InputError(f"model: expected a function of {path} after the colon; received {function!r}.{close}")


def _read_settings(spec: str, settings: Any) -> dict[str, Any]:
    """Return what the function says about its model, checked."""
    if not isinstance(settings, dict) or not set(settings) <= set(_SETTINGS):
        received = ", ".join(map(repr, settings)) if isinstance(settings, dict) else type(settings).__name__
        raise InputError(
            f"{spec}: expected the model, or (model, dict) with any of {', '.join(_SETTINGS)}; received {received} "
            "in addition to the model."
        )
    read = {**settings, "inputs": resolve_inputs(settings.get("inputs"))}
    if isinstance(read.get("size"), list):
        read["size"] = tuple(read["size"])
    size, crop = read.get("size"), read.get("crop", 1.0)
    sides = size if isinstance(size, tuple) and len(size) == 2 else (size,)
    if size is not None and not all(isinstance(side, int) and side > 0 for side in sides):
        raise InputError(f"{spec}: size: expected pixels, one number or (height, width); received {size!r}.")
    if not isinstance(crop, int | float) or not 0 < crop <= 1:
        raise InputError(f"{spec}: crop: expected a share above 0, at most 1; received {crop!r}.")
    expect_one_of(f"{spec}: task", read.get("task", "classification"), ("classification", "segmentation"), InputError)
    return read
