"""The three layers that an adapted Keras model is made of: Expand, Body, Collapse. They save what they were made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops, tree
from keras.src.models import Functional

from sita_adapters.errors import CloneError, InputError, RecipeError
from sita_adapters.inputs import Inputs
from sita_adapters.observation import is_observed, refuse_compiled, tell
from sita_adapters.outputs import flatten, rebuild
from sita_adapters.plan import Plan, make_plan, redraw, refuse_resampling
from sita_adapters.recipe import Recipe
from sita_adapters.view_steps import Canvas
from sita_adapters.views import Frame
from sita_adapters.voting import Scores, Verdict, decide

from .answers import is_tensor, of_most_certain
from .arrays import KERAS
from .calls import Call, entered
from .cutting import end_views
from .training import refuse_training
from .twin import find_layers, make_twin, track_variables

PACKAGE = "sita_keras"


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


class _Part(keras.layers.Layer):
    """What the three have in common. They compute in whatever precision they are given, under any dtype policy."""

    def __init__(self, recipe: Recipe, frame: Frame, **kwargs: Any) -> None:
        super().__init__(**{**kwargs, "dtype": "float32", "autocast": False})
        self.recipe, self.frame = recipe, frame
        self.plan: Plan = make_plan(recipe, frame)
        self.built = True  # there is nothing to build

    def get_config(self) -> dict[str, Any]:
        """Return what this layer was made of."""
        return {**super().get_config(), "recipe": recipe_to_config(self.recipe), "frame": self.frame}


@keras.saving.register_keras_serializable(package=PACKAGE)
class Expand(_Part):
    """(B, …) → (B·R, …): the rows of an image stand together."""

    def __init__(
        self, recipe: Recipe, frame: Frame, inputs: Inputs | None, channels_first: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(recipe, frame, **kwargs)
        self.inputs, self.channels_first = inputs, channels_first

    def call(self, images: Any) -> Any:
        """Return every image's rows."""
        return self.rows_of(images, self.plan)

    def rows_of(self, images: Any, plan: Plan) -> Any:
        """Return the rows that a Plan makes of every image."""
        if images.shape[0] == 0:
            raise InputError(
                f"Expected at least one image; received an empty batch of shape {tuple(images.shape)}. "
                "Remedy: leave empty batches out."
            )
        if plan.view_of_row == (0,):
            return images
        if self.recipe.resample:
            return self._drawn_anew(images, plan)
        return self._rows(images, plan)

    def _rows(self, images: Any, plan: Plan) -> Any:
        canvas = self._canvas(len(images.shape))
        views = {view: plan.views[view].apply(images, canvas) for view in sorted(set(plan.view_of_row))}
        stacked = ops.stack([views[view] for view in plan.view_of_row], axis=1)
        return ops.reshape(stacked, (-1, *ops.shape(images)[1:]))

    def _drawn_anew(self, images: Any, plan: Plan) -> Any:
        """Return the rows of images that each have views of their own."""
        try:
            values = _to_numpy(images)
        except _SYMBOLS as error:
            raise refuse_resampling("A compiled or exported model") from error
        each = []
        for place, image in enumerate(values):
            last = np.moveaxis(image, 0, -1) if self.channels_first else image
            own = redraw(plan, self.recipe, self.frame, last)
            each.append(self._rows(images[place : place + 1], own))
        return ops.concatenate(each, axis=0)

    def _canvas(self, rank: int) -> Canvas:
        space = min(rank - 2, 2)
        axes = tuple(range(-space, 0)) if self.channels_first else tuple(range(-space - 1, -1))
        return Canvas(KERAS, -space - 1 if self.channels_first else -1, axes, self.inputs)

    def compute_output_spec(self, images: Any) -> Any:
        """The batch grows by what an image costs."""
        batch = images.shape[0]
        leading = None if batch is None else batch * self.plan.rows
        return keras.KerasTensor((leading, *images.shape[1:]), dtype=images.dtype)

    def get_config(self) -> dict[str, Any]:
        """Return what this layer was made of."""
        return {
            **super().get_config(),
            "inputs": None if self.inputs is None else dataclasses.asdict(self.inputs),
            "channels_first": self.channels_first,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Expand:
        """Return the layer that was saved."""
        inputs = config.pop("inputs")
        return cls(recipe_from_config(config.pop("recipe")), inputs=inputs and Inputs(**inputs), **config)


@keras.saving.register_keras_serializable(package=PACKAGE)
class Body(_Part):
    """Runs the twin of the source model, whose chosen layers blend their statistics.

    Saved as the source model, and the places of the chosen layers (names that Keras makes up may change). It is
    adapted anew when it is loaded, so that nothing reloads silently unadapted.

    The twin's variables are tracked here, its layers are not: they belong to no one who could change, run or export
    them by themselves.
    """

    def __init__(
        self, source: keras.Model, chosen: tuple[int, ...], recipe: Recipe, frame: Frame, **kwargs: Any
    ) -> None:
        super().__init__(recipe, frame, **kwargs)
        found = list(find_layers(source).values())
        self.chosen = tuple(chosen)
        twin = make_twin(source, {id(found[place]) for place in chosen})
        self.hidden = _Hidden(source, twin)
        self.views_end_after: tuple[str, ...] = ()
        track_variables(self, *twin._flatten_layers())
        self.built = True
        self._post_build()

    def end_views(self) -> bool:
        """Have the rows that do not answer end after the last adapted layers; return whether they can."""
        ended = end_views(self.hidden.twin, self.plan.rows)
        if ended is not None:
            self.hidden.twin, self.views_end_after = ended
        return ended is not None

    @property
    def source(self) -> keras.Model:
        """The model that was adapted. Keras finds it here, too, when it saves and loads a body's weights."""
        return self.hidden.source

    @property
    def trainable(self) -> bool:
        """A flag of the adapted model alone: the source's variables have their own."""
        return bool(self._trainable)

    @trainable.setter
    def trainable(self, value: bool) -> None:
        self._trainable = bool(value)

    def call(self, rows: Any, training: bool | None = None) -> Any:
        """Run the twin on the rows of all images."""
        if training:
            raise refuse_training("An adapted model")
        return self.run_plan(rows, self.plan)

    def run_plan(self, rows: Any, plan: Plan) -> Any:
        """Run the twin on the rows that a Plan made."""
        call = Call(
            leading=ops.shape(rows)[0],
            rows=plan.rows,
            weights=ops.convert_to_tensor(plan.weights, dtype="float32"),
            priors=ops.convert_to_tensor([[prior] for prior in plan.priors], dtype="float32"),
            blends=plan.blends,
            shared=self.recipe.share == "batch",
            answers=plan.answers if self.views_end_after else (),
        )
        return self.run(rows, call)

    def run(self, rows: Any, call: Call) -> Any:
        """Run the twin inside this call."""
        with entered(call):
            return self.hidden.twin(self._arranged(rows), training=False)

    def _arranged(self, rows: Any) -> Any:
        """Return the rows as the model takes them: by name, or in a list, where it was made so."""
        twin = self.hidden.twin
        return tree.pack_sequence_as(twin._inputs_struct, [rows]) if isinstance(twin, Functional) else rows

    def compute_output_spec(self, rows: Any, training: bool | None = None) -> Any:
        """As the twin's."""
        outputs = self.hidden.twin.compute_output_spec(self._arranged(rows))
        if isinstance(self.hidden.twin, Functional) and isinstance(outputs, list | tuple) and len(outputs) == 1:
            return outputs[0]  # as calling it gives
        return outputs

    def save_own_variables(self, store: Any) -> None:
        """Leave it to the source."""

    def load_own_variables(self, store: Any) -> None:
        """Leave it to the source."""

    def get_config(self) -> dict[str, Any]:
        """Return the source model's config, and what was adapted of it."""
        # A plain twin was never compiled: what the source was compiled with would be saved, and asked for on loading.
        uncompiled = make_twin(self.source, set())
        return {
            **super().get_config(),
            "source": keras.saving.serialize_keras_object(uncompiled),
            "chosen": list(self.chosen),
            "views_end": bool(self.views_end_after),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Body:
        """Adapt the saved source model again."""
        source = keras.saving.deserialize_keras_object(config.pop("source"))
        views_end = config.pop("views_end", False)
        body = cls(source, tuple(config.pop("chosen")), recipe_from_config(config.pop("recipe")), **config)
        if views_end and not body.end_views():
            raise CloneError(
                f"The model was saved with its views ending early, which {type(source).__name__} does not allow here: "
                "another version of Keras, perhaps. Remedy: load it with the version that saved it, or adapt the "
                "source model again."
            )
        return body


class _Hidden:
    """Holds models where no tracker looks for layers."""

    def __init__(self, source: keras.Model, twin: keras.Model) -> None:
        self.source, self.twin = source, twin


@keras.saving.register_keras_serializable(package=PACKAGE)
class Collapse(_Part):
    """(B·R, …) → (B, …): the answer row, or what the candidates decide, in the structure that it comes in.

    `scores_path` says which of the output's tensors the scores are (a position would not do: JAX sorts the keys of a
    dict); of the others the most certain candidate's is taken. `answers_only` says that the other rows have ended.
    """

    def __init__(
        self,
        recipe: Recipe,
        frame: Frame,
        scores: Scores,
        scores_path: str,
        answers_only: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(recipe, frame, **kwargs)
        self.scores, self.scores_path, self.answers_only = scores, scores_path, answers_only

    def call(self, outputs: Any) -> Any:
        """Return an answer for every image."""
        if self.plan.rows == 1 and not is_observed(self):
            return outputs
        return self.answer(self.candidates_of(outputs, self.plan))

    def candidates_of(self, outputs: Any, plan: Plan) -> Any:
        """Return, of every tensor, the rows that answer: (B, P, …)."""

        def answers(rows: Any) -> Any:
            count = len(plan.answers) if self.answers_only else plan.rows
            by_row = ops.reshape(rows, (-1, count, *ops.shape(rows)[1:]))
            if len(plan.answers) == count:
                return by_row
            return ops.stack([by_row[:, row] for row in plan.answers], axis=1)

        return self._map(answers, outputs)

    def answer(self, candidates: Any) -> Any:
        """Return what the candidates, (B, P, …) in every tensor, decide."""
        found = flatten(candidates, is_tensor)
        verdict: Verdict | None = None
        if len(self.plan.answers) > 1 or is_observed(self):
            verdict = self._decide(dict(found)[self.scores_path])
        if verdict is None or len(self.plan.answers) == 1:
            return self._map(lambda array: array[:, 0], candidates)
        still = [p for p, row in enumerate(self.plan.answers) if not self.plan.moves_pixels(row)]
        decided = [
            ops.cast(verdict.scores, array.dtype)
            if path == self.scores_path
            else of_most_certain(array, verdict.entropies, still)
            for path, array in found
        ]
        return rebuild(candidates, iter(decided), is_tensor)

    def _decide(self, candidates: Any) -> Verdict:
        verdict = decide(
            ops.cast(candidates, keras.backend.result_type(candidates.dtype, "float32")),
            top_k=min(self.recipe.kept, len(self.plan.answers)),
            combine=self.recipe.combine,
            scores=self.scores,
            class_axis=-1,
            arrays=KERAS,
        )
        if is_observed(self):
            self._tell(verdict)
        return verdict

    def _map(self, function: Callable[[Any], Any], outputs: Any) -> Any:
        return rebuild(outputs, iter([function(array) for _, array in flatten(outputs, is_tensor)]), is_tensor)

    def _tell(self, verdict: Verdict) -> None:
        try:
            tell(self, verdict, self.plan, class_axis=-1, scores=self.scores, to_numpy=_to_numpy)
        except _SYMBOLS as error:
            raise refuse_compiled("The adapted model") from error

    def compute_output_spec(self, outputs: Any) -> Any:
        """The batch shrinks to the images."""

        def of_images(rows: Any) -> Any:
            images = None if rows.shape[0] is None else rows.shape[0] // self.plan.rows
            return keras.KerasTensor((images, *rows.shape[1:]), dtype=rows.dtype)

        return self._map(of_images, outputs)

    def get_config(self) -> dict[str, Any]:
        """Return what this layer was made of."""
        own = {name: getattr(self, name) for name in ("scores", "scores_path", "answers_only")}
        return {**super().get_config(), **own}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Collapse:
        """Return the layer that was saved."""
        return cls(recipe_from_config(config.pop("recipe")), **config)


_SYMBOLS = (NotImplementedError, TypeError, ValueError, AttributeError)
"""What the frameworks raise where the value of a symbol is asked for."""


def _to_numpy(array: Any) -> np.ndarray:
    return np.asarray(ops.convert_to_numpy(array))
