"""The layer that an adapted Keras model is made of: the engine's call around a clone of the source model."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
from keras import ops
from keras.src.backend.common.symbolic_scope import in_symbolic_scope
from keras.src.models import Functional

from sita_adapters import engine
from sita_adapters.binding import rename_layers
from sita_adapters.errors import InputError, ModelError, RecipeError, SharedWeightsError
from sita_adapters.inputs import ImageLayout, Inputs
from sita_adapters.outputs import OutputLayout, ScoresLayout, flatten, rebuild
from sita_adapters.recipe import Recipe
from sita_adapters.selection import LayerInfo, leave_out
from sita_adapters.state import Adaptation, Call, ProbeResult, Settings, thread
from sita_adapters.views import SpatialKind

from .clone import Cloner, Clones
from .inspection import arrange, find_layers
from .ops import ENGINE, KERAS, current_trace

UNTRAINABLE = (
    "An adapted model computes with the source model's weights and statistics, and cannot be trained. Try: train the "
    "source model. Its adapted model sees the new weights. In a model that trains other layers around it: "
    "adapted.trainable = False."
)


@dataclass
class _Graph:
    """What the adapted layers of one forward pass need to know of Keras' backend, and what they find."""

    trace: Any  # what traces the forward pass
    inner: list[str] = field(default_factory=list)  # the adapted layers that something else traced
    invalid: list[Any] = field(default_factory=list)  # on JAX, for which entries of each layer something is not finite


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
        channel_axis: int,
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
        name = type(source).__name__
        self.adaptation = Adaptation(recipe, settings, layers, (kind,), model_name=name, channel_axis=channel_axis)
        self.hidden = Clones(source, {id(found[info.name]): info.name for info in layers if info.adapted})
        # Models around this one see no layer of the clone, but its variables, which Keras needs to compile and export
        # them. On torch they see none of these: Keras would make parameters of them that anybody can write.
        if ENGINE != "torch":
            for variable in self.hidden.shared.values():
                self._tracker.add_to_store("non_trainable_variables", variable)
        self.owns_source = False
        self.built = True
        self._post_build()

    @property
    def saved_source(self) -> keras.Model:
        """The source model as `get_config` writes it. Keras finds it here when it saves and loads weights."""
        return self.hidden.source if self.owns_source else self.hidden.plain

    def call(self, images: Any, training: bool | None = None) -> Any:
        """Return an answer for every image. If it is frozen, `training` has no effect, as on a frozen BatchNorm."""
        if training and self.trainable:
            raise SharedWeightsError(f"An adapted model was called with training=True. {UNTRAINABLE}")
        if in_symbolic_scope():  # only shapes are asked for
            return self.hidden.clone(arrange(self.hidden.clone, images), **self._mode(self.hidden.clone))
        return self.run(images).rebuild(KERAS)

    def run(self, images: Any, *, diagnosed: bool = False) -> engine.Answer:
        """Return the Answer for these images."""
        self.check_source()
        if images.shape[0] == 0:
            raise InputError(f"Expected at least one image; received an empty batch of shape {tuple(images.shape)}.")
        adaptation, space = self.adaptation, min(len(images.shape) - 2, 2)
        last = adaptation.channel_axis == -1
        axes = tuple(range(-space - 1, -1) if last else range(-space, 0))
        layout = ImageLayout(KERAS, -1 if last else 1 - len(images.shape), axes, adaptation.settings.inputs)
        plan = adaptation.plan_of(images.shape[1:-1] if last else images.shape[2:])
        call = Call(adaptation, plan, adaptation.latest_probe, layout, self.own_forward, [images])
        return engine.answer(call, diagnosed=diagnosed)

    @staticmethod
    def _mode(cloned: Any, opaque: bool = False) -> dict[str, bool]:
        """Return how `predict` calls a model. Without it, image layers (Resizing) switch later ones to training."""
        return {"training": False} if cloned._call_has_training_arg or opaque else {}

    def own_forward(self, rows: list[Any], cloned: Any = None) -> Any:
        """Run the clone on the rows of all images."""
        cloned = cloned or self.hidden.clone
        context: Any = thread.context
        context.rows = KERAS.at_least_one(context.rows)
        context.graph = _Graph(current_trace())
        cloned._clear_losses()  # as Keras does with the layers of a model that it calls
        try:
            output = cloned(arrange(cloned, rows[0]), **self._mode(cloned, bool(self.hidden.opaque)))
        finally:  # not in the layer: whoever traces the inner graph would raise another error instead
            if inner := list(dict.fromkeys(context.graph.inner)):
                raise ModelError(
                    f"The layer {inner[0]!r} runs inside an inner graph: a tf.function or jax.jit in the model, a "
                    "branch (ops.cond), or a recurrence. Try: leave compilation to Keras; ops.where for a branch; "
                    f"unroll=True for a recurrent layer; or {leave_out(inner, self.adaptation.layers)}."
                )
        if ENGINE == "jax" and context.probe is not None:
            # XLA compiles `maximum(NaN, 0)` to 0 on CPUs: behind a ReLU, such a row would look like any other.
            output = _mark_invalid(output, context)
        return output

    def check_source(self) -> None:
        """Raise if the source has different variables than when it was adapted, which its clone does not see."""
        if self.hidden.weights != [id(weight) for weight in self.hidden.source.weights]:
            raise ModelError(
                f"{self.adaptation.model_name} has different variables than when it was adapted (a layer was replaced, "
                "or quantize or enable_lora called). Try: adapt it again, sita.adapt(model)."
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
        shared = self.hidden.shared.values() if self.trainable else ()
        trained = [v for v in shared if v.source.trainable and v.regularizer is not None]
        return [*super()._get_own_losses(), *self.hidden.clone.losses, *(v.regularizer(v) for v in trained)]

    def save_own_variables(self, store: Any) -> None:
        """The source saves them."""

    def load_own_variables(self, store: Any) -> None:
        """The source loads them; the variables refuse other values, unless this model owns the source."""

    def get_config(self) -> dict[str, Any]:
        """Return the source model's config, and how it was adapted."""
        adaptation, settings = self.adaptation, self.adaptation.settings
        try:
            recipe = adaptation.recipe.to_json()
        except RecipeError as error:
            what = str(error).partition(" Try:")[0]
            raise RecipeError(f"{what} Try: save the source model, and adapt it after loading.") from error
        return {
            **super().get_config(),
            # A plain clone was never compiled: what the source was compiled with would be asked for on loading.
            "source": keras.saving.serialize_keras_object(Cloner().clone(self.hidden.source)),
            "names": [info.name for info in adaptation.layers],  # which Keras may make up anew
            "chosen": [position for position, info in enumerate(adaptation.layers) if info.adapted],
            "recipe": recipe,
            "kind": adaptation.kinds[0],
            "channel_axis": adaptation.channel_axis,
            "settings": dataclasses.asdict(
                # The layout has the position of what a function selects.
                dataclasses.replace(settings, output=None if callable(settings.output) else settings.output)
            ),
            "probe": _probe_to_config(adaptation) if adaptation.probes else None,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> AdaptedCall:
        """Adapt the saved source model again."""
        config = dict(config)
        if "probe" not in config:
            raise ModelError(
                "This adapted model was saved by another version of sita-adapters. Try: load and adapt the source "
                "model, sita.adapt(model)."
            )
        probed, recipe, settings = config.pop("probe"), Recipe.from_json(config.pop("recipe")), config.pop("settings")
        source = keras.saving.deserialize_keras_object(config.pop("source"))
        settings["inputs"] = settings["inputs"] and Inputs(**settings["inputs"])
        names = dict(zip(config.pop("names"), find_layers(source), strict=True))
        made = cls(source, recipe=rename_layers(recipe, names), settings=Settings(**settings), **config)
        made.owns_source = True
        if probed is not None:
            made.adaptation.probes[()] = _probe_from_config(probed, made.adaptation)
        return made


def _mark_invalid(output: Any, context: Any) -> Any:
    """Return NaN for rows for which the input of the first layer, or the statistics of any, are no numbers.

    (A model may replace NaN in its images.)
    """
    flags = [ops.any(ops.reshape(each, (context.rows, -1)), axis=1) for each in context.graph.invalid]
    if not flags:
        return output
    spoiled = functools.reduce(ops.logical_or, flags)
    arrays, axes = [array for _, array in flatten(output, KERAS.is_array)], context.probe.layout.axes
    for position, (array, axis) in enumerate(zip(arrays, axes, strict=False)):  # the engine checks the structure later
        if axis is not None and KERAS.is_float(array) and array.shape[axis : axis + 1] == spoiled.shape:
            column = [-1 if each == axis else 1 for each in range(len(array.shape))]
            arrays[position] = ops.where(ops.reshape(spoiled, column), ops.cast(float("nan"), array.dtype), array)
    return rebuild(output, arrays, KERAS.is_array)


def _probe_to_config(adaptation: Adaptation) -> dict[str, Any]:
    """Return what the probe established, with layers by their positions: names that Keras makes up may change."""
    found, names = adaptation.latest_probe, [info.name for info in adaptation.layers]
    entries = [[names.index(name), *counts] for name, counts in found.entries_per_row.items()]
    return {"layout": dataclasses.asdict(found.layout), "entries_per_row": entries, "notes": list(found.notes)}


def _probe_from_config(config: dict[str, Any], adaptation: Adaptation) -> ProbeResult:
    """Return what the probe established before the model was saved."""
    layout: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in config["layout"].items()
    }
    layout["shapes"] = tuple(map(tuple, layout["shapes"]))
    layout["scores"] = layout["scores"] and ScoresLayout(**layout["scores"])
    entries = {adaptation.layers[position].name: tuple(counts) for position, *counts in config["entries_per_row"]}
    return ProbeResult(OutputLayout(**layout), entries, notes=tuple(config["notes"]))
