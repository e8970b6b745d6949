"""The layer that an adapted Keras model is made of: the engine's call around a clone of the source model."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops
from keras.src.backend.common.symbolic_scope import in_symbolic_scope
from keras.src.models import Functional

from sita_adapters import engine
from sita_adapters.engine import Adaptation, Settings
from sita_adapters.errors import InputError, ModelError, RecipeError, SharedWeightsError
from sita_adapters.inputs import Inputs
from sita_adapters.outputs import OutputLayout, ScoresLayout, flatten, rebuild
from sita_adapters.probe import leave_out
from sita_adapters.recipe import Recipe
from sita_adapters.selection import LayerInfo
from sita_adapters.views import ImageLayout, SpatialKind

from .clone import Cloner, SharedVariable
from .inspection import arrange, find_layers, walk
from .ops import ENGINE, KERAS, trace_of

UNTRAINABLE = (
    "An adapted model computes with the source model's weights and statistics, and cannot be trained. Try: train the "
    "source model. Its adapted model sees the new weights."
)
READ_ONLY = (
    "The weights of an adapted model are the source model's, which it only reads. Try: load them into the source "
    "model, or into sita.unwrap(adapted), which shares them. The adapted model sees the new values."
)


@keras.saving.register_keras_serializable(package="sita_keras")
class AdaptedCall(keras.layers.Layer):
    """Images in, answers out. Inside, a clone of the source model whose chosen layers blend their statistics.

    Saved as the source model, how it was adapted, and what the probe established. Loading it adapts it again.
    """

    def __init__(  # noqa: PLR0917
        self,
        source: keras.Model,
        chosen: Sequence[int],
        recipe: Recipe,
        kind: SpatialKind,
        channels_first: bool,
        settings: Settings,
        **kwargs: Any,
    ) -> None:
        # It computes in whatever precision it is given, under any dtype policy.
        super().__init__(**{**kwargs, "dtype": "float32", "autocast": False})
        found = find_layers(source)
        layers = tuple(
            LayerInfo(name, type(layer).__name__, int(layer.moving_mean.shape[0]), position in chosen)
            for position, (name, layer) in enumerate(found.items())
        )
        name, axis = type(source).__name__, 1 if channels_first else -1
        self.adaptation = Adaptation(recipe, settings, layers, (kind,), model_name=name, channel_axis=axis)
        self.hidden = _Hidden(source, {id(found[info.name]): info.name for info in layers if info.adapted})
        # Models around this one see no layer of the clone, but its variables, which Keras needs to compile and export
        # them. On torch they see none of these: Keras would make parameters of them that anybody can write.
        if ENGINE != "torch":
            for variable in self.hidden.shared.values():
                self._tracker.add_to_store("non_trainable_variables", variable)
        self.owns_source = False
        self.built = True
        self._post_build()

    @property
    def layout(self) -> OutputLayout | None:
        """What the probe established; None before it."""
        return self.adaptation.layouts.get(())

    @property
    def saved_source(self) -> keras.Model:
        """The source model as `get_config` writes it. Keras finds it here when it saves and loads weights."""
        return self.hidden.source if self.owns_source else self.hidden.plain

    def call(self, images: Any, training: bool | None = None) -> Any:
        """Return an answer for every image."""
        if training:
            raise SharedWeightsError(f"An adapted model was called with training=True. {UNTRAINABLE}")
        if in_symbolic_scope():  # only shapes are asked for
            return self.hidden.clone(arrange(self.hidden.clone, images))
        return self.run(images, engine.predict)

    def run(self, images: Any, predict: Callable[..., Any]) -> Any:
        """Return what one of the engine's functions does for these images."""
        self.check_source()
        if images.shape[0] == 0:
            raise InputError(f"Expected at least one image; received an empty batch of shape {tuple(images.shape)}.")
        space = min(len(images.shape) - 2, 2)
        last = self.adaptation.channel_axis == -1
        axes = tuple(range(-space - 1, -1) if last else range(-space, 0))
        channel = -1 if last else -space - 1
        image_layout = ImageLayout(KERAS, self.adaptation.kinds[0], channel, axes, self.adaptation.settings.inputs)
        assert self.layout is not None
        return predict(engine.Call(self.adaptation, self.run_clone, image_layout, self.layout), [images])

    def run_clone(self, rows: list[Any], cloned: Any = None) -> Any:
        """Run the clone on the rows of all images. (Not named `forward`: on torch, Keras' layers have one.)"""
        cloned = cloned or self.hidden.clone
        context: Any = engine.thread.context
        context.rows = KERAS.at_least_one(context.rows)
        context.invalid, context.inner, context.trace = [], [], trace_of(rows[0])
        cloned._clear_losses()  # as Keras does with the layers of a model that it calls
        # As `predict` does. If it is left open, Keras' image layers (Resizing) switch later layers to training.
        mode = {"training": False} if cloned._call_has_training_arg or self.hidden.opaque else {}
        try:
            output = cloned(arrange(cloned, rows[0]), **mode)
        finally:  # not in the layer: whoever traces the inner graph would raise another error instead
            if context.inner:  # what it measures would leak, and a cached graph would not ask again
                raise ModelError(
                    f"The layer {context.inner[0]!r} runs inside an inner graph: a tf.function or jax.jit in the "
                    "model, or a loop such as a recurrence. Expected BatchNorm layers that the model calls itself. "
                    "Try: leave compilation to Keras, which compiles the whole model; unroll=True for a recurrent "
                    f"layer; or {leave_out(*context.inner)}."
                )
        if ENGINE == "jax" and self.layout is not None:
            # XLA compiles `maximum(NaN, 0)` to 0 on CPUs: behind a ReLU, such a row would look like any other.
            output = self._mark_invalid(output, self.layout.axes, rows[0], context.invalid)
        return output

    def _mark_invalid(self, output: Any, axes: Sequence[int | None], rows: Any, invalid: list[Any]) -> Any:
        """Return NaN for rows with values that are no numbers, in the images or in the statistics of a layer."""
        spoiled = ops.any(ops.logical_not(ops.isfinite(KERAS.precise(rows))), axis=range(1, len(rows.shape)))
        for flags in invalid:
            spoiled = ops.logical_or(spoiled, ops.any(ops.reshape(flags, (spoiled.shape[0], -1)), axis=1))
        arrays = [array for _, array in flatten(output, KERAS.is_array)]
        for position, (array, axis) in enumerate(zip(arrays, axes, strict=True)):
            if axis is not None and KERAS.is_float(array):
                column = [-1 if each == axis else 1 for each in range(len(array.shape))]
                arrays[position] = ops.where(ops.reshape(spoiled, column), ops.cast(float("nan"), array.dtype), array)
        return rebuild(output, arrays, KERAS.is_array)

    def check_source(self) -> None:
        """Raise if the source has different variables than when it was adapted, which its clone does not see."""
        if self.hidden.weights != [id(weight) for weight in self.hidden.source.weights]:
            raise ModelError(
                f"{self.adaptation.model_name} has different variables than when it was adapted (after quantize or "
                "enable_lora, perhaps), which its adapted model does not have. Try: adapt it again, sita.adapt(model)."
            )

    def compute_output_spec(self, images: Any, training: bool | None = None) -> Any:
        """Return what the clone returns for as many images. (A layer may only know its shapes, and not run on them.)"""
        cloned = self.hidden.clone
        outputs = cloned.compute_output_spec(arrange(cloned, images))
        if isinstance(cloned, Functional) and isinstance(outputs, list | tuple) and len(outputs) == 1:
            return outputs[0]  # as calling it gives
        return outputs

    def _get_own_losses(self) -> list[Any]:
        """Return what the source's regularizers and `add_loss` would add, computed on all rows."""
        trained = [v for v in self.hidden.shared.values() if v.source.trainable and v.regularizer is not None]
        return [*super()._get_own_losses(), *self.hidden.clone.losses, *(v.regularizer(v) for v in trained)]

    def save_own_variables(self, store: Any) -> None:
        """The source saves them."""

    def load_own_variables(self, store: Any) -> None:
        """The source loads them; refuse if this model does not own the source."""
        if not self.owns_source:
            raise SharedWeightsError(READ_ONLY)

    def get_config(self) -> dict[str, Any]:
        """Return the source model's config, and how it was adapted."""
        adaptation, settings = self.adaptation, self.adaptation.settings
        layout = None if self.layout is None else dataclasses.asdict(self.layout)
        if layout is not None:  # layers by their positions: names that Keras makes up may change
            names = [info.name for info in adaptation.layers]
            entries = layout["entries_per_row"].items()
            layout["entries_per_row"] = [[names.index(name), *counts] for name, counts in entries]
        try:
            recipe = adaptation.recipe.to_json()
        except RecipeError as error:
            what = str(error).partition(" Try:")[0]
            raise RecipeError(f"{what} Try: save the source model, and adapt it after loading.") from error
        return {
            **super().get_config(),
            # A plain clone was never compiled: what the source was compiled with would be asked for on loading.
            "source": keras.saving.serialize_keras_object(Cloner().clone(self.hidden.source)),
            "chosen": [position for position, info in enumerate(adaptation.layers) if info.adapted],
            "recipe": recipe,
            "kind": adaptation.kinds[0],
            "channels_first": adaptation.channel_axis == 1,
            "settings": dataclasses.asdict(
                # The layout has the position of what a function selects.
                dataclasses.replace(settings, output=None if callable(settings.output) else settings.output)
            ),
            "layout": layout,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> AdaptedCall:
        """Adapt the saved source model again."""
        config = dict(config)
        source = keras.saving.deserialize_keras_object(config.pop("source"))
        layout, recipe, settings = config.pop("layout"), Recipe.from_json(config.pop("recipe")), config.pop("settings")
        settings["inputs"] = settings["inputs"] and Inputs(**settings["inputs"])
        made = cls(source, recipe=recipe, settings=Settings(**settings), **config)
        made.owns_source = True
        if layout is not None:
            layers = made.adaptation.layers
            layout = {name: tuple(value) if isinstance(value, list) else value for name, value in layout.items()}
            entries = layout["entries_per_row"]
            layout["entries_per_row"] = {layers[position].name: tuple(counts) for position, *counts in entries}
            layout["scores"] = layout["scores"] and ScoresLayout(**layout["scores"])
            made.adaptation.layouts[()] = OutputLayout(**layout)
        return made


_OPAQUE = ("TorchModuleWrapper", "FlaxLayer", "JaxLayer", "TFSMLayer")
"""Keras layers that run another framework's model, in which BatchNorm layers cannot be adapted."""


class _Hidden:
    """Holds models where no tracker looks for layers."""

    def __init__(self, source: keras.Model, adapted: dict[int, str]) -> None:
        self.source, self.adapted = source, adapted
        self.shared: dict[int, SharedVariable] = {}
        self.clone = self.make_clone()
        self.weights = [id(weight) for weight in source.weights]
        self.opaque = [path for path, layer in walk(source) if type(layer).__name__ in _OPAQUE]

    def make_clone(self) -> keras.Model:
        """Return a clone of the source whose chosen layers blend."""
        return Cloner(self.adapted, self.shared).clone(self.source)

    @functools.cached_property
    def plain(self) -> keras.Model:
        """A clone without adapted layers."""
        return Cloner({}, self.shared).clone(self.source)
