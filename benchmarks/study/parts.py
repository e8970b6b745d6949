"""What is run: for each network its parts, each a run of `sita bench` that goes on where it stopped."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sita_adapters.recipe import RECIPES, Task, resolve_recipe
from sita_adapters.shift import ByShift
from sita_workbench.data.dataset import Dataset
from sita_workbench.data.opening import open_data
from sita_workbench.methods import Method
from sita_workbench.models.loaded import LoadedModel
from sita_workbench.progress import Progress
from sita_workbench.runs import Run, run_bench

from .networks import NETWORKS, Half, Places, data_spec

_BOLD = ByShift(strength=1.0)

VARIANTS = {
    "bold": replace(RECIPES["shift"], priors=_BOLD),
    "bold, mirrored": replace(
        RECIPES["shift"], priors=_BOLD, n_views=1, augment="hflip", candidates="views", combine="mean"
    ),
    "augbn, λ = 0.8": replace(RECIPES["augbn"], priors=0.8),
}
"""Recipes with a field changed. Mirrored: the mirrored image answers, too; bold: λ by shift down to 0, one row."""

CHEAP = ("bn", "shift", "bold", "auto")
COSTLY = ("augbn", "augbn, λ = 0.8", "auto", "ops")
MIRRORED = ("auto", "bold, mirrored")


@dataclass(frozen=True)
class Part:
    """Some recipes on some of the pictures. `limits`: how many, by a network's name or the kind of its pictures."""

    name: str
    recipes: tuple[str, ...]
    corrupt: str
    severities: tuple[int, ...]
    limits: dict[str, int]

    def limit(self, name: str) -> int | None:
        """Return how many pictures a network is run on; None: it is left out."""
        return self.limits.get(name, self.limits.get(NETWORKS[name].kind))


_KINDS = "corrupted"

PARTS = (
    Part(
        "clean",
        (*CHEAP, "augbn", "augbn, λ = 0.8"),
        "none",
        (5,),
        {"cifar": 1000, "imagenet": 332, "resnet50": 166, "camvid": 60},
    ),
    Part(
        "corrupted",
        CHEAP,
        _KINDS,
        (1, 3, 5),
        {"cifar": 100, "densenet": 60, "mobilenet": 60, "imagenet": 16, "resnet50": 8, "camvid": 12},
    ),
    Part(
        "costly",
        COSTLY,
        _KINDS,
        (3, 5),
        {"cifar": 40, "densenet": 24, "mobilenet": 24, "imagenet": 6, "lite1": 4, "resnet50": 3, "camvid": 6},
    ),
    Part("mirrored", MIRRORED, _KINDS, (5,), {"cifar": 100, "densenet": 60, "mobilenet": 60}),
)
"""`ops` runs 22 rows, and so on fewer pictures; recipes are compared on the same ones."""


def run_network(name: str, half: Half, places: Places, progress: Progress) -> dict[str, Any]:
    """Run what is missing of a network's parts, and return the results by part."""
    network = NETWORKS[name]
    loaded = network.load(places)
    results = {}
    for part in parts_of(name):
        progress.say(f"{network.title}, {part.name}")
        run = make_run(part, loaded, part.limit(name), data_spec(network.kind, half, places))
        results[part.name] = run_bench(run, folder_of(places.out, half, name, part), progress)
    return results


def folder_of(out: Path, half: Half, network: str, part: Part) -> Path:
    """Return where a part's results are."""
    return out / half / network / part.name


def parts_of(name: str) -> list[Part]:
    """Return the parts that a network has."""
    return [part for part in PARTS if part.limit(name) is not None]


def make_run(part: Part, loaded: LoadedModel, limit: int | None, spec: str) -> Run:
    """Return a part as `sita bench` runs it."""
    from sita_workbench.corruptions import KINDS

    corrupt = ",".join(KINDS) if part.corrupt == _KINDS else part.corrupt

    @functools.cache
    def opened(seed: int) -> Dataset:
        return open_data(
            spec,
            corrupt=corrupt,
            severities=part.severities,
            limit=limit,
            seed=seed,
            size=loaded.size,
            crop=loaded.crop,
        )

    return Run(loaded, opened, [make_method(name, loaded.task) for name in ("source", *part.recipes)])


def make_method(name: str, task: Task) -> Method:
    """Return a recipe by its name, or a variant of one."""
    return Method(name, VARIANTS[name] if name in VARIANTS else resolve_recipe(name, {}, task))
