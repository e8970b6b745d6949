"""Rules by reliability as values: what they accept, keep and compare."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from reliable_rules import make_rule, statistics_of_small_network

import sita_adapters as sita
from sita_adapters.errors import RecipeError
from sita_adapters.reliability import ChannelSpread, fingerprint_of

STATISTICS = statistics_of_small_network()
RULE, _ = make_rule(STATISTICS, caution=2.5)
FOUR = (1.0, 0.1, 1.0, 0.1)
GOOD = {"fingerprint": FOUR, "means": np.ones(3), "variances": np.ones(3)}


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda rule: pickle.loads(pickle.dumps(rule))])
def test_a_copy_is_equal(again: Any) -> None:
    assert again(RULE) == RULE
    assert hash(again(RULE)) == hash(RULE)
    assert again(RULE) is RULE or again(RULE).layers["bn1"].means.tolist() == RULE.layers["bn1"].means.tolist()


def test_other_numbers_are_another_rule() -> None:
    layers = dict(RULE.layers)
    bn1 = layers["bn1"]
    more = ChannelSpread(bn1.fingerprint, 2 * bn1.means, bn1.variances)
    others = [
        sita.ByReliability(layers=layers),
        sita.ByReliability(layers={**layers, "bn1": more}, caution=2.5),
        sita.ByReliability(layers={"bn1": bn1}, caution=2.5),
    ]
    assert all(other != RULE for other in others)
    assert sita.ByReliability(layers=layers, caution=2.5) == RULE
    with pytest.raises(TypeError):
        RULE.layers["bn1"] = more  # type: ignore[index]


@pytest.mark.parametrize(
    "changes",
    [
        {"means": np.ones(2)},
        {"means": np.ones((3, 1)), "variances": np.ones((3, 1))},
        {"means": np.float32([1, -1e-3, 1])},
        {"variances": np.float32([1, np.nan, 1])},
        {"variances": np.float32([1, np.inf, 1])},
        {"fingerprint": FOUR[:3]},
        {"fingerprint": (1.0, 0.0, np.nan, 0.0)},
    ],
    ids=str,
)
def test_spreads_are_checked(changes: dict[str, Any]) -> None:
    ChannelSpread(**GOOD)
    with pytest.raises(RecipeError, match="layers"):
        ChannelSpread(**{**GOOD, **changes})


def test_a_spread_beyond_half_precision_is_its_largest_number() -> None:
    spread = ChannelSpread(FOUR, np.float32([1e6, 0.5, 0]), np.float32([3, 1e30, 0]))
    np.testing.assert_array_equal(spread.means, [65504, 0.5, 0])
    np.testing.assert_array_equal(spread.variances, [3, 65504, 0])


@pytest.mark.parametrize("layers", [{}, {"bn1": (1.0, 2.0)}, {"bn1": None}])
def test_layers_are_checked(layers: Any) -> None:
    with pytest.raises(RecipeError, match="layers"):
        sita.ByReliability(layers=layers)


@pytest.mark.parametrize("name", STATISTICS)
def test_a_fingerprint_tells_layers_apart_and_forgives_half_precision(name: str) -> None:
    mean, variance = STATISTICS[name]
    spread, width = RULE.layers[name], len(mean)
    rounded = (each.astype(np.float16).astype(np.float32) for each in (mean, variance))
    assert spread.agrees_with(fingerprint_of(*rounded), width)
    assert not spread.agrees_with(fingerprint_of(mean, variance), width + 1)
    others = [(mean[::-1], variance), (mean, variance[::-1]), (mean, 1.02 * variance), (-mean, variance)]
    others += [moments for other, moments in STATISTICS.items() if other != name]
    for other in others:
        assert not spread.agrees_with(fingerprint_of(*other), width)


def test_trivial_statistics_have_a_fingerprint() -> None:
    assert fingerprint_of(np.zeros(3), np.zeros(3)) == (0.0, 0.0, 0.0, 0.0)
