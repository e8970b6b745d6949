"""The layer that an adapted Keras model is made of: the engine's call, around a clone of the source model."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any

import keras
from keras import ops, tree
from keras.src.models import Functional

from sita_adapters import engine
from sita_adapters.errors import BypassError, CloneError, InputError, RecipeError, SharedWeightsError
from sita_adapters.gauge import Gauge
from sita_adapters.inputs import Inputs
from sita_adapters.outputs import flatten, rebuild
from sita_adapters.recipe import Recipe
from sita_adapters.selection import LayerInfo
from sita_adapters.trial import Findings
from sita_adapters.view_steps import Canvas
from sita_adapters.views import SpatialKind

from .clone import clone
from .inspection import find_layers, walk_layers
from .ops import KERAS
from .variables import SharedVariable

PACKAGE = "sita_keras"


@keras.saving.register_keras_serializable(package=PACKAGE)
class AdaptedCall(keras.layers.Layer):
    """Images in, answers out. Inside, a clone of the source model whose chosen layers blend their statistics.

    Saved as the source model, and the positions of the chosen layers (names that Keras makes up may change). It is
    adapted again when it is loaded, so nothing reloads silently unadapted.

    The clone's layers are not tracked: nobody can change, run or export them separately. Of its variables, which only
    read the source's, models around this one see as much as Keras needs to compile and export them. On torch, where
    Keras would make parameters of them that anybody can write, they see none.
    """

    def __init__(  # noqa: PLR0917
        self,
        source: keras.Model,
        chosen: tuple[int, ...],
        recipe: Recipe,
        kind: SpatialKind,
        channels_first: bool = False,
        inputs: Inputs | None = None,
        scores: Any = "logits",
        output: Any = None,
        max_rows: int | None = None,
        axes: Any = None,
        called: tuple[int, ...] = (),
        **kwargs: Any,
    ) -> None:
        # It computes in whatever precision it is given, under any dtype policy.
        super().__init__(**{**kwargs, "dtype": "float32", "autocast": False})
        found = find_layers(source)
        self.chosen, self.channels_first = tuple(chosen), channels_first
        self.findings = axes and Findings(tuple((path, axis) for path, axis in axes))
        layers = tuple(
            LayerInfo(name, type(layer).__name__, int(layer.moving_mean.shape[0]), place in self.chosen)
            for place, (name, layer) in enumerate(found.items())
        )
        self.adaptation = engine.Adaptation(recipe, inputs, scores, output, max_rows, layers, (kind,))
        adapted = {id(layer): name for place, (name, layer) in enumerate(found.items()) if place in self.chosen}
        self.hidden = _Hidden(source, adapted)
        if keras.backend.backend() != "torch":
            for variable in self.hidden.shared.values():
                self._tracker.add_to_store("non_trainable_variables", variable)
        self.called, self.owns_source = tuple(called), False
        self.built = True
        self._post_build()

    @property
    def saved_source(self) -> keras.Model:
        """The source model as `get_config` writes it. Keras finds it here when it saves and loads weights."""
        return self.hidden.source if self.owns_source else self.hidden.plain

    def call(self, images: Any, training: bool | None = None) -> Any:
        """Return an answer for every image."""
        if training:
            raise SharedWeightsError(
                "An adapted model was called with training=True. It computes with the source model's weights and "
                "statistics, and cannot be trained. Try: train the source model. Its adapted model sees the new "
                "weights."
            )
        return self._run(images, engine.predict, training)

    def call_with_gauge(self, images: Any) -> tuple[Any, Gauge]:
        """Return an answer for every image, and the gauge of shift: as outputs, which a graph can have."""
        found: tuple[Any, Gauge] = self._run(images, engine.predict_with_gauge)
        return found

    def _run(self, images: Any, predict: Callable[..., Any], training: bool | None = None) -> Any:
        """Make the engine predict, with the clone."""
        self.check_source()
        if images.shape[0] == 0:
            raise InputError(
                f"Expected at least one image; received an empty batch of shape {tuple(images.shape)}. "
                "Try: leave empty batches out."
            )
        canvas = self._canvas(len(images.shape))

        def forward(rows: list[Any]) -> Any:
            return self.run_clone(rows, training)

        return predict([images], forward, self.adaptation, canvas, self.findings)

    def run_clone(self, rows: list[Any], training: bool | None = None) -> Any:
        """Run the clone on the rows of all images. (Not named `forward`: on torch, Keras' layers have one.)"""
        call: Any = engine.running_call()
        called = set[str]()
        call.entries = KERAS.at_least_one(call.entries)
        call.watch = call.watch or (lambda name, _: called.add(name))
        call.invalid = []
        self.hidden.clone._clear_losses()  # as Keras does with the layers of a model that it calls
        output = self.hidden.clone(self._arrange(rows[0]), training=training)
        if call.plan.blends:
            self._check_called(called)
        if keras.backend.backend() == "jax" and self.findings is not None:
            output = self._mark_invalid(output, rows[0], call.invalid)
        return output

    def _mark_invalid(self, output: Any, rows: Any, invalid: list[Any]) -> Any:
        """Return NaN for rows with values that are no numbers, in the images or in the statistics of a layer.

        XLA compiles `maximum(NaN, 0)` to 0 on CPUs: behind a ReLU, such a row would look like any other.
        """
        spoiled = ops.any(ops.logical_not(ops.isfinite(KERAS.precise(rows))), axis=range(1, len(rows.shape)))
        for flags in invalid:
            by_row = ops.any(ops.reshape(flags, (spoiled.shape[0], -1)), axis=1) if flags.shape[0] > 1 else flags
            spoiled = ops.logical_or(spoiled, by_row)

        def mark(array: Any, axis: int | None) -> Any:
            if not KERAS.is_float(array) or axis is None or axis < 0:
                return array
            column = [1] * len(array.shape)
            column[axis] = -1
            return ops.where(ops.reshape(spoiled, column), ops.cast(float("nan"), array.dtype), array)

        arrays = [array for _, array in flatten(output, KERAS.is_array)]
        axes = (axis for _, axis in self.findings.axes)
        return rebuild(output, map(mark, arrays, axes), KERAS.is_array)

    def _check_called(self, called: set[str]) -> None:
        """Raise where a layer did not run that ran in the trial: what it did then, unadapted, would be used again."""
        expected = [self.adaptation.layers[place].name for place in self.called]
        if missed := [name for name in expected if name not in called]:
            raise BypassError(
                f"{self.source_name} did not run {', '.join(missed)}, which it ran when it was probed. "
                "Expected the same layers in every call. Try: if it compiles a part of itself (tf.function, jax.jit), "
                "which keeps what was traced first, adapt a model that leaves this to Keras."
            )

    def check_source(self) -> None:
        """Raise where the source has other variables than when it was adapted, which its clone does not see."""
        if self.hidden.ids != variable_ids(self.hidden.layers):
            raise CloneError(
                f"{self.source_name} has other variables than when it was adapted (after quantize or enable_lora, "
                "perhaps), which its adapted model does not have. Try: adapt it again, sita.adapt(model)."
            )

    @property
    def source_name(self) -> str:
        """The name of the source model's class."""
        return type(self.hidden.source).__name__

    def compute_output_spec(self, images: Any, training: bool | None = None) -> Any:
        """Return what the clone returns for as many images."""
        cloned = self.hidden.clone
        outputs = cloned.compute_output_spec(self._arrange(images))
        if isinstance(cloned, Functional) and isinstance(outputs, list | tuple) and len(outputs) == 1:
            return outputs[0]  # as calling it gives
        return outputs

    def _get_own_losses(self) -> list[Any]:
        """Return what the source's regularizers and `add_loss` would add, computed on all rows."""
        trained = [v for v in self.hidden.shared.values() if v.source.trainable and v.regularizer is not None]
        return [*super()._get_own_losses(), *self.hidden.clone.losses, *(v.regularizer(v) for v in trained)]

    def _arrange(self, rows: Any) -> Any:
        """Return the rows as the model takes them: by name, or in a list, where it was made so."""
        cloned = self.hidden.clone
        return tree.pack_sequence_as(cloned._inputs_struct, [rows]) if isinstance(cloned, Functional) else rows

    def _canvas(self, rank: int) -> Canvas:
        space = min(rank - 2, 2)
        axes = tuple(range(-space, 0)) if self.channels_first else tuple(range(-space - 1, -1))
        channel = -space - 1 if self.channels_first else -1
        return Canvas(KERAS, self.adaptation.kinds[0], channel, axes, self.adaptation.inputs)

    def save_own_variables(self, store: Any) -> None:
        """Leave it to the source."""

    def load_own_variables(self, store: Any) -> None:
        """Leave it to the source; refuse where that is somebody else's."""
        if not self.owns_source:
            raise SharedWeightsError(
                "The weights of an adapted model are the source model's, which it only reads. Try: load them into the "
                "source model."
            )

    def get_config(self) -> dict[str, Any]:
        """Return the source model's config, and how it was adapted."""
        adaptation = self.adaptation
        # A plain clone was never compiled: what the source was compiled with would be saved, and asked for on loading.
        uncompiled = clone(self.hidden.source, {})
        return {
            **super().get_config(),
            "source": keras.saving.serialize_keras_object(uncompiled),
            "chosen": list(self.chosen),
            "recipe": _stored(adaptation.recipe),
            "kind": adaptation.kinds[0],
            "channels_first": self.channels_first,
            "inputs": adaptation.inputs and dataclasses.asdict(adaptation.inputs),
            "scores": adaptation.scores,
            "output": adaptation.output,
            "max_rows": adaptation.max_rows,
            "axes": self.findings and [list(each) for each in self.findings.axes],
            "called": list(self.called),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> AdaptedCall:
        """Adapt the saved source model again."""
        source = keras.saving.deserialize_keras_object(config.pop("source"))
        inputs = config.pop("inputs")
        recipe = Recipe.from_json(config.pop("recipe"))
        made = cls(source, recipe=recipe, inputs=inputs and Inputs(**inputs), **config)
        made.owns_source = True
        return made


class _Hidden:
    """Holds models where no tracker looks for layers."""

    def __init__(self, source: keras.Model, adapted: dict[int, str]) -> None:
        self.source = source
        self.shared: dict[int, SharedVariable] = {}
        self.clone = clone(source, adapted, self.share)
        self.layers = [source, *(layer for _, layer in walk_layers(source))]
        self.ids = variable_ids(self.layers)

    @functools.cached_property
    def plain(self) -> keras.Model:
        """A clone without adapted layers."""
        return clone(self.source, {}, self.share)

    def share(self, variable: Any) -> SharedVariable:
        """Return what reads a variable of the source."""
        return self.shared.setdefault(id(variable), SharedVariable(variable))


def variable_ids(layers: Iterable[Any]) -> list[int]:
    """Return which variables these layers have."""
    return [id(v) for layer in layers for v in (*layer._trainable_variables, *layer._non_trainable_variables)]


def _stored(recipe: Recipe) -> str:
    """Return a recipe as JSON."""
    try:
        return recipe.to_json()
    except RecipeError as error:
        raise RecipeError(
            "augment: a model whose views are functions cannot be saved. Expected names; "
            f"received {recipe.augment!r}. Try: save the source model, and adapt it after loading."
        ) from error
