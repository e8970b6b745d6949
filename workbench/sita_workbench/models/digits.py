"""The demo's network, which reads handwritten digits, as a model for every command."""

from __future__ import annotations

import importlib

import numpy as np

from sita_adapters.errors import InputError, SitaError, install
from sita_adapters.inputs import ENCODINGS

from ..demo.digits import SIZE
from .libraries import quiet_tensorflow
from .loaded import LoadedModel

SPECS = ("digits", "digits:keras")
"""The texts that the model is loaded by."""


def load_digits_model(spec: str, weights: str | None = None) -> LoadedModel:
    """Return the digits network with the weights that come with the package."""
    if weights is not None:
        raise InputError(f"--weights: {spec} has its own weights. Try: omit the option.")
    name = "keras" if spec == "digits:keras" else "torch"
    quiet_tensorflow()
    try:
        network = importlib.import_module(f"sita_workbench.demo.digits_{name}")
    except (ImportError, ValueError) as error:  # Keras raises a ValueError for an unknown KERAS_BACKEND
        backend = "; set KERAS_BACKEND to one of tensorflow, jax, torch" if name == "keras" else ""
        raise SitaError(
            f"{spec}: {name} could not be loaded: {error}. Try: {install('bench', name)}{backend}."
        ) from error
    names, origin = tuple(map(str, range(10))), "trained on clean digits"
    return LoadedModel(spec, network.load(), ENCODINGS["tf"], SIZE, 1.0, weights=origin, names=names)


def as_pictures(images: np.ndarray) -> np.ndarray:
    """Return gray images (N, h, w) from 0 to 1 as RGB bytes (N, h, w, 3)."""
    return np.round(255 * images[..., None].repeat(3, axis=-1)).astype(np.uint8)
