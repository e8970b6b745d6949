"""The paper's studies as lists of methods. Each method is a point of a curve, and is run and scored like any other."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import sita_adapters as sita
from sita_adapters.errors import RecipeError, suggestion
from sita_adapters.recipe import resolve_recipe

from .methods import Method, StudyPoint, read_methods
from .runs import CHUNK

if TYPE_CHECKING:
    from .models.loaded import LoadedModel

_MOST_GROUPS = 8


def study_methods(study: str, loaded: LoadedModel) -> list[Method]:
    """Return the methods of a study, after `source` and the recipes that it is compared with."""
    if study not in STUDIES:
        raise RecipeError(
            f"study: expected one of {', '.join(STUDIES)}; received {study!r}.{suggestion(study, STUDIES)}"
        )
    recipes, make = STUDIES[study]
    return [*read_methods(recipes, loaded.task), *make(loaded)]


def _method(loaded: LoadedModel, name: str, recipe: str, point: StudyPoint, **changes: Any) -> Method:
    return Method(name, resolve_recipe(recipe, changes, loaded.task), point=point)


def _lambda(loaded: LoadedModel) -> Iterator[Method]:
    """Fixed priors from 0 to 1, with views (AugBN) and without."""
    for series, recipe in (("augbn", "augbn"), ("no views", "bn")):
        for tenth in range(11):
            prior = tenth / 10
            point = StudyPoint(series, prior, f"λ = {prior:g}")
            yield _method(loaded, f"{series}, λ = {prior:g}", recipe, point, priors=prior)


def _batch(loaded: LoadedModel) -> Iterator[Method]:
    """Batches that share their statistics, of 1 to 64 images."""
    sizes = [size for size in (1, 2, 4, 8, 16, 32, 64) if size <= CHUNK[loaded.task]]
    for recipe in ("ptn", "bn", "augbn", "ops"):
        for size in sizes:
            point = StudyPoint(recipe, size, f"{size} images")
            method = _method(loaded, f"{recipe}, batch of {size}", recipe, point, share="batch")
            yield replace(method, batch=size)


def _layers(loaded: LoadedModel) -> Iterator[Method]:
    """One group of layers adapted alone; all but this group; and all groups up to it."""
    groups = layer_groups(sita.describe(loaded.adapt("augbn")).adapted)
    names = list(groups)
    for place, group in enumerate(names):
        before = [layer for name in names[: place + 1] for layer in groups[name]]
        others = [layer for name in names if name != group for layer in groups[name]]
        for series, chosen in (("alone", groups[group]), ("up to it", before), ("all but it", others)):
            if not chosen:
                continue
            point = StudyPoint(series, place, group)
            method = _method(loaded, f"augbn, {group} {series}", "augbn", point)
            yield replace(method, layers=tuple(chosen))


def layer_groups(layers: tuple[str, ...]) -> dict[str, list[str]]:
    """Return the BatchNorm layers by the part of the network, in order.

    A part is the beginning of the layers' names (layer1, conv2, features.3). Where that gives one part or too many, the
    layers are split into four equal groups.
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


def _views(loaded: LoadedModel) -> Iterator[Method]:
    """How many views, and which."""
    counts = (1, 2, 3, 5, 7) if loaded.task == "classification" else (1, 2, 3)
    for recipe in ("augbn", "ops_shared", "ops"):
        for count in counts:
            changes: dict[str, Any] = {"n_views": count}
            if loaded.task == "segmentation":
                changes["augment"] = ("hflip", "vflip", "rot180")
            point = StudyPoint(recipe, count, f"{count} {'view' if count == 1 else 'views'}")
            yield _method(loaded, f"{recipe}, {count} lossless", recipe, point, **changes)
        point = StudyPoint(f"{recipe}, paper's views", 2, "paper's")
        yield _method(loaded, f"{recipe}, paper's views", recipe, point, augment="paper")


def _seeds(loaded: LoadedModel) -> Iterator[Method]:
    """The paper's random views, drawn for every image, with several seeds."""
    for recipe in ("augbn", "ops"):
        point = StudyPoint(recipe, 0, f"{recipe}, paper's views")
        yield _method(loaded, f"{recipe}, paper's views", recipe, point, augment="paper", resample=True)


def _defaults(loaded: LoadedModel) -> Iterator[Method]:
    """Candidates for the defaults: how many priors, the lowest prior, vote or mean, shared views or not."""
    count = 2 if loaded.task == "classification" else 1
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
                    loaded,
                    f"{series}, {label}",
                    recipe,
                    StudyPoint(series, priors, label),
                    priors=lambdas,
                    n_views=count,
                    combine=combine,
                    top_k=min(3, priors),
                )


Make = Callable[["LoadedModel"], Iterator[Method]]

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
"""By name: the recipes that a study is compared with, and the function that yields its points."""
