"""Recipes as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

import sita_adapters as sita
from sita_adapters import ByShift, Recipe
from sita_adapters.errors import RecipeError

MADE = {
    **sita.RECIPES,
    "a rule and the source": Recipe(priors=(1.0, ByShift(strength=0.4)), n_views=1, combine="mean"),
    "beyond clean images": Recipe(priors=(1.0, sita.ByExcessShift({"bn1": 0.1, "layer1.0.bn1": 0.2})), n_views=0),
    "names": Recipe(priors=0.7, augment=("hflip", "rot90")),
}


@pytest.mark.parametrize("name", MADE)
def test_what_is_stored_comes_back(name: str) -> None:
    recipe = MADE[name]
    again = Recipe.from_json(recipe.to_json())
    assert again == recipe
    assert hash(again) == hash(recipe)
    assert str(again) == str(recipe)


def test_functions_cannot_be_stored() -> None:
    with pytest.raises(RecipeError, match="functions cannot be stored"):
        Recipe(augment=[lambda x: x]).to_json()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "to_json"),
        ("[1]", "Recipe.to_json.*received.*list"),
        (json.dumps({"lambda": 0.5}), "Recipe.to_json.*received.*lambda"),
        (json.dumps({"priors": [{"ByShift": {"speed": 1}}]}), "Recipe.to_json.*received.*speed"),
        (json.dumps({"priors": [{"other": {}}]}), "priors: expected one or more numbers"),
        (json.dumps({"priors": [2]}), "priors: expected one or more numbers"),
    ],
)
def test_what_is_no_recipe(text: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Recipe.from_json(text)
