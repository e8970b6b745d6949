"""The layer that an adapted Keras model is made of: the engine's call, around a clone of the source model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import keras
from keras import tree
from keras.src.models import Functional

from sita_adapters import engine
from sita_adapters.errors import BypassError, CloneError, InputError, RecipeError
from sita_adapters.gauge import Gauge
from sita_adapters.inputs import Inputs
from sita_adapters.recipe import Recipe
from sita_adapters.selection import LayerInfo
from sita_adapters.trial import Findings
from sita_adapters.view_steps import Canvas
from sita_adapters.views import SpatialKind

from .clone import clone, track_variables
from .guards import GuardedModel, refuse_training
from .inspection import find_layers, walk_layers
from .ops import KERAS
from .state import left_unchanged

PACKAGE = "sita_keras"


@keras.saving.register_keras_serializable(package=PACKAGE)
class AdaptedCall(keras.layers.Layer):
    """Images in, answers out. Inside, a clone of the source model whose chosen layers blend their statistics.

    Saved as the source model, and the places of the chosen layers (names that Keras makes up may change). It is
    adapted again when it is loaded, so that nothing reloads silently unadapted.

    The clone's variables are tracked here, its layers are not: nobody can change, run or export them by themselves.
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
        keeps_state: bool = False,
        called: tuple[int, ...] = (),
        **kwargs: Any,
    ) -> None:
        # It computes in whatever precision it is given, under any dtype policy.
        super().__init__(**{**kwargs, "dtype": "float32", "autocast": False})
        found = find_layers(source)
        self.chosen, self.channels_first = tuple(chosen), channels_first
        self.findings = axes and Findings(tuple((path, axis) for path, axis in axes), keeps_state)
        layers = tuple(
            LayerInfo(name, type(layer).__name__, int(layer.moving_mean.shape[0]), place in self.chosen)
            for place, (name, layer) in enumerate(found.items())
        )
        self.adaptation = engine.Adaptation(recipe, inputs, scores, output, max_rows, layers, (kind,))
        adapted = {id(layer): name for place, (name, layer) in enumerate(found.items()) if place in self.chosen}
        self.hidden = _Hidden(source, clone(source, adapted))
        track_variables(self, *self.hidden.clone._flatten_layers())
        self.called, self.owns_source = tuple(called), False
        self.built = True
        self._post_build()

    @property
    def source(self) -> keras.Model:
        """The model that was adapted. Keras finds it here, too, when it saves and loads the weights."""
        return self.hidden.source

    @property
    def trainable(self) -> bool:
        """A flag of the adapted model alone: the source's variables have their own."""
        return bool(self._trainable)

    @trainable.setter
    def trainable(self, value: bool) -> None:
        self._trainable = bool(value)

    def call(self, images: Any, training: bool | None = None) -> Any:
        """Return an answer for every image."""
        if training:
            raise refuse_training("An adapted model")
        return self._run(images, engine.predict)

    def call_with_gauge(self, images: Any) -> tuple[Any, Gauge]:
        """Return an answer for every image, and the gauge of shift: as outputs, which a graph can have."""
        found: tuple[Any, Gauge] = self._run(images, engine.predict_with_gauge)
        return found

    def _run(self, images: Any, predict: Callable[..., Any]) -> Any:
        """Make the engine predict, with the clone."""
        self.check_source()
        if images.shape[0] == 0:
            raise InputError(
                f"Expected at least one image; received an empty batch of shape {tuple(images.shape)}. "
                "Remedy: leave empty batches out."
            )
        canvas = self._canvas(len(images.shape))
        return predict([images], self.run_clone, self.adaptation, canvas, self.findings)

    def run_clone(self, rows: list[Any]) -> Any:
        """Run the clone on the rows of all images. (Not named `forward`: on torch, Keras' layers have one.)"""
        call, called = engine.running_call(), set[str]()
        if call is not None:
            call.entries = KERAS.at_least_one(call.entries)
            call.watch = call.watch or (lambda name, _: called.add(name))
        with left_unchanged((self.hidden.clone, self.source) if self._keeps_state else ()):
            output = self.hidden.clone(self._arrange(rows[0]), training=False)
        if call is not None and call.plan.blends:
            self._check_called(called)
        return output

    def _check_called(self, called: set[str]) -> None:
        """Raise where a layer did not run that ran in the trial: what it did then, unadapted, would be used again."""
        expected = [self.adaptation.layers[place].name for place in self.called]
        if missed := [name for name in expected if name not in called]:
            raise BypassError(
                f"{type(self.source).__name__} did not run {', '.join(missed)}, which it ran when it was tried out. "
                "Expected the same layers in every call. Remedy: where it compiles a part of itself (tf.function, "
                "jax.jit), which then keeps what was traced first, adapt a model that leaves this to Keras."
            )

    @property
    def _keeps_state(self) -> bool:
        return self.findings is not None and self.findings.keeps_state

    def check_source(self) -> None:
        """Raise where the source has other variables than when it was adapted, which its clone does not see."""
        if self.hidden.variables != variables_of(self.hidden.layers):
            raise CloneError(
                f"{type(self.source).__name__} has other variables than when it was adapted (by quantize or "
                "enable_lora, perhaps), which its adapted model does not have. Remedy: adapt it again, "
                "sita.adapt(model)."
            )

    def compute_output_spec(self, images: Any, training: bool | None = None) -> Any:
        """Return what the clone puts out for as many images."""
        cloned = self.hidden.clone
        with left_unchanged((cloned, self.source)):
            outputs = cloned.compute_output_spec(self._arrange(images))
        if isinstance(cloned, Functional) and isinstance(outputs, list | tuple) and len(outputs) == 1:
            return outputs[0]  # as calling it gives
        return outputs

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
        """Leave it to the source."""

    def get_config(self) -> dict[str, Any]:
        """Return the source model's config, and how it was adapted."""
        adaptation = self.adaptation
        # A plain clone was never compiled: what the source was compiled with would be saved, and asked for on loading.
        uncompiled = clone(self.source, {})
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
            "keeps_state": self._keeps_state,
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

    def __init__(self, source: keras.Model, cloned: keras.Model) -> None:
        self.source, self.clone = source, cloned
        self.layers = [source, *(layer for _, layer in walk_layers(source))]
        self.variables = variables_of(self.layers)


