"""The paper's studies as lists of methods. Each method is a point of a curve, and is run and scored like any other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import sita_adapters as sita
from sita_adapters.errors import RecipeError, suggestion
from sita_adapters.recipe import resolve_recipe

from .methods import Method, StudyPoint, make_methods
from .metrics import CHUNK

if TYPE_CHECKING:
    from .models.loaded import LoadedModel

_MAX_GROUPS = 8


def study_methods(study: str, loaded: LoadedModel) -> list[Method]:
    """Return the methods of a study, after `source` and the recipe that it is compared with."""
    if study not in STUDIES:
        raise RecipeError(
            f"study: expected one of {', '.join(STUDIES)}; received {study!r}.{suggestion(study, STUDIES)}"
        )
    recipe, make_points = STUDIES[study]
    return [*make_methods(recipe, loaded.task), *make_points(loaded)]


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
    for recipe in ("ptn", "bn", "augbn", "ops"):
        for size in (1, 2, 4, 8, 16, 32, 64):
            if size <= CHUNK[loaded.task]:
                point = StudyPoint(recipe, size, f"{size} images")
                yield replace(_method(loaded, f"{recipe}, batch of {size}", recipe, point, share="batch"), batch=size)


def _layers(loaded: LoadedModel) -> Iterator[Method]:
    """One group of layers adapted alone; all but this group; and all groups up to it."""
    groups = layer_groups(sita.describe(loaded.adapt("augbn")).adapted)
    names = list(groups)
    for place, group in enumerate(names):
        before = [layer for name in names[: place + 1] for layer in groups[name]]
        others = [layer for name in names if name != group for layer in groups[name]]
        for series, chosen in (("alone", groups[group]), ("up to it", before), ("all but it", others)):
            if chosen:
                point = StudyPoint(series, place, group)
                yield replace(_method(loaded, f"augbn, {group} {series}", "augbn", point), layers=tuple(chosen))


def layer_groups(layers: tuple[str, ...]) -> dict[str, list[str]]:
    """Return the BatchNorm layers by the part of the network, in order.

    A part is the beginning of the layers' names (layer1, conv2, features.3). If that gives one part or too many, the
    layers are split into four equal groups.
    """
    for depth in (1, 2):
        groups: dict[str, list[str]] = {}
        for layer in layers:
            groups.setdefault(".".join(re.split(r"[._/]", layer)[:depth]), []).append(layer)
        if 1 < len(groups) <= _MAX_GROUPS:
            return groups
    quarter = -(-len(layers) // 4)
    runs = [list(layers[start : start + quarter]) for start in range(0, len(layers), quarter)]
    return {f"{run[0]} … {run[-1]}" if len(run) > 1 else run[0]: run for run in runs}


STUDIES = {"lambda": ("ops", _lambda), "batch": ("ops", _batch), "layers": ("augbn", _layers)}
"""By name: the recipe that a study is compared with, and the function that yields its points."""
