"""Recipes that were measured on the layers of one model, and the layers of the model that they are used for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from .recipe import Recipe
from .reliability import ByReliability


def bind_recipe(recipe: Recipe, statistics: Callable[[], Mapping[str, tuple[Any, Any]]]) -> Recipe:
    """Return the recipe with this model's names for the layers that a rule was measured on.

    `statistics` returns the source's mean and variance for each adapted layer. It is called only if it is needed.
    """
    if not any(isinstance(prior, ByReliability) for prior in recipe.prior_values):
        return recipe
    read = statistics()
    bound = tuple(prior.bind(read) if isinstance(prior, ByReliability) else prior for prior in recipe.prior_values)
    return replace(recipe, priors=bound)


def rename_layers(recipe: Recipe, names: Mapping[str, str]) -> Recipe:
    """Return the recipe with other names for the layers of a model."""
    renamed = (prior.rename(names) if isinstance(prior, ByReliability) else prior for prior in recipe.prior_values)
    return replace(recipe, priors=tuple(renamed))
