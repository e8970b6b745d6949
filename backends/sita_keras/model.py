"""The adapted Keras model: what it does as every model does, and what it refuses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import keras
from keras.src.models import Functional, Sequential

from sita_adapters.errors import InputError, ModelError, SharedWeightsError

from .call import UNTRAINABLE, AdaptedCall
from .clone import READ_ONLY
from .ops import KERAS

_lock = threading.Lock()


def _refuse(message: str) -> Callable[..., NoReturn]:
    """Return a method that raises this error."""

    def refuse(self: Any, *_: Any, **__: Any) -> NoReturn:
        raise SharedWeightsError(message)

    return refuse


@keras.saving.register_keras_serializable(package="sita_keras")
class AdaptedModel(keras.Model):
    """An adapted model: one AdaptedCall. It predicts, evaluates, saves and exports.

    It only reads the source model's weights. Training and writing are refused.
    """

    fit = train_on_batch = _refuse(UNTRAINABLE)
    set_weights = load_state_dict = half = bfloat16 = double = requires_grad_ = _refuse(READ_ONLY)  # most are torch's
    quantize = _refuse(
        "An adapted model computes with the source model's weights, which quantize would replace. Try: quantize the "
        "source model, then adapt it."
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        source = self.call_layer().hidden.source
        if hasattr(source, "output_names"):  # by which `compile` assigns losses and metrics to outputs
            self.output_names = source.output_names
        self._watchers = 0

    def call_layer(self) -> AdaptedCall:
        """Return the layer that does it all. No property: Keras loads weights through each of these again."""
        return next(layer for layer in self.layers if isinstance(layer, AdaptedCall))

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None, **others: Any) -> Any:
        """Return an answer for every image."""
        if others:
            raise InputError(
                f"Expected only images; also received {', '.join(others)}, which an adapted model cannot pass on. "
                "Try: adapt a model whose call takes the images, and passes the rest to the source model."
            )
        (images,), expected = keras.tree.flatten(inputs), self.inputs[0]
        sizes = zip(expected.shape, images.shape, strict=False)
        if len(images.shape) != len(expected.shape) or any(None not in size and len({*size}) > 1 for size in sizes):
            raise InputError(
                f"Expected images of shape {tuple(expected.shape)}; received {tuple(images.shape)}. Try: for images of "
                "another size, adapt a second model, sita.adapt(model, example=images)."
            )
        casts = KERAS.is_float(expected) and not KERAS.is_float(images)
        if casts and not isinstance(self.call_layer().hidden.source, Functional | Sequential):  # a graph casts, too
            raise InputError(
                f"Expected images of {expected.dtype}; received {images.dtype}. Try: "
                f"images.astype({expected.dtype!r}), or sita.adapt(model, example=images) for images of that type."
            )
        return super().call(inputs, training=training, mask=mask)

    def make_predict_function(self, force: bool = False) -> Any:
        """Return what `predict` runs; every `predict` calls this, even if it is compiled already."""
        self.call_layer().check_source()
        return super().make_predict_function(force)

    def make_test_function(self, force: bool = False) -> Any:
        """Return what `evaluate` runs."""
        self.call_layer().check_source()
        return super().make_test_function(force)

    @keras.Model.run_eagerly.getter  # type: ignore[untyped-decorator]  # with Keras' own setter
    def run_eagerly(self) -> bool:
        """Whether `predict` runs uncompiled; always with resample=True."""
        recipe = self.call_layer().adaptation.recipe
        return bool(self._watchers or recipe.resample or keras.Model.run_eagerly.fget(self))

    @contextmanager
    def uncompiled(self) -> Iterator[object]:
        """Make `predict` and `evaluate` run layer by layer while inside, in whichever thread; yield the adaptation."""

        def watch(more: int) -> None:
            with _lock:  # another thread may run the compiled functions: they are replaced, not deleted
                self._watchers += more
                self.make_predict_function(force=True)
                self.make_test_function(force=True)

        watch(1)
        try:
            yield self.call_layer().adaptation
        finally:
            watch(-1)

    def save_weights(self, *args: Any, **kwargs: Any) -> Any:
        """Save the source model's weights, as the source would: it can load them."""
        return self.call_layer().hidden.source.save_weights(*args, **kwargs)

    def load_weights(self, *args: Any, **kwargs: Any) -> Any:
        """Load the source model's weights if this model was itself loaded, and has a source of its own; else refuse."""
        if not self.call_layer().owns_source:
            raise SharedWeightsError(READ_ONLY)
        return self.call_layer().hidden.source.load_weights(*args, **kwargs)

    def count_params(self) -> int:
        """Return the number of the source model's weights."""
        return int(self.call_layer().hidden.source.count_params())

    def get_layer(self, name: str | None = None, index: int | None = None) -> Any:
        """Return a layer of the adapted model itself; the source model's run inside one call."""
        try:
            return super().get_layer(name, index)
        except ValueError as error:
            raise InputError(
                f"An adapted model has no layer {name!r}; the source model's layers run inside one call. "
                f"Try: sita.unwrap(adapted).get_layer({name!r}), a plain model that shares the weights."
            ) from error

    def save(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Save to a `.keras` file. It loads adapted."""
        if str(filepath).endswith((".h5", ".hdf5")):
            raise ModelError(
                f"Expected a file name that ends in .keras; received {str(filepath)!r}. A model from an HDF5 file "
                "could not be adapted again. Try: adapted.save('model.keras')."
            )
        super().save(filepath, *args, **kwargs)
