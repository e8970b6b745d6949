"""Invented results of a benchmark, for the tests of its report."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

KINDS = (
    *("gaussian_noise", "shot_noise", "impulse_noise"),
    *("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    *("snow", "frost", "fog", "brightness"),
    *("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
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
PRIORS = [round(float(value), 4) for value in np.linspace(0.5, 1, 8)]
EDGES = [0.0, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.31]


def make_score(score: float, random: np.random.Generator, half: float = 3.0) -> dict[str, Any]:
    low, high = score - half * random.uniform(0.8, 1.2), score + half * random.uniform(0.8, 1.2)
    wrong = 1 - score / 100
    return {
        "images": 200,
        "score": score,
        "low": max(0.0, low),
        "high": min(100.0, high),
        "nll": 3.4 * wrong,
        "ece": 30 * wrong,
        "entropy": 0.2 + wrong,
    }


def make_gain(score: float, half: float = 1.1) -> dict[str, float]:
    return {"score": score, "low": score - half, "high": score + half}


def make_method(
    name: str,
    gain: float,
    gain_clean: float,
    rows: int | None = 1,
    *,
    seed: int = 0,
    study: dict[str, Any] | None = None,
    seeds: int = 1,
    priors: bool = False,
) -> dict[str, Any]:
    """Make a method, all numbers of which agree with each other; sources are those of CIFAR-10-C, severity 5."""
    random = np.random.default_rng(seed)
    base = np.random.default_rng(99).uniform(28, 88, len(KINDS))
    scores = np.clip(base + gain * random.uniform(0.2, 1.8, len(KINDS)), 2, 99)
    conditions = {"clean": make_score(91.5 + gain_clean, random, 4.0)}
    for kind, score in zip(KINDS, scores, strict=True):
        conditions[f"{kind}/5"] = make_score(float(score), random, 6.5)
    mean = float(scores.mean())
    method = {
        "name": name,
        "recipe": f"{name}: λ = 0.5, 0.75, 1; 2 views, lossless",
        "rows": rows,
        "study": study,
        "conditions": conditions,
        "corrupted": make_score(mean, random),
        "clean": conditions["clean"],
        "gain": None if name == "source" else make_gain(mean - float(base.mean())),
        "gain_clean": None if name == "source" else make_gain(gain_clean, 0.7),
        "seeds": [mean + float(shift) for shift in random.normal(0, 0.12, seeds)] if seeds > 1 else [mean],
        "priors": None,
        "entropy_bins": None,
    }
    if priors:
        method["priors"] = {
            "corrupted": _choose(np.array([0.32, 0.14, 0.1, 0.08, 0.07, 0.07, 0.09, 0.13]), 3000, 0.62),
            "clean": _choose(np.array([0.06, 0.04, 0.04, 0.05, 0.07, 0.1, 0.16, 0.48]), 200, 0.9),
        }
    if study is None:
        count = np.round(3000 * random.dirichlet(np.array([30, 12, 10, 8, 7, 9, 6, 1.5]))).astype(int)
        right = np.round(count * np.clip(np.linspace(0.97, 0.15, 8) + random.normal(0, 0.03, 8), 0, 1)).astype(int)
        method["entropy_bins"] = {"edges": EDGES, "count": count.tolist(), "right": right.tolist()}
    return method


def _choose(shares: np.ndarray, images: int, right: float) -> dict[str, Any]:
    count = np.round(shares * images).astype(int)
    good = np.round(count * np.linspace(right - 0.1, min(right + 0.15, 0.98), len(shares))).astype(int)
    return {"values": PRIORS, "count": count.tolist(), "right": good.tolist()}


def make_points(study: str) -> list[dict[str, Any]]:
    """Make the points of a study's curves."""
    return [
        make_method(
            f"{series} {label}",
            float(gain),
            float(clean),
            rows,
            seed=1 + place,
            study={"series": series, "x": float(x), "label": label},
        )
        for place, (series, x, label, gain, clean, rows) in enumerate(_places(study))
    ]


