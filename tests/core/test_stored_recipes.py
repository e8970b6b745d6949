"""Recipes as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from reliable_rules import make_rule, statistics_of_small_network

import sita_adapters as sita
from sita_adapters import ByShift, Recipe
from sita_adapters.errors import RecipeError

RELIABLE, _ = make_rule(statistics_of_small_network(), caution=2.5, strength=0.9, half_shift=0.1)
STORED = RELIABLE.to_dict()
BN1 = STORED["layers"]["bn1"]

MADE = {
    **sita.RECIPES,
    "a rule and the source": Recipe(priors=(1.0, ByShift(strength=0.4)), n_views=1, combine="mean"),
    "by reliability": Recipe(priors=(1.0, RELIABLE), n_views=0, combine="mix", adapted_weight=0.5),
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
        *(
            (json.dumps({"priors": [{"ByReliability": stored}]}), message)
            for stored, message in (
                ({}, "Recipe.to_json.*layers"),
                ({**STORED, "layers": {}}, "layers"),
                ({**STORED, "layers": [BN1]}, "Recipe.to_json"),
                ({**STORED, "layers": {"bn1": BN1[:2]}}, "Recipe.to_json"),
                ({**STORED, "layers": {"bn1": [BN1[0], BN1[1], "no base64"]}}, "Recipe.to_json"),
                ({**STORED, "layers": {"bn1": [BN1[0], BN1[1], BN1[2][:8]]}}, "layers"),
                ({**STORED, "layers": {"bn1": [["a"], *BN1[1:]]}}, "Recipe.to_json|layers"),
                ({**STORED, "caution": -1}, "caution"),
                ({**STORED, "courage": 1}, "Recipe.to_json.*courage"),
            )
        ),
        (json.dumps({"priors": [{"other": {}}]}), "priors: expected one or more numbers"),
        (json.dumps({"priors": [2]}), "priors: expected one or more numbers"),
    ],
)
def test_what_is_no_recipe(text: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Recipe.from_json(text)
