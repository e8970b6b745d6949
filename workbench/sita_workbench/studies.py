"""The paper's studies as lists of methods: each is a point of a curve, and is run and scored as any other."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from sita_adapters.api import adapt, describe
from sita_adapters.errors import RecipeError, suggestion
from sita_adapters.recipe import read_recipe

from .methods import Method, Point, read_methods
from .runs import CHUNK

if TYPE_CHECKING:
    from .models.loading import Subject

_MOST_GROUPS = 8


def study_methods(study: str, subject: Subject) -> list[Method]:
    """Return the methods of a study, after `source` and those that it is held against."""
    if study not in STUDIES:
        raise RecipeError(
            f"study: expected one of {', '.join(STUDIES)}; received {study!r}.{suggestion(study, STUDIES)}"
        )
    lines, make = STUDIES[study]
    return [*read_methods(lines, subject.task), *make(subject)]


def _method(subject: Subject, name: str, recipe: str, point: Point, **changes: Any) -> Method:
    return Method(name, read_recipe(recipe, changes, subject.task), point=point)


def _lambda(subject: Subject) -> Iterator[Method]:
    """Fixed priors from 0 to 1, with views (AugBN) and without."""
    for series, recipe in (("augbn", "augbn"), ("no views", "bn")):
        for tenth in range(11):
            prior = tenth / 10
            point = Point(series, prior, f"λ = {prior:g}")
            yield _method(subject, f"{series}, λ = {prior:g}", recipe, point, priors=prior)


def _batch(subject: Subject) -> Iterator[Method]:
    """Batches that share their statistics, of 1 to 64 images."""
    sizes = [size for size in (1, 2, 4, 8, 16, 32, 64) if size <= CHUNK[subject.task]]
    for recipe in ("ptn", "bn", "augbn", "ops"):
        for size in sizes:
            point = Point(recipe, size, f"{size} images")
            made = _method(subject, f"{recipe}, batch of {size}", recipe, point, share="batch")
            yield replace(made, batch=size)


def _layers(subject: Subject) -> Iterator[Method]:
    """One group of layers adapted alone; all but it; and from the first up to it."""
    groups = layer_groups(describe(adapt(subject.model, "augbn", scores=subject.scores)).adapted)
    names = list(groups)
    for place, group in enumerate(names):
        before = [layer for name in names[: place + 1] for layer in groups[name]]
        others = [layer for name in names if name != group for layer in groups[name]]
        for series, chosen in (("alone", groups[group]), ("up to it", before), ("all but it", others)):
            if not chosen:
                continue
            point = Point(series, place, group)
            made = _method(subject, f"augbn, {group} {series}", "augbn", point)
            yield replace(made, layers=tuple(chosen))


def layer_groups(layers: tuple[str, ...]) -> dict[str, list[str]]:
    """Return the BatchNorm layers by the part of the network they are in, in order.

    A part is what names begin with (layer1, conv2, features.3); where that gives one part or too many, the layers are
    cut into four equal runs.
    """
    for depth in (1, 2):
        groups: dict[str, list[str]] = {}
        for layer in layers:
            groups.setdefault(".".join(re.split(r"[._/]", layer)[:depth]), []).append(layer)
        if 1 < len(groups) <= _MOST_GROUPS:
            return groups
    quarter = -(-len(layers) // 4)
    runs = [list(layers[start : start + quarter]) for start in range(0, len(layers), quarter)]
    return {f"{run[0]} … {run[-1]}" if len(run) > 1 else run[0]: run for run in runs}


def _views(subject: Subject) -> Iterator[Method]:
    """How many views, and which."""
    counts = (1, 2, 3, 5, 7) if subject.task == "classification" else (1, 2, 3)
    for recipe in ("augbn", "ops_shared", "ops"):
        for count in counts:
            changes: dict[str, Any] = {"n_views": count}
            if subject.task == "segmentation":
                changes["augment"] = ("hflip", "vflip", "rot180")
            point = Point(recipe, count, f"{count} {'view' if count == 1 else 'views'}")
            yield _method(subject, f"{recipe}, {count} lossless", recipe, point, **changes)
        point = Point(f"{recipe}, paper's views", 2, "paper's")
        yield _method(subject, f"{recipe}, paper's views", recipe, point, augment="paper")


def _seeds(subject: Subject) -> Iterator[Method]:
    """The paper's random views, drawn for every image, under several seeds."""
    for recipe in ("augbn", "ops"):
        point = Point(recipe, 0, f"{recipe}, paper's views")
        yield _method(subject, f"{recipe}, paper's views", recipe, point, augment="paper", resample=True)


def _defaults(subject: Subject) -> Iterator[Method]:
    """What the defaults could be: how many views and priors, from where, how many decide, vote or mean."""
    count = 2 if subject.task == "classification" else 1
    for series, recipe, combine in (
        ("ops", "ops", "vote"),
        ("ops, mean", "ops", "mean"),
        ("ops_shared", "ops_shared", "vote"),
        ("ops_shared, mean", "ops_shared", "mean"),
    ):
        for lowest in (0.3, 0.5):
            for priors in (2, 3, 4, 8):
                lambdas = tuple(lowest + (1 - lowest) * p / (priors - 1) for p in range(priors))
                label = f"{priors} priors from {lowest:g}"
                yield _method(
                    subject,
                    f"{series}, {label}",
                    recipe,
                    Point(series, priors, label),
                    priors=lambdas,
                    n_views=count,
                    combine=combine,
                    top_k=min(3, priors),
                )


Make = Callable[["Subject"], Iterator[Method]]

STUDIES: MappingProxyType[str, tuple[str, Make]] = MappingProxyType(
    {
        "lambda": ("ops", _lambda),
        "batch": ("ops", _batch),
        "layers": ("augbn", _layers),
        "views": ("bn", _views),
        "seeds": ("augbn,ops", _seeds),
        "defaults": ("augbn,ops_shared,ops", _defaults),
    }
)
"""By name: the recipes that a study is held against, and what makes its points."""
