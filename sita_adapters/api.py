"""The public functions: each reads what the caller gave, then hands over to the backend that owns the model."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from .backend import Settings, backend_of, read_adaptation
from .description import Description
from .inputs import Inputs, read_inputs
from .outputs import Selector, check_selector
from .plan import make_plan, read_max_rows
from .recipe import DEFAULT, Recipe, Task, check_share, read_recipe
from .selection import Layers
from .views import check_inputs

Model = TypeVar("Model")


def adapt(
    model: Model,
    recipe: Recipe | str = DEFAULT,
    *,
    task: Task = "classification",
    inputs: Inputs | str | None = None,
    scores: str | None = None,
    output: Selector = None,
    layers: Layers = None,
    max_rows: int | None = None,
    example: Any = None,
    **changes: Any,
) -> Model:
    """Return a model that adapts its BatchNorm statistics to every single image it is given.

    It is called as the one passed in, which stays as it was; the two share the memory of their weights. Any batch size
    goes: every image of a batch is adapted to on its own (but for share="batch").

    - `recipe`: "auto" (the default: nothing to tune, two rows), "shift" (one row, more cautious), "ops" (the paper's,
      22 rows), "ops_shared", "augbn", "bn", "ptn", "ensemble", "source", or a `Recipe`.
    - `task`: "segmentation" takes views that suit it, where the recipe is named and `augment` is not given. The vote is
      per pixel wherever a model answers for every pixel, whatever the task.
    - `inputs`: how pixels are encoded ("imagenet", …, or `Inputs`). Only views that distort colours need it.
    - `scores`: whether the model puts out "logits" or "probabilities"; or "sigmoid", the logits of labels that are each
      true or not by themselves, or "sigmoid_probabilities". None: as the framework's models do.
    - `output`: which part of a tuple, dict or record the scores are: a key, a position, or a function of the output;
      None: `logits`, `out`, or the only tensor that can be. What else has rows comes from the most certain candidate.
    - `layers`: which BatchNorm layers to adapt: names, globs, or a predicate on (name, layer); None: all.
    - `max_rows`: run no more rows at once, so that memory stays flat; the answers are the same.
    - `example`: what the model is called with (a batch, a tuple of arguments, or a dict of keyword arguments). A trial
      finds out where an output holds the images, and that they do not mix; it takes as long as seven plain images. A
      PyTorch model has it at its first call with inputs of a kind, or here: needed before torch.compile if its outputs
      are more than one entry for each image. A Keras model always has it here.
    - every field of `Recipe` can be changed in passing: `adapt(model, "augbn", priors=0.9)`.

    >>> adapted = sita.adapt(model)
    >>> prediction = adapted(image_batch)
    """
    chosen = read_recipe(recipe, changes, task)
    check_selector(output)
    settings = Settings(read_inputs(inputs), scores, output, layers, read_max_rows(max_rows), example)
    check_share(chosen, settings.max_rows)
    check_inputs(make_plan(chosen).views, settings.inputs)
    return cast("Model", backend_of(model).adapt(model, chosen, settings))


def describe(adapted: Any) -> Description:
    """Return what `adapt` did: recipe, rows per image, layers adapted and left alone. Print it for a table."""
    adaptation, backend = read_adaptation(adapted), backend_of(adapted)
    return Description(
        model=backend.source_name(adapted),
        backend=backend.label,
        recipe=adaptation.recipe,
        inputs=adaptation.inputs,
        scores=adaptation.scores,
        layers=adaptation.layers,
        max_rows=adaptation.max_rows,
        kinds=adaptation.kinds,
    )


def unwrap(adapted: Model) -> Model:
    """Return a plain model again. It shares the adapted one's weights, and is on its device."""
    read_adaptation(adapted)
    return cast("Model", backend_of(adapted).unwrap(adapted))
