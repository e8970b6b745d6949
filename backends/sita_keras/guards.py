"""What an adapted model refuses, because it would write through to the source model."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, NoReturn

import keras
from keras.src.trainers.trainer import Trainer

from sita_adapters.errors import CloneError, SharedWeightsError


class GuardedModel(keras.Model):
    """A model that refuses to be trained and to load weights: they are the source model's."""

    def fit(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: the weights are the source model's."""
        raise SharedWeightsError(
            "An adapted model shares its weights and statistics with the source model, which training would change. "
            "Remedy: train the source model (its new weights are seen here)."
        )

    train_on_batch = fit

    def set_weights(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: the weights are the source model's."""
        raise SharedWeightsError(
            "Setting the weights of an adapted model would overwrite the source model's, which it shares. "
            "Remedy: load them into the source model (they are seen here)."
        )

    load_weights = set_weights

    def save(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Save to a `.keras` file. It loads again adapted."""
        if str(filepath).endswith((".h5", ".hdf5")):
            raise CloneError(
                f"Expected a file name that ends in .keras; received {str(filepath)!r}. What is in an HDF5 file could "
                "not be adapted again. Remedy: adapted.save('model.keras')."
            )
        super().save(filepath, *args, **kwargs)


def refuse_training(what: str) -> SharedWeightsError:
    """Return the error for training that would reach the source model."""
    _give_values_back()
    return SharedWeightsError(
        f"{what} was called with training=True. An adapted model shares its weights and statistics with the source "
        "model, which training would change. Remedy: train the source model (its new weights are seen here)."
    )


def _give_values_back() -> None:
    """Let a `fit` on JAX, which takes the values out of all variables for its first step, put them back.

    It does so from `_jax_state` when it ends, also by an error; but it sets this only after a step. Without this, the
    error would leave the source model's variables empty.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        trainer: Any = frame.f_locals.get("self")
        if frame.f_code.co_name == "fit" and isinstance(trainer, Trainer) and hasattr(trainer, "jax_state_sync"):
            names = ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables")
            trainer._jax_state = dict(zip(names, frame.f_locals["state"], strict=True))
        frame = frame.f_back
