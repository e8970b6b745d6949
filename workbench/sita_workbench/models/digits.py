"""The demo's reader of handwritten digits, as a model for every command."""

from __future__ import annotations

import numpy as np

from sita_adapters.errors import InputError, SitaError, install
from sita_adapters.inputs import ENCODINGS

from .loaded import LoadedModel

SPECS = ("digits", "digits:keras")
"""The texts that the model is loaded by."""


def load_digits_model(spec: str, weights: str | None) -> LoadedModel:
    """Return the digit reader with the weights that come with the package."""
    if weights is not None:
        raise InputError(f"--weights: {spec} has its own weights. Try: leave the option out.")
    from ..demo.demo import FrameworkName, load_framework
    from ..demo.digits import SIZE
    from .libraries import quiet_tensorflow

    quiet_tensorflow()
    name: FrameworkName = "keras" if spec == "digits:keras" else "torch"
    try:
        framework = load_framework(name)
    except (ImportError, ValueError) as error:  # Keras raises a ValueError for an unknown KERAS_BACKEND
        raise SitaError(f"{spec}: {name} could not be loaded: {error}. Try: {install('bench', name)}") from error
    model, names = framework.on_pictures(framework.load()), tuple(map(str, range(10)))
    return LoadedModel(spec, model, ENCODINGS["tf"], SIZE, 1.0, weights="trained on clean digits", names=names)


def reads_digits(loaded: LoadedModel) -> bool:
    """Whether a model is the digits network, or a file that was exported from it."""
    metadata = None if loaded.file is None else loaded.file.metadata
    return (loaded.spec if metadata is None else metadata.model) in SPECS


def as_pictures(images: np.ndarray) -> np.ndarray:
    """Return gray images (N, h, w) from 0 to 1 as RGB bytes (N, h, w, 3)."""
    return np.round(255 * images[..., None].repeat(3, axis=-1)).astype(np.uint8)
