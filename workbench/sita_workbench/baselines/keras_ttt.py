"""TTT for Keras models with a second head that was trained to tell by how much an image is turned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras import ops
from keras.src.models import Functional, Sequential

from sita_adapters.errors import InputError, ModelError, OutputError, suggestion
from sita_adapters.inputs import Inputs
from sita_keras.inspection import find_layers, walk

from .keras_copy import OWN, SOURCE, Measured, Statistics, Values
from .keras_training import SGD, KerasBaseline, log_probabilities
from .settings import TTTSettings, ttt_settings
from .views import random_of, rotated_views

if TYPE_CHECKING:
    from ..models.loaded import LoadedModel


class TTT(KerasBaseline):
    """TTT (Sun et al. 2020) for single images, its offline version; see `torch_ttt.TTT`.

    - `head`: the layer or model that returns the scores (N, 4) of 0°, 90°, 180° and 270°, counterclockwise. It is no
      part of the model, which returns the class scores alone.
    - `shared`: the name of the layer of the model whose output the head takes. All layers before it are trained, too.

    BatchNorm layers among these update their moving statistics by their own momentum, with the unbiased variance.
    """

    def __init__(
        self,
        model: keras.Model,
        inputs: Inputs,
        *,
        head: Any,
        shared: str,
        settings: TTTSettings | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(model, inputs)
        self.settings, self.seed = settings, seed
        _check(model, head, shared)
        self.rotations = self.copy.branch(head, shared)
        self.copy.train_on(self.copy.parameters(layer for _, layer in walk(self.rotations)))
        self.updated = {layer.sita_name: layer for layer in find_layers(self.rotations).values()}

    @classmethod
    def of(cls, loaded: LoadedModel) -> TTT:
        """Return TTT for a model of `sita bench`, whose attribute `ttt` has the head and the name of its input."""
        given: Any = getattr(loaded.model, "ttt", None)
        if not isinstance(given, dict) or set(given) != {"head", "shared"}:
            received = "none" if given is None else repr(given)
            raise ModelError(
                "ttt expects a model that was trained with a second head for rotations, and whose attribute `ttt` is "
                f"{{'head': layer, 'shared': name}}; {loaded.spec} has {received}. Try: set model.ttt in the function "
                "of file.py:function, or leave ttt out."
            )
        return cls(loaded.model, loaded.require_inputs(), **given)

    def objective(self, statistics: Statistics, values: Values, fixed: Values, batch: Any) -> tuple[Any, Measured]:
        """Return the cross-entropy of the head's scores of turned views, and what BatchNorm layers measured."""
        views, turns = batch
        scores, measured = self.copy.run(values, fixed, views, statistics, self.rotations)
        if tuple(scores.shape) != (views.shape[0], 4):
            raise OutputError(
                f"head: expected scores of four rotations, {(views.shape[0], 4)}; received {tuple(scores.shape)}. Try: "
                "the head that was trained to tell rotations."
            )
        return -ops.mean(ops.sum(ops.one_hot(turns, 4) * log_probabilities(scores, 1), axis=1)), measured

    def answer(self, image: np.ndarray) -> Any:
        """Make the updates on one image, and run it."""
        height, width = self.size(image)
        if height != width:
            raise InputError(
                f"ttt turns images by 90°, and expects square ones; received {height} × {width} pixels. Try: --size, "
                "or leave it out."
            )
        settings, pixels = self.settings or ttt_settings((height, width)), self.pixels(image)
        random, optimizer = random_of(pixels, self.seed), SGD(settings.lr)
        values, fixed = self.copy.start, self.copy.fixed
        for _ in range(settings.steps):
            views, turns = rotated_views(pixels, settings.batch, random)
            batch = ops.convert_to_tensor(self.encoded(views)), ops.convert_to_tensor(turns.astype(np.int32))
            gradients, measured = self.differentiate(OWN)(values, fixed, batch)
            values, fixed = optimizer.update(values, gradients), self._updated(fixed, measured)
        return self.scores(values, image, SOURCE, fixed)

    def _updated(self, fixed: Values, measured: Measured) -> Values:
        """Return the values of the other variables after one step: m ← momentum · m + (1 − momentum) · own."""
        positions = {id(variable): position for position, variable in enumerate(self.copy.others)}
        fixed = list(fixed)
        for name, layer in self.updated.items():
            for own in measured[name]:
                for variable, value in zip((layer.moving_mean, layer.moving_variance), own, strict=True):
                    position = positions[id(variable)]
                    fixed[position] = layer.momentum * fixed[position] + (1 - layer.momentum) * value
        return fixed


def _check(model: Any, head: Any, shared: Any) -> None:
    """Raise unless the head can be put behind the layer."""
    if not isinstance(model, Functional | Sequential):
        raise ModelError(
            f"ttt expects a functional or sequential Keras model, whose layers' outputs are known; received a "
            f"{type(model).__name__}. Try: keras.Model(inputs, outputs)."
        )
    names = [layer.name for layer in model.layers]
    if shared not in names:
        close = suggestion(shared, names) if isinstance(shared, str) else ""
        raise ModelError(
            f"shared: expected the name of a layer of {type(model).__name__}; received {shared!r}.{close} Try: a name "
            "of model.summary()."
        )
    if not isinstance(head, keras.layers.Layer) or not head.built:
        raise ModelError(
            f"head: expected a Keras layer or model with weights, outside of the model; received {head!r}. Try: build "
            "it, and load its weights, first."
        )
