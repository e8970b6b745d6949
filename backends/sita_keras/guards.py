"""What an adapted model refuses, because it would write through to the source model."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, NoReturn

import keras
from keras.src.trainers.trainer import Trainer

from sita_adapters.errors import CloneError, InputError, SharedWeightsError


class GuardedModel(keras.Model):
    """A model that refuses to be trained and to load weights: they are the source model's."""

    adapted_call: Any

    def fit(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: the weights are the source model's."""
        raise SharedWeightsError(
            "An adapted model shares its weights and statistics with the source model, which training would change. "
            "Remedy: train the source model (its new weights are seen here)."
        )

    train_on_batch = fit

    def set_weights(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse where the weights are the source model's; what was loaded or cloned by Keras has its own."""
        self._check_owned()
        return super().set_weights(*args, **kwargs)

    def load_weights(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse where the weights are the source model's."""
        self._check_owned()
        return super().load_weights(*args, **kwargs)

    def _check_owned(self) -> None:
        if not self.adapted_call.owns_source:
            raise SharedWeightsError(
                "Setting the weights of an adapted model would overwrite the source model's, which it shares. "
                "Remedy: load them into the source model (they are seen here)."
            )

    def quantize(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: the layers that compute are the source model's."""
        raise SharedWeightsError(
            "An adapted model computes with the source model's weights, which quantize would replace. Remedy: quantize "
            "the source model, and adapt it then."
        )

    def get_layer(self, name: str | None = None, index: int | None = None) -> Any:
        """Return a layer of the adapted model itself; the source model's run only inside of a call."""
        try:
            return super().get_layer(name, index)
        except ValueError as error:
            raise InputError(
                f"An adapted model has no layer {name!r} of its own; the source model's layers run inside of one call. "
                f"Remedy: sita.unwrap(adapted).get_layer({name!r}), a plain model that shares the weights."
            ) from error

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
