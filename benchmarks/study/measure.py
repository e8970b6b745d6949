"""What is run: for each network and condition, every recipe on the same images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import sita_adapters as sita
from sita_adapters import Recipe
from sita_workbench.corruptions import HOLDOUT, KINDS
from sita_workbench.data.dataset import CLEAN, Condition, Dataset
from sita_workbench.data.opening import open_data
from sita_workbench.methods import Prediction
from sita_workbench.metrics import make_entry
from sita_workbench.models.loaded import LoadedModel
from sita_workbench.progress import Progress
from sita_workbench.result_log import ResultLog

from .networks import NETWORKS, Folders, Half, Network, data_spec
from .rows import ROWS, adapt_rows, calibrate, run_rows

CALIBRATION_IMAGES = 128
"""Clean images of the choosing half that `sita.calibrate` measures on."""

GROUPS = {
    "clean": (CLEAN,),
    **{str(severity): tuple(Condition(kind, severity) for kind in KINDS) for severity in (1, 3, 5)},
    "hold-out": tuple(Condition(kind, 5) for kind in HOLDOUT),
}
"""Conditions over which scores are averaged: all of a group have the same images."""

WITH_OPS = "5"
"""The group in which `ops` runs."""


@dataclass(frozen=True)
class Counts:
    """How many images a network runs on under each condition of a group, and how many of them at once."""

    images: Mapping[str, int]
    ops: int
    batch: int


COUNTS = {
    "cifar": Counts({"clean": 1000, "1": 40, "3": 40, "5": 100, "hold-out": 100}, ops=20, batch=25),
    "imagenet": Counts({"clean": 332, "1": 20, "3": 20, "5": 40, "hold-out": 40}, ops=8, batch=2),
    "camvid": Counts({"clean": 60, "1": 20, "3": 20, "5": 60, "hold-out": 20}, ops=4, batch=2),
}


def run_network(name: str, folders: Folders, progress: Progress) -> None:
    """Run what is missing of a network."""
    network, log = NETWORKS[name], open_log(name, folders)
    counts, loaded = COUNTS[network.kind], network.load(folders)
    if "calibrate" not in log.entries:
        recipe = calibrate(loaded, load_clean(network, loaded, CALIBRATION_IMAGES, folders))
        k = getattr(recipe.rule, "caution", None)
        log.add("calibrate", {"k": k, "notes": recipe.notes, "recipe": recipe.to_json()})
    adapted = adapt_rows(loaded, {"calibrated": Recipe.from_json(log.entries["calibrate"]["recipe"])})
    ops = loaded.adapt("ops")

    def predict(x: np.ndarray) -> dict[str, np.ndarray]:
        ran = run_rows(adapted, x, loaded.task)
        return {recipe: ran.probabilities(recipe) for recipe in ROWS}

    for group, conditions in GROUPS.items():
        kinds = ",".join(condition.corruption for condition in conditions)
        data = open_half(network, loaded, "confirm", kinds, counts.images[group], folders)
        batches = [range(start, min(start + counts.batch, len(data))) for start in range(0, len(data), counts.batch)]
        of_ops = [position * len(data) // counts.ops for position in range(counts.ops)] if group == WITH_OPS else []
        with progress.track(f"{network.title}, {group}", len(conditions)) as advance:
            for condition in conditions:
                if str(condition) not in log.entries:
                    found = measure(predict, loaded, data, condition, batches)
                    if of_ops:
                        single = [range(position, position + 1) for position in of_ops]
                        found |= measure(lambda x: {"ops": loaded.predict(ops, x)}, loaded, data, condition, single)
                    log.add(str(condition), {"recipes": found, "ops": of_ops})
                advance(1)
    log.close()


def open_log(name: str, folders: Folders) -> ResultLog:
    """Open the file of a network's results."""
    recipes = {key: sita.RECIPES[key].to_json() for key in ("auto", "restore", "bn", "shift", "ops")}
    about = {"network": name, "counts": asdict(COUNTS[NETWORKS[name].kind]), "recipes": recipes}
    return ResultLog(folders.out / f"{name}.jsonl", about)


def open_half(  # noqa: PLR0917
    network: Network, loaded: LoadedModel, half: Half, corrupt: str, limit: int, folders: Folders
) -> Dataset:
    """Open images of a half of a network's pictures."""
    spec = data_spec(network.kind, half, folders)
    return open_data(spec, corrupt=corrupt, severities=(1, 3, 5), limit=limit, size=loaded.size, crop=loaded.crop)


def load_clean(network: Network, loaded: LoadedModel, limit: int, folders: Folders) -> np.ndarray:
    """Return clean images of the choosing half, in bytes."""
    data = open_half(network, loaded, "choose", "none", limit, folders)
    return data.load(CLEAN, 0, len(data))[0]


def measure(
    predict: Callable[[np.ndarray], Mapping[str, np.ndarray]],
    loaded: LoadedModel,
    data: Dataset,
    condition: Condition,
    batches: Iterable[range],
) -> dict[str, Any]:
    """Return what is kept of every recipe's predictions under a condition; `predict` takes encoded images."""
    found: dict[str, list[np.ndarray]] = {}
    labels: list[np.ndarray] = []
    for batch in batches:
        images, truth = data.load(condition, batch.start, batch.stop)
        labels.append(truth)
        for name, p in predict(loaded.encode(images)).items():
            found.setdefault(name, []).append(p)
    truth = np.concatenate(labels)
    return {name: make_entry(Prediction(np.concatenate(p)), truth, data.ignore) for name, p in found.items()}
