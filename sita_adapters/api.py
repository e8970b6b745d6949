"""The public functions: each reads what the caller gave, then hands over to the backend that owns the model."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from .backend import Settings, backend_of
from .description import Description
from .inputs import Inputs, read_inputs
from .plan import make_plan
from .recipe import Recipe, read_recipe
from .selection import Layers
from .views import check_inputs

Model = TypeVar("Model")


def adapt(
    model: Model,
    recipe: Recipe | str = "ops",
    *,
    inputs: Inputs | str | None = None,
    scores: str | None = None,
    layers: Layers = None,
    **changes: Any,
) -> Model:
    """Return a model that adapts its BatchNorm statistics to every single image it is given.

    It is called as the one passed in, which stays as it was; the two share the memory of their weights. Any batch size
    goes: every image of a batch is adapted to on its own.

    - `recipe`: "ops" (the default: nothing to tune), "ops_shared" (about a point less, in half the time), "augbn",
      "bn", "ptn", "ensemble", "source", or a `Recipe`.
    - `inputs`: how pixels are encoded ("imagenet", …, or `Inputs`). Only views that distort colours need it.
    - `scores`: whether the model puts out "logits" or "probabilities"; None: as the framework's models do.
    - `layers`: which BatchNorm layers to adapt: names, globs, or a predicate on (name, layer); None: all.
    - every field of `Recipe` can be changed in passing: `adapt(model, "augbn", priors=0.9)`.

    >>> adapted = sita.adapt(model)
    >>> prediction = adapted(image_batch)
    """
    chosen = read_recipe(recipe, changes)
    settings = Settings(read_inputs(inputs), scores, layers)
    check_inputs(make_plan(chosen).views, settings.inputs)
    return cast("Model", backend_of(model).adapt(model, chosen, settings))


def describe(adapted: Any) -> Description:
    """Return what `adapt` did: recipe, rows an image costs, layers adapted and left alone. Print it for a table."""
    return backend_of(adapted).describe(adapted)


def unwrap(adapted: Model) -> Model:
    """Return a plain model again. It shares the adapted one's weights, and is on its device."""
    return cast("Model", backend_of(adapted).unwrap(adapted))
