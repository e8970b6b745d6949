"""The public functions that make, describe and undo an adapted model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeVar, cast

from .backend import adaptation_of, backend_of
from .description import Description, describe_adaptation
from .errors import OutputError, expect_integer, expect_one_of
from .inputs import Inputs, resolve_inputs
from .outputs import Selector, check_selector
from .plan import make_plan, resolve_max_rows
from .recipe import DEFAULT, Prior, Recipe, RecipeName, Task, resolve_recipe
from .selection import Layers
from .state import Settings
from .views import Augment, check_inputs
from .voting import SCORES, Scores

Model = TypeVar("Model")


def adapt(
    model: Model,
    recipe: RecipeName | Recipe = DEFAULT,
    *,
    task: Task = "classification",
    inputs: Inputs | str | None = None,
    scores: Scores | Literal["none"] | None = None,
    output: Selector = None,
    class_axis: int | None = None,
    layers: Layers = None,
    max_rows: int | None = None,
    example: Any = None,
    priors: Prior | Sequence[Prior] | None = None,
    n_views: int | None = None,
    augment: Augment | None = None,
    shared_views: bool | None = None,
    candidates: Literal["priors", "views"] | None = None,
    combine: Literal["vote", "mean", "mix"] | None = None,
    adapted_weight: float | None = None,
    top_k: int | None = None,
    share: Literal["image", "batch"] | None = None,
    seed: int | None = None,
    resample: bool | None = None,
) -> Model:
    """Return a model that adapts its BatchNorm statistics to each image.

    You call the adapted model like the source model, and it returns the same kind of output. It adapts to each image of
    a batch independently (except with share="batch"). The source model is never modified, and both share the memory of
    the weights. Before the first prediction, a probe with a few random images checks that the model meets the contract
    (docs/contract.md) and finds the class scores in its output.

    Args:
        model: A trained PyTorch or Keras model with BatchNorm layers.
        recipe: "auto" (the default, two rows), "restore" (three rows), "shift" (one row), "ops" (the paper's method,
            22 rows), "ops_shared", "augbn", "bn", "ptn", "ensemble", "source", or a `Recipe`, for example one that
            `calibrate` returned.
        task: "segmentation" selects suitable views for a named recipe with views.
        inputs: How pixels are encoded ("imagenet", …, or `Inputs`). Views that distort colors need it;
            sharpening clips to the pixel range, or without it to the image's own.
        scores: What the class scores are: "logits", "probabilities", "log_probabilities", "sigmoid" (logits of
            independent labels) or "sigmoid_probabilities"; "none" if the output holds none. Only class scores are
            averaged. None: inferred from the values.
        output: Which part of a tuple, dict or record holds the scores: a key, a position, or a function of the output.
        class_axis: The class axis of the scores. None: inferred from the values, or the framework's default.
        layers: Which BatchNorm layers to adapt: names, globs, or a predicate of (name, layer). None: all.
        max_rows: Maximum number of rows that run at once. It limits memory and does not change the answers. None: the
            number of images in the batch, or 64 if that is larger; all rows in a compiled or exported model.
        example: An example input, to probe the model now: a batch, a tuple of arguments, or a dict of keyword
            arguments. Without it, PyTorch models are probed at their first call.
        priors, n_views, augment, shared_views, candidates, combine, adapted_weight, top_k, share, seed, resample:
            Override these fields of the recipe, which `Recipe` documents, for example priors=0.9. None: no change.

    Returns:
        The adapted model. In PyTorch it has the class of the source model; in Keras it is a `keras.Model`.

    Raises:
        SitaError: The model violates the contract, or an argument is wrong. The message says what to try.

    Example:
        >>> adapted = sita.adapt(model)
        >>> prediction = adapted(images)
    """
    fields = {
        "priors": priors,
        "n_views": n_views,
        "augment": augment,
        "shared_views": shared_views,
        "candidates": candidates,
        "combine": combine,
        "adapted_weight": adapted_weight,
        "top_k": top_k,
        "share": share,
        "seed": seed,
        "resample": resample,
    }
    changes = {name: value for name, value in fields.items() if value is not None}
    chosen = resolve_recipe(recipe, changes, task)
    check_selector(output)
    if scores is not None:
        expect_one_of("scores", scores, (*SCORES, "none"), OutputError)
    class_axis = None if class_axis is None else expect_integer("class_axis", class_axis, -99, OutputError)
    rows = resolve_max_rows(max_rows, chosen)
    settings = Settings(resolve_inputs(inputs), scores, output, class_axis, rows)
    check_inputs(make_plan(chosen).views, settings.inputs)
    return cast("Model", backend_of(model).adapt(model, chosen, settings, layers, example))


def describe(adapted: Any) -> Description:
    """Return a description of an adapted model: recipe, rows per image, layers, and the kind of output.

    Args:
        adapted: A model that `adapt` returned.

    Returns:
        A `Description`. Print it to see a table.

    Raises:
        SitaError: The model is not adapted.

    Example:
        >>> print(sita.describe(adapted))
    """
    return describe_adaptation(adaptation_of(adapted), backend_of(adapted).label)


def unwrap(adapted: Model) -> Model:
    """Return a plain model that shares the adapted model's weights and device.

    Args:
        adapted: A model that `adapt` returned.

    Returns:
        A plain model of the source model's class.

    Raises:
        SitaError: The model is not adapted.

    Example:
        >>> plain = sita.unwrap(adapted)
    """
    adaptation_of(adapted)  # raises if the model is not adapted
    return cast("Model", backend_of(adapted).unwrap(adapted))
