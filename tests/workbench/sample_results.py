"""Random results of a benchmark, for the tests of its report."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

KINDS = (
    *("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    *("snow", "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression"),
)
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
EDGES = [0.0, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.31]


def make_score(score: float, half: float = 3.0) -> dict[str, Any]:
    wrong = 1 - score / 100
    ends = {"low": max(0.0, score - half), "high": min(100.0, score + half)}
    return {"score": score, **ends, "nll": 3.4 * wrong, "ece": 30 * wrong, "entropy": 0.2 + wrong}


def make_gain(score: float, half: float = 1.1) -> dict[str, float]:
    return {"score": score, "low": score - half, "high": score + half}


def make_method(
    name: str, gain: float, gain_clean: float, rows: int | None = 1, study: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Make a method, all numbers of which agree with each other."""
    random = np.random.default_rng(sum(map(ord, name)))
    base = np.random.default_rng(99).uniform(28, 88, len(KINDS))
    scores = np.clip(base + gain * random.uniform(0.2, 1.8, len(KINDS)), 2, 99)
    conditions = {f"{kind}/5": make_score(float(score), 6.5) for kind, score in zip(KINDS, scores, strict=True)}
    count = np.round(3000 * random.dirichlet(np.array([30, 12, 10, 8, 7, 9, 6, 1.5]))).astype(int)
    bins = {"edges": EDGES, "count": count.tolist(), "right": (count * np.linspace(0.97, 0.15, 8)).astype(int).tolist()}
    return {
        "name": name,
        "recipe": f"{name}: λ = 0.5, 0.75, 1; 2 views, lossless",
        "rows": rows,
        "study": study,
        "conditions": {"clean": make_score(91.5 + gain_clean, 4.0), **conditions},
        "corrupted": make_score(float(scores.mean())),
        "clean": make_score(91.5 + gain_clean, 4.0),
        "gain": None if name == "source" else make_gain(float(scores.mean() - base.mean())),
        "gain_clean": None if name == "source" else make_gain(gain_clean, 0.7),
        "priors": {"corrupted": make_priors(3000), "clean": make_priors(200)} if name.startswith("ops") else None,
        "entropy_bins": None if study else bins,
    }


def make_priors(images: int) -> dict[str, Any]:
    count = np.round(np.array([0.32, 0.14, 0.1, 0.08, 0.07, 0.07, 0.09, 0.13]) * images).astype(int)
    right = (count * np.linspace(0.5, 0.9, 8)).astype(int)
    return {"values": np.linspace(0.5, 1, 8).tolist(), "count": count.tolist(), "right": right.tolist()}


def make_points(study: str) -> Iterator[dict[str, Any]]:
    """Yield the points of a study's curves."""
    x: float
    if study == "layers":
        names = ("all", "stem", "layer1", "layer2", "layer3", "stem + layer1", "layer1 + layer2 + layer3")
        places = [(float(x), label, 8.0 - 1.7 * x) for x, label in enumerate(names)]
    elif study == "batch":
        places = [(float(x), f"batch {x}", 12 - 9 / x) for x in (1, 2, 4, 8, 16, 32, 64)]
    else:
        places = [(x / 10, f"λ = {x / 10}", 11 - 0.4 * (x - 7) ** 2) for x in range(11)]
    for (series, more), (x, label, gain) in product((("augbn", 1.5), ("no views", 0)), places):
        point = {"series": series, "x": x, "label": label}
        yield make_method(f"{series} {label}", gain + more, -gain / 5, 3, study=point)


def make_results(study: str | None = None, names: tuple[str, ...] = tuple(METHODS)) -> dict[str, Any]:
    """Make the results of a run of the named methods, with the points of a study."""
    methods = [make_method(name, *METHODS[name][:3]) for name in names]
    setup = {
        "model": "cifar10-resnet20",
        "weights": "cifar10_resnet20.safetensors sha256 1a2b3c4d5e6f",
        "data": "cifar10c:cifar10c",
        "task": "classification",
        "metric": "accuracy",
        "images": 200,
        "conditions": ["clean", *(f"{kind}/5" for kind in KINDS)],
        "study": study,
    }
    return {"version": "0.1.0", "setup": setup, "methods": [*methods, *(make_points(study) if study else ())]}


def make_timing(names: tuple[str, ...] = tuple(METHODS)) -> dict[str, Any]:
    times = {name: (1.21 * METHODS[name][3], METHODS[name][3]) for name in names}
    methods = {n: {"ms": ms, "low": 0.9 * ms, "high": 1.1 * ms, "relative": r} for n, (ms, r) in times.items()}
    return {"machine": "Intel Xeon, 2 cores", "threads": 1, "batch": 1, "rounds": 20, "methods": methods}


def small(study: str | None = None, names: tuple[str, ...] = ("source", "bn", "ops")) -> dict[str, Any]:
    """Return results with few conditions, which are drawn and read quickly."""
    return _keep(make_results(study, names), ["clean", "fog/5", "contrast/5"])


def without(results: dict[str, Any], part: str) -> dict[str, Any]:
    """Return results as if no corrupted or no clean image had been run."""
    results = _keep(
        results, [name for name in results["setup"]["conditions"] if (name == "clean") != (part == "clean")]
    )
    for method in results["methods"]:
        method[part] = method["gain" if part == "corrupted" else "gain_clean"] = None
        if method["priors"]:
            method["priors"][part] = None
    return results


def _keep(results: dict[str, Any], conditions: list[str]) -> dict[str, Any]:
    results["setup"]["conditions"] = conditions
    for method in results["methods"]:
        method["conditions"] = {name: method["conditions"][name] for name in conditions}
    return results
