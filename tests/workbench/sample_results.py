"""Random results of a benchmark, for the tests of its report."""

from __future__ import annotations

from typing import Any

import numpy as np

from sita_workbench.corruptions import KINDS

# Mean gain over source on corrupted and on clean images, rows, and times source's time.
METHODS: dict[str, tuple[float, float, int | None, float]] = {
    "source": (0.0, 0.0, 1, 1.0),
    "ensemble": (0.1, -0.5, 3, 2.6),
    "ptn": (-5.6, -14.0, 1, 1.1),
    "bn": (3.7, -0.3, 1, 1.1),
    "augbn": (10.4, -1.9, 3, 2.7),
    "ops_shared": (10.9, -1.2, 10, 6.1),
    "ops": (11.7, -0.8, 22, 10.2),
    "tent": (-5.5, -13.0, None, 26.5),
    "memo": (4.9, 0.4, None, 61.0),
}


def make_gain(score: float, half: float = 1.1) -> dict[str, float]:
    return {"score": score, "low": score - half, "high": score + half}


def make_score(score: float, gain: dict[str, float] | None = None, half: float = 3.0) -> dict[str, Any]:
    wrong = 1 - score / 100
    return {**make_gain(score, half), "nll": 3.4 * wrong, "ece": 30 * wrong, "gain": gain}


def make_method(name: str) -> dict[str, Any]:
    """Make a method, all numbers of which agree with each other."""
    gain, gain_clean, rows, _ = METHODS[name]
    base = np.random.default_rng(99).uniform(28, 80, len(KINDS))
    scores = base + gain * np.random.default_rng(sum(map(ord, name))).uniform(0.2, 1.6, len(KINDS))
    clean, mean = 91.5 + gain_clean, float(scores.mean())
    gains = (make_gain(mean - base.mean()), make_gain(gain_clean, 0.7)) if name != "source" else (None, None)
    conditions = {f"{kind}/5": make_score(float(score)) for kind, score in zip(KINDS, scores, strict=True)}
    return {
        "name": name,
        "recipe": f"{name}: λ = 0.5, 0.75, 1; 2 views, lossless",
        "rows": rows,
        "conditions": {"clean": make_score(clean), **conditions},
        "corrupted": make_score(mean, gains[0]),
        "clean": make_score(clean, gains[1]),
    }


def make_results(names: tuple[str, ...] = tuple(METHODS)) -> dict[str, Any]:
    """Make the results of a run of the named methods."""
    setup = {
        "model": "cifar10-resnet20",
        "weights": "cifar10_resnet20.safetensors sha256 1a2b3c4d5e6f",
        "data": "cifar10c:cifar10c",
        "metric": "accuracy",
        "images": 200,
        "conditions": ["clean", *(f"{kind}/5" for kind in KINDS)],
    }
    return {"version": "0.1.0", "setup": setup, "methods": [make_method(name) for name in names]}


def make_timing() -> dict[str, Any]:
    methods = {
        name: {"ms": 1.21 * relative, "low": 1.1 * relative, "high": 1.4 * relative, "relative": relative}
        for name, (*_, relative) in METHODS.items()
    }
    return {"machine": "Intel Xeon, 2 cores", "threads": 1, "rounds": 20, "methods": methods}


def small(names: tuple[str, ...] = ("source", "bn", "ops"), without: str = "") -> dict[str, Any]:
    """Return results with few conditions, as if no "clean" or no "corrupted" image had been run `without` them."""
    results = make_results(names)
    conditions = {"clean": ["fog/5", "contrast/5"], "corrupted": ["clean"]}.get(
        without, ["clean", "fog/5", "contrast/5"]
    )
    results["setup"]["conditions"] = conditions
    for method in results["methods"]:
        method.update({without: None} if without else {})
        method["conditions"] = {name: method["conditions"][name] for name in conditions}
    return results
