"""The source model's variables as its clone has them: read, never written."""

from __future__ import annotations

from typing import Any

import keras
from keras.src.backend.common.stateless_scope import in_stateless_scope

from sita_adapters import engine
from sita_adapters.errors import CloneError, SharedWeightsError


class SharedVariable(keras.Variable):
    """Reads a variable of the source model, and refuses to be written.

    On TensorFlow and torch it uses the source's memory. On JAX it keeps a copy: there, Keras gives a model's arrays
    away to the functions that it compiles (`donate_argnums`), and what was given away is lost to everybody. Arrays of
    JAX never change: a source that has another array was updated, and is copied again.
    """

    def __init__(self, source: Any) -> None:
        # Not by Keras' constructor, which would make a value. (TensorFlow's bookkeeping starts with _self_.)
        described = {
            name: value for name, value in vars(source).items() if name != "_value" and not name.startswith("_self_")
        }
        self.__dict__.update(described)
        self.source, self._trainable = source, False
        self._copied: Any = None
        self._copy: Any = None

    @property
    def _value(self) -> Any:
        """The source's value, where Keras looks for a variable's own."""
        value = self.source._value
        if keras.backend.backend() == "tensorflow":
            return value
        if value is None:  # the source runs right now, and Keras has its array
            return self._copy
        if value is not self._copied or self._is_taken():
            self._copied, self._copy = value, _copy(value)
        return self._copy

    @_value.setter
    def _value(self, value: None) -> None:
        """Let Keras on JAX take the copy, as it does with every variable while it predicts."""
        self._copy = None

    def assign(self, value: Any) -> Any:
        """Refuse. What Keras on JAX took, it may give back."""
        if in_stateless_scope() or engine.running_call() is not None:
            raise CloneError(
                f"The model writes to its variable {self.path!r} while it predicts, so its answers would depend on "
                "earlier calls. Expected a model that only reads its variables. Try: move what it counts or records "
                "out of `call`, or do it with training=True only."
            )
        if value is None or (value is not self._copy and not (self._is_taken() and hasattr(value, "is_deleted"))):
            raise SharedWeightsError(
                f"The variable {self.path!r} is the source model's; an adapted model, or one around it, can only read "
                "it. Try: write to the source model. Its adapted model sees the new values."
            )
        self._copy = value
        return value

    _direct_assign = assign

    def _restore_from_tensors(self, restored_tensors: Any) -> Any:
        """Refuse a checkpoint of TensorFlow."""
        return self.assign(restored_tensors)

    def _is_taken(self) -> bool:
        """Whether Keras on JAX has the copy: it took it out of the variable, or gave the array away."""
        taken = self._copied is not None and self._copy is None
        return taken or (hasattr(self._copy, "is_deleted") and bool(self._copy.is_deleted()))


def _copy(value: Any) -> Any:
    """Return an array of JAX that Keras may take; of torch, the same memory, through which no gradient passes."""
    if keras.backend.backend() == "torch":
        import torch

        return torch.nn.Parameter(value.detach(), requires_grad=False)
    import jax

    with jax.ensure_compile_time_eval():  # whatever Keras traces around this
        return value.copy()