def _places(study: str) -> Iterator[tuple[str, float, str, float, float, int]]:
    """Yield the series, x, label, gain, gain on clean images and rows of a study's points."""
    match study:
        case "lambda":
            for (series, peak), x in product((("bn", 4.0), ("augbn", 11.0)), np.linspace(0, 1, 11)):
                yield series, x, f"λ = {x:.1f}", peak - 40 * (x - 0.75) ** 2, -(peak + 8) * (1 - x) ** 2, 1
        case "batch":
            for (series, start), x in product((("ptn", -5.0), ("augbn", 10.0)), (1, 2, 4, 8, 16, 32, 64, 128)):
                yield series, x, f"batch {x}", 15 - (15 - start) / x**0.7, start / x - 2, 3 * x
        case "layers":
            names = ("all", "stem", "layer1", "layer2", "layer3", "stem + layer1", "layer1 + layer2 + layer3")
            for series, (x, label) in product(("bn", "augbn"), enumerate(names)):
                yield series, x, label, 8.0 - 1.7 * x + (series == "augbn"), -0.3 * x, 3
        case "views":
            for x in (0, 1, 2, 3, 5, 7):
                yield "augbn lossless", x, f"{x} views", 11 - 7 / (x + 1), -1, 1 + x
                yield "augbn paper", x, f"{x} views", 10.2 - 6.5 / (x + 1), -1, 1 + x
                yield "ops lossless", x, f"{x} views", 12 - 6 / (x + 1), -1, 8 + 7 * x
        case "defaults":
            random = np.random.default_rng(3)
            for series, x in product(("augbn", "ops", "ops_shared", "ops, temperature"), range(18)):
                rows = int(random.integers(1, 80))
                yield series, x, f"n={x} k=3 σ=0.{x}", 5 + 1.8 * np.log(rows) + random.normal(0, 1), -1, rows


def make_results(study: str | None = None, names: tuple[str, ...] = tuple(METHODS)) -> dict[str, Any]:
    """Make the results of a run of the named methods, with the points of a study."""
    methods = [
        make_method(
            name,
            *METHODS[name][:3],
            seed=sum(map(ord, name)),
            priors=name.startswith("ops"),
            seeds=5 if study == "seeds" and name in ("ensemble", "augbn", "ops", "ops_shared") else 1,
        )
        for name in names
    ]
    return {
        "version": "0.1.0",
        "setup": {
            "model": "cifar10-resnet20",
            "weights": "cifar10_resnet20.safetensors sha256 1a2b3c4d5e6f",
            "framework": "torch",
            "data": "cifar10c:cifar10c",
            "task": "classification",
            "metric": "accuracy",
            "images": 200,
            "conditions": ["clean", *(f"{kind}/5" for kind in KINDS)],
            "seeds": 5 if study == "seeds" else 1,
            "study": study,
        },
        "methods": methods + (make_points(study) if study else []),
    }


def make_timing(names: tuple[str, ...] = tuple(METHODS)) -> dict[str, Any]:
    times = {name: 1.21 * METHODS[name][3] for name in names}
    methods = {
        name: {"ms": ms, "low": 0.96 * ms, "high": 1.05 * ms, "relative": METHODS[name][3]}
        for name, ms in times.items()
    }
    return {"machine": "Intel Xeon, 2 cores", "threads": 1, "batch": 1, "rounds": 20, "methods": methods}


def small(study: str | None = None, names: tuple[str, ...] = ("source", "bn", "ops")) -> dict[str, Any]:
    """Return results with few conditions, which are drawn and read quickly."""
    results = make_results(study, names)
    keep = ["clean", "fog/5", "contrast/5"]
    results["setup"]["conditions"] = keep
    for method in results["methods"]:
        method["conditions"] = {name: method["conditions"][name] for name in keep}
    return results


def without(results: dict[str, Any], part: str) -> dict[str, Any]:
    """Return results as if no corrupted or no clean image had been run."""
    results["setup"]["conditions"] = [
        name for name in results["setup"]["conditions"] if (name == "clean") != (part == "clean")
    ]
    for method in results["methods"]:
        method["conditions"] = {name: method["conditions"][name] for name in results["setup"]["conditions"]}
        method[part] = method["gain" if part == "corrupted" else "gain_clean"] = None
        if method["priors"]:
            method["priors"][part] = None
        if part == "corrupted":
            method["entropy_bins"] = None
    return results


def gaining(**gains: tuple[float, float, float]) -> dict[str, Any]:
    """Return results with the given gain on corrupted images and its interval for every method."""
    results = small(names=("source", *gains))
    source = results["methods"][0]["corrupted"]["score"]
    for method in results["methods"][1:]:
        method["gain"] = dict(zip(("score", "low", "high"), gains[method["name"]], strict=True))
        method["corrupted"]["score"] = source + method["gain"]["score"]
    return results