def variables_of(layers: Iterable[Any]) -> list[int]:
    """Return which variables these layers have, by their ids."""
    return [id(v) for layer in layers for v in (*layer._trainable_variables, *layer._non_trainable_variables)]


@keras.saving.register_keras_serializable(package=PACKAGE)
class AdaptedModel(GuardedModel):
    """An adapted model: one AdaptedCall. It predicts, evaluates, saves and exports; it refuses to be trained."""

    @property
    def adapted_call(self) -> AdaptedCall:
        """The layer that does it all."""
        return next(layer for layer in self.layers if isinstance(layer, AdaptedCall))

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None, **others: Any) -> Any:
        """Return an answer for every image."""
        if others:
            raise InputError(
                f"Expected images alone; received {', '.join(others)}, too, which an adapted model cannot hand on. "
                "Remedy: adapt a model whose call takes the images, and gives the source model the rest."
            )
        self._check_type(inputs)
        return super().call(inputs, training=training, mask=mask)

    def _check_type(self, inputs: Any) -> None:
        """Raise where whole numbers would become floats. (A functional source does this, too; another gets them.)"""
        (images,), expected = tree.flatten(inputs), self.inputs[0]
        casts = KERAS.is_float(expected) and not KERAS.is_float(images)
        if casts and not isinstance(self.adapted_call.source, Functional):
            raise InputError(
                f"Expected images of {expected.dtype}; received {images.dtype}. Remedy: "
                f"images.astype({expected.dtype!r}), or sita.adapt(model, example=images) for images of their type."
            )

    def make_predict_function(self, force: bool = False) -> Any:
        """Return what `predict` runs; every `predict` asks for it, also where it is compiled already."""
        self.adapted_call.check_source()
        return super().make_predict_function(force)

    def make_test_function(self, force: bool = False) -> Any:
        """Return what `evaluate` runs."""
        self.adapted_call.check_source()
        return super().make_test_function(force)

    @property
    def run_eagerly(self) -> bool:
        """Whether `predict` runs uncompiled; always where views are drawn by what is in an image."""
        return bool(self.adapted_call.adaptation.recipe.resample or keras.Model.run_eagerly.fget(self))

    @run_eagerly.setter
    def run_eagerly(self, value: bool) -> None:
        keras.Model.run_eagerly.fset(self, value)


def _stored(recipe: Recipe) -> str:
    """Return a recipe as JSON."""
    try:
        return recipe.to_json()
    except RecipeError as error:
        raise RecipeError(
            "augment: a model whose views are functions cannot be saved. Expected names; "
            f"received {recipe.augment!r}. Remedy: save the source model, and adapt it after loading."
        ) from error
