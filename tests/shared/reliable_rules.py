"""Rules by reliability for any network, with the same numbers in the references."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import reference
from small_network import WIDTHS, Weights, make_weights

import sita_adapters as sita
from sita_adapters.reliability import ChannelSpread, fingerprint_of

Statistics = Mapping[str, tuple[np.ndarray, np.ndarray]]
"""The source's mean and variance of every layer, by name."""


def make_rule(statistics: Statistics, **fields: float) -> tuple[sita.ByReliability, dict[str, reference.Reliability]]:
    """Return a rule for layers with these statistics. Some channels are a thousand times as reliable as others."""
    random, layers, same = np.random.default_rng(0), {}, {}
    for name, (mean, variance) in statistics.items():
        t, e = (2 ** random.uniform(-8, 2, (2, len(mean)))).astype(np.float16)
        layers[name] = ChannelSpread(fingerprint_of(mean, variance), t, e)
        same[name] = reference.Reliability(t, e, **fields)
    return sita.ByReliability(layers=layers, **fields), same


def statistics_of_small_network(weights: Weights | None = None) -> Statistics:
    """Return the statistics of the small network."""
    made = make_weights() if weights is None else weights
    return {name: (made[f"{name}/mean"], made[f"{name}/variance"]) for name in WIDTHS}


def statistics_of_module(model: Any) -> Statistics:
    """Return the statistics of a PyTorch module."""
    norms = {name: module for name, module in model.named_modules() if hasattr(module, "running_var")}
    return {
        name: (norm.running_mean.flatten().float().numpy(), norm.running_var.flatten().float().numpy())
        for name, norm in norms.items()
    }


def reliable(model: Any) -> sita.Recipe:
    """Return a recipe by reliability for a PyTorch module."""
    return sita.Recipe(priors=make_rule(statistics_of_module(model))[0], n_views=0)
