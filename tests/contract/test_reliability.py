"""A rule by reliability belongs to the layers that it was measured on, whatever their names are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from reliable_rules import make_rule, statistics_of_small_network
from small_network import CLASSES, EPSILONS, images, make_weights

import sita_adapters as sita
from sita_adapters.errors import RecipeError

pytestmark = pytest.mark.slow_on("tensorflow", "jax")

STATISTICS = statistics_of_small_network()
RULE, _ = make_rule(STATISTICS)
OTHER_NAMES = dict(zip(EPSILONS, ("stem/norm", "bn3", "bn2"), strict=True))


def recipe(rule: Any) -> sita.Recipe:
    return sita.Recipe(priors=rule, n_views=0)


@pytest.mark.parametrize("layers", [None, ["bn1", "bn3"]], ids=str)
def test_layers_are_found_by_their_statistics(backend: Any, layers: Any) -> None:
    """Also if the names are those of other layers, and the rule has layers that are not adapted."""
    model, batch = backend.model(), images(3)
    renamed = recipe(RULE.rename(OTHER_NAMES))
    adapted = sita.adapt(model, sita.Recipe.from_json(renamed.to_json()), layers=layers)
    assert sita.describe(adapted).recipe.rule.layers.keys() == {*(layers or EPSILONS)}
    found, wanted = backend.run(adapted, batch), backend.run(sita.adapt(model, recipe(RULE), layers=layers), batch)
    np.testing.assert_array_equal(found, wanted)
    assert np.abs(found - backend.run(model, batch)).max() > 1e-2


REFUSED = {
    "another model": make_rule(statistics_of_small_network(make_weights(CLASSES + 1)))[0],
    "a layer is missing": make_rule({name: STATISTICS[name] for name in ("bn1", "bn2")})[0],
    "fewer channels": make_rule({name: (m[:-1], v[:-1]) for name, (m, v) in STATISTICS.items()})[0],
    "channels in another order": make_rule({name: (m[::-1], v[::-1]) for name, (m, v) in STATISTICS.items()})[0],
    "another mean": make_rule({name: (1.01 * m, v) for name, (m, v) in STATISTICS.items()})[0],
    "another variance": make_rule({name: (m, 1.01 * v) for name, (m, v) in STATISTICS.items()})[0],
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_rule_of_other_layers_is_refused(backend: Any, case: str) -> None:
    with pytest.raises(RecipeError, match=r"priors.*calibrate"):
        sita.adapt(backend.model(), recipe(REFUSED[case]))


def test_a_fine_tuned_model_needs_another_recipe(backend: Any) -> None:
    model = backend.model()
    backend.change_weights(model)
    with pytest.raises(RecipeError, match=r"priors.*calibrate"):
        sita.adapt(model, recipe(RULE))


def test_layers_with_the_same_statistics_need_their_names(backend: Any) -> None:
    weights = {**make_weights(), **{f"bn2/{each}": make_weights()[f"bn1/{each}"] for each in ("mean", "variance")}}
    model, batch = backend.model(weights=weights), images(2)
    rule, _ = make_rule(statistics_of_small_network(weights))
    alike = rule.layers["bn1"], rule.layers["bn2"]
    assert alike[0].agrees_with(alike[1].fingerprint, 6)
    found = backend.run(sita.adapt(model, recipe(rule)), batch)
    swapped = sita.ByReliability(layers={**rule.layers, "bn1": alike[1], "bn2": alike[0]})
    assert np.abs(backend.run(sita.adapt(model, recipe(swapped)), batch) - found).max() > 1e-3
    for names in (OTHER_NAMES, {"bn1": "bn1", "bn2": "other", "bn3": "bn3"}):
        with pytest.raises(RecipeError, match=r"priors.*calibrate"):
            sita.adapt(model, recipe(rule.rename(names)))
