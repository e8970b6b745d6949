"""The three layers that an adapted Keras model is made of: Expand, Body, Collapse. They save what they were made of."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
from keras import ops

from sita_adapters.errors import InputError, OutputError, RecipeError
from sita_adapters.inputs import Inputs
from sita_adapters.observation import tell
from sita_adapters.plan import Plan, make_plan
from sita_adapters.recipe import Recipe
from sita_adapters.views import Canvas, Frame, frame_of
from sita_adapters.voting import Scores, decide

from .arrays import KERAS
from .calls import Call, running
from .twin import make_twin, walk_layers

PACKAGE = "sita_keras"


def is_batchnorm(layer: Any) -> bool:
    """Whether a layer normalises with source statistics of its own."""
    return isinstance(layer, keras.layers.BatchNormalization) and layer.moving_mean is not None


def recipe_to_config(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe's fields as JSON holds them."""
    config = dataclasses.asdict(recipe)
    if callable(recipe.augment) or not _plain(recipe.augment):
        raise RecipeError(
            "augment: a model whose views are functions cannot be saved. Expected names; "
            f"received {recipe.augment!r}. Remedy: save the source model, and adapt it after loading."
        )
    return config


def _plain(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, tuple) and all(map(_plain, value)))


def recipe_from_config(config: dict[str, Any]) -> Recipe:
    """Return the recipe that `recipe_to_config` saved."""
    return Recipe(**config)


