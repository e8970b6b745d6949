"""The refusal to train an adapted model, whose weights and statistics are the source model's."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from keras.src.trainers.trainer import Trainer

from sita_adapters.errors import SharedWeightsError


def refuse_training(what: str) -> SharedWeightsError:
    """Return the error of training that would reach the source model."""
    _give_values_back()
    return SharedWeightsError(
        f"{what} was called with training=True. An adapted model shares its weights and statistics with the source "
        "model, which training would change. Remedy: train the source model (its new weights are seen here)."
    )


def _give_values_back() -> None:
    """Let a `fit` on JAX, which takes the values out of all variables for its first step, put them back.

    It does so from `_jax_state` when it ends, by an error, too; but it sets this only after a step. Without this, the
    error would leave the source model's variables empty.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        trainer: Any = frame.f_locals.get("self")
        if frame.f_code.co_name == "fit" and isinstance(trainer, Trainer) and hasattr(trainer, "jax_state_sync"):
            names = ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables")
            trainer._jax_state = dict(zip(names, frame.f_locals["state"], strict=True))
        frame = frame.f_back
