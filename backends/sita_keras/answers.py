"""What a model puts out: which of its tensors the scores are, and what becomes of the others."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from sita_adapters.errors import OutputError
from sita_adapters.outputs import Selector, find_scores, flatten
from sita_adapters.plan import Plan
from sita_adapters.voting import Scores


def is_tensor(value: Any) -> bool:
    """Whether this is a tensor of a model's output, with values or without."""
    return bool(keras.ops.is_tensor(value)) or isinstance(value, keras.KerasTensor | np.ndarray)


def could_be_scores(tensor: Any) -> bool:
    """Whether an output's tensor can be voted on."""
    return len(tensor.shape) > 1 and bool(keras.backend.is_float_dtype(keras.backend.standardize_dtype(tensor.dtype)))


def of_most_certain(array: Any, entropies: Any, candidates: list[int]) -> Any:
    """Return, of an array (B, P, …), the candidate with the lowest entropy, on average over an image's places.

    Candidates are these rather than all where some are views that move pixels: a feature map would come back turned.
    One is compared with the best so far, rather than all at once by argmin, which not every exporter follows.
    """
    places = list(range(2, len(entropies.shape)))
    means = ops.mean(entropies, axis=places) if places else entropies
    column = (-1, *[1] * (len(array.shape) - 2))
    first, *others = candidates
    chosen, lowest = array[:, first], means[:, first]
    for candidate in others:
        better = means[:, candidate] < lowest
        chosen = ops.where(ops.reshape(better, column), array[:, candidate], chosen)
        lowest = ops.where(better, means[:, candidate], lowest)
    return chosen


def find_path(outputs: Any, selector: Selector, scores: Scores, plan: Plan) -> str:
    """Return which of the output's tensors the scores are; raise where several candidates have nothing to vote on."""
    for path, array in flatten(outputs, is_tensor):
        if len(array.shape) == 0:
            raise OutputError(
                f"The output has a number for the whole batch ({path}), which the views' rows would enter: a loss, "
                "perhaps. Remedy: adapt a model of the scores alone, keras.Model(model.input, scores)."
            )
    found = flatten(outputs, is_tensor)
    if len(plan.answers) == 1 and selector is None:
        return _likely_path(outputs, found)
    place = find_scores(outputs, selector, is_tensor, could_be_scores)
    shape = found[place][1].shape
    if not keras.backend.is_float_dtype(found[place][1].dtype):
        raise OutputError(
            f"Expected scores in floating point to vote on; the output has integers of shape {shape}: labels, perhaps. "
            "Remedy: adapt a model that puts the scores out, or say with output= where they are."
        )
    least = 1 if scores.startswith("sigmoid") else 2
    if len(plan.answers) > 1 and (len(shape) < 2 or (shape[-1] or least) < least):
        raise OutputError(
            "Expected scores (N, …, classes) of two classes or more to vote on; the model's output has the shape "
            f"{shape}. Remedy: scores='sigmoid_probabilities' (or 'sigmoid', of logits) where each label is true or "
            "not by itself, or a recipe with one prior ('augbn')."
        )
    if len(shape) > 2 and any(map(plan.moves_pixels, plan.answers)):
        raise OutputError(
            f"The model answers for every place (output shape {shape}), and views that move pixels cannot be averaged "
            "place by place. Remedy: task='segmentation', or an ensemble of views that keep them: augment='blur'."
        )
    return found[place][0]


def _likely_path(outputs: Any, found: list[tuple[str, Any]]) -> str:
    """Return where one candidate's scores are, which nothing but an observer asks for."""
    try:
        return found[find_scores(outputs, None, is_tensor, could_be_scores)][0]
    except OutputError:
        return found[0][0]