@keras.saving.register_keras_serializable(package=PACKAGE)
class Expand(keras.layers.Layer):
    """(B, …) → (B·R, …): the rows of an image stand together."""

    def __init__(
        self, recipe: Recipe, frame: Frame, inputs: Inputs | None, channels_first: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.recipe, self.frame, self.inputs, self.channels_first = recipe, frame, inputs, channels_first
        self.plan = make_plan(recipe, frame)

    def call(self, images: Any) -> Any:
        """Return every image's rows."""
        if self.plan.rows == 1:
            return images
        views = [view.apply(images, self._canvas(len(images.shape))) for view in self.plan.views]
        stacked = ops.stack([views[view] for view in self.plan.view_of_row], axis=1)
        return ops.reshape(stacked, (-1, *ops.shape(images)[1:]))

    def _canvas(self, rank: int) -> Canvas:
        space = min(rank - 2, 2)
        axes = tuple(range(-space, 0)) if self.channels_first else tuple(range(-space - 1, -1))
        return Canvas(KERAS, -space - 1 if self.channels_first else -1, axes, self.inputs)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """The batch grows by what an image costs."""
        batch = input_shape[0]
        return (None if batch is None else batch * self.plan.rows, *input_shape[1:])

    def get_config(self) -> dict[str, Any]:
        """Return what this layer was made of."""
        return {
            **super().get_config(),
            "recipe": recipe_to_config(self.recipe),
            "frame": self.frame,
            "inputs": None if self.inputs is None else dataclasses.asdict(self.inputs),
            "channels_first": self.channels_first,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Expand:
        """Return the layer that was saved."""
        inputs = config.pop("inputs")
        return cls(recipe_from_config(config.pop("recipe")), inputs=inputs and Inputs(**inputs), **config)


@keras.saving.register_keras_serializable(package=PACKAGE)
class Body(keras.layers.Layer):
    """Runs the twin of the source model, whose chosen layers blend their statistics.

    Saved as the source model's config and the places of the chosen layers (names that Keras makes up may change). It is
    adapted anew when it is loaded, so that nothing reloads silently unadapted.
    """

    def __init__(
        self, source: keras.Model, chosen: tuple[int, ...], recipe: Recipe, frame: Frame, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        found = list(find_layers(source).values())
        self.recipe, self.frame, self.chosen = recipe, frame, tuple(chosen)
        self.plan: Plan = make_plan(recipe, frame)
        self.twin = make_twin(source, {id(found[place]) for place in chosen})
        self._source = _Untracked(source)
        self.built = True

    @property
    def source(self) -> keras.Model:
        """The model that was adapted."""
        return self._source.model

    def call(self, rows: Any) -> Any:
        """Run the twin on the rows of all images."""
        call = Call(
            leading=ops.shape(rows)[0],
            rows=self.plan.rows,
            weights=ops.convert_to_tensor(self.plan.weights, dtype="float32"),
            priors=ops.convert_to_tensor([[prior] for prior in self.plan.priors], dtype="float32"),
            blends=self.plan.blends,
        )
        outer, running.call = running.call, call
        try:
            return self.twin(rows, training=False)
        finally:
            running.call = outer

    def compute_output_spec(self, rows: Any) -> Any:
        """As the twin's."""
        return self.twin.compute_output_spec(rows)

    def get_config(self) -> dict[str, Any]:
        """Return the source model's config, and what was adapted of it."""
        return {
            **super().get_config(),
            "source": keras.saving.serialize_keras_object(self.source),
            "chosen": list(self.chosen),
            "recipe": recipe_to_config(self.recipe),
            "frame": self.frame,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Body:
        """Adapt the saved source model again."""
        source = keras.saving.deserialize_keras_object(config.pop("source"))
        return cls(source, tuple(config.pop("chosen")), recipe_from_config(config.pop("recipe")), **config)


class _Untracked:
    """Holds the source model where no tracker looks for layers."""

    def __init__(self, model: keras.Model) -> None:
        self.model = model


@keras.saving.register_keras_serializable(package=PACKAGE)
class Collapse(keras.layers.Layer):
    """(B·R, …) → (B, …): the answer row, or what the candidates decide."""

    def __init__(self, recipe: Recipe, frame: Frame, scores: Scores, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.recipe, self.frame, self.scores = recipe, frame, scores
        self.plan = make_plan(recipe, frame)

    def call(self, outputs: Any) -> Any:
        """Return an answer for every image."""
        if self.plan.rows == 1:
            return outputs
        by_row = ops.reshape(outputs, (-1, self.plan.rows, *ops.shape(outputs)[1:]))
        if len(self.plan.answers) == 1:
            return by_row[:, self.plan.answers[0]]
        candidates = ops.stack([by_row[:, row] for row in self.plan.answers], axis=1)
        verdict = decide(
            ops.cast(candidates, keras.backend.result_type(candidates.dtype, "float32")),
            top_k=min(self.recipe.kept, len(self.plan.answers)),
            combine=self.recipe.combine,
            scores=self.scores,
            class_axis=-1,
            arrays=KERAS,
        )
        tell(verdict, self.plan)
        return ops.cast(verdict.scores, outputs.dtype)

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """The batch shrinks to the images."""
        batch = input_shape[0]
        return (None if batch is None else batch // self.plan.rows, *input_shape[1:])

    def get_config(self) -> dict[str, Any]:
        """Return what this layer was made of."""
        return {
            **super().get_config(),
            "recipe": recipe_to_config(self.recipe),
            "frame": self.frame,
            "scores": self.scores,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Collapse:
        """Return the layer that was saved."""
        return cls(recipe_from_config(config.pop("recipe")), **config)


def find_layers(model: keras.Model) -> dict[str, Any]:
    """Return the BatchNorm layers with source statistics, by path; where names repeat, a number is added."""
    found: dict[str, Any] = {}
    for path, layer in walk_layers(model):
        if is_batchnorm(layer):
            again = sum(name.partition("#")[0] == path for name in found)
            found[f"{path}#{again + 1}" if again else path] = layer
    return found


def image_frame(shape: tuple[int | None, ...], channels_first: bool) -> Frame:
    """Return the frame of a model's images; where a size is open, what every image has."""
    if len(shape) < 3:
        raise InputError(f"Expected a model of images (N, …, C); its input has the shape {shape}.")
    space = shape[2:] if channels_first else shape[1:-1]
    return "oblong" if None in space[-2:] else frame_of([size or 0 for size in space])


def check_scores(outputs: Any, candidates: int) -> None:
    """Raise where several candidates have nothing to vote on."""
    shape = getattr(outputs, "shape", None)
    if shape is None:
        raise OutputError(
            f"Expected the model to put out one tensor of scores (N, …, classes); it puts out a "
            f"{type(outputs).__name__}. Remedy: adapt a model of the scores alone, keras.Model(model.input, scores)."
        )
    if candidates > 1 and (len(shape) < 2 or (shape[-1] or 2) < 2):
        raise OutputError(
            "Expected scores (N, …, classes) of two classes or more to vote on; the model's output has the shape "
            f"{shape}. Remedy: take a recipe with one prior ('augbn')."
        )
