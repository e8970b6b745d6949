"""What is run: for each network and condition, every recipe on the same images."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import sita_adapters as sita
from sita_adapters import ByExcessShift, ByShift, Recipe
from sita_workbench.corruptions import KINDS
from sita_workbench.data.dataset import CLEAN, Condition, Dataset
from sita_workbench.data.opening import open_data
from sita_workbench.methods import Prediction
from sita_workbench.metrics import make_entry
from sita_workbench.models.loaded import LoadedModel
from sita_workbench.progress import Progress
from sita_workbench.result_log import ResultLog

from .networks import NETWORKS, Folders, Half, Network, data_spec
from .rows import MIXES, adapt_rows, measure_clean_shifts, one_row, run_rows

SEVERITIES = (1, 3, 5)
CALIBRATION_IMAGES = 128
"""Clean images that the shifts of `ByExcessShift` are measured on, and that `sita.calibrate` chooses on."""

MIRRORED = "calibrated, mirrored"


@dataclass(frozen=True)
class Counts:
    """How many images a network is run on."""

    clean: int
    corrupted: int
    ops: int
    batch: int
    ops_severities: tuple[int, ...] = (5,)
    mirrored_severities: tuple[int, ...] = (0, 5)  # 0 is clean


COUNTS = {
    "cifar": Counts(
        clean=1000, corrupted=200, ops=40, batch=25, ops_severities=(5, 3), mirrored_severities=(0, 1, 3, 5)
    ),
    "imagenet": Counts(clean=332, corrupted=100, ops=40, batch=2),
    "camvid": Counts(clean=60, corrupted=60, ops=40, batch=2),
}


def run_network(name: str, folders: Folders, progress: Progress) -> None:
    """Run what is missing of a network."""
    network = NETWORKS[name]
    counts, loaded = COUNTS[network.kind], network.load(folders)
    log = open_log(name, folders)
    clean = _open(network, loaded, "choose", "none", CALIBRATION_IMAGES, folders)
    if "clean shifts" not in log.entries:
        log.add("clean shifts", measure_clean_shifts(loaded, clean.load(CLEAN, 0, len(clean))[0]))
    if "calibrate" not in log.entries:
        log.add("calibrate", _calibrate(loaded, clean.load(CLEAN, 0, len(clean))[0]))
    rows = Rows(loaded, ByExcessShift(log.entries["clean shifts"]), network)
    halves: dict[Half, Dataset] = {
        half: _open(network, loaded, half, "none", counts.clean, folders)
        for half in ("confirm", "choose")
        if half == "confirm" or network.kind == "imagenet"
    }
    corrupted = _open(network, loaded, "confirm", ",".join(KINDS), counts.corrupted, folders)
    todo = [(CLEAN, half, data) for half, data in halves.items()]
    todo += [(Condition(kind, severity), "confirm", corrupted) for severity in (5, 3, 1) for kind in KINDS]
    missing = [each for each in todo if key_of(each[0], each[1]) not in log.entries]
    with progress.track(network.title, sum(len(data) for _, _, data in todo)) as advance:
        advance(sum(len(data) for each in todo if each not in missing for data in each[2:]))
        for condition, half, data in missing:
            log.add(key_of(condition, half), _measure(rows, condition, data, counts, advance))


def open_log(name: str, folders: Folders) -> ResultLog:
    """Open the file of a network's results."""
    about = {"network": name, "recipes": {key: sita.RECIPES[key].to_json() for key in ("auto", "auto3", "bn", "shift")}}
    return ResultLog(folders.out / f"{name}.jsonl", about)


def key_of(condition: Condition, half: Half) -> str:
    """Return the name of a condition's entry in the log."""
    return str(condition) if half == "confirm" else f"{condition}, {half}"


def _open(network: Network, loaded: LoadedModel, half: Half, corrupt: str, limit: int, folders: Folders) -> Dataset:  # noqa: PLR0917
    spec = data_spec(network.kind, half, folders)
    return open_data(spec, corrupt=corrupt, severities=SEVERITIES, limit=limit, size=loaded.size, crop=loaded.crop)


def _calibrate(loaded: LoadedModel, images: np.ndarray) -> dict[str, str]:
    """Return which of the study's recipes `sita.calibrate` chooses, and its notes."""
    settings = {"task": "segmentation"} if loaded.task == "segmentation" else {}
    x = torch.from_numpy(np.ascontiguousarray(loaded.arrange(loaded.encode(images))))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sita.SitaWarning)  # if it chooses `source`
        recipe = sita.calibrate(loaded.model, x, **settings)
    name = recipe.name
    if name == "auto-calibrated":
        mixed = "calibrated, mixed" if recipe.combine == "mix" else "calibrated"
        name = MIRRORED if recipe.candidates == "views" else mixed
    return {"choice": name, "notes": recipe.notes}


def _measure(rows: Rows, condition: Condition, data: Dataset, counts: Counts, advance: Any) -> dict[str, Any]:
    """Return what is kept of every recipe's predictions under a condition, and which images `ops` ran on."""
    found: dict[str, list[np.ndarray]] = {}
    labels: list[np.ndarray] = []
    batch, mirrored = counts.batch, condition.severity in counts.mirrored_severities
    ops = counts.ops if condition.severity in counts.ops_severities else 0
    of_ops = (np.arange(ops) * len(data) // max(ops, 1)).tolist()
    for start in range(0, len(data), batch):
        images, truth = data.load(condition, start, min(start + batch, len(data)))
        labels.append(truth)
        x = rows.loaded.encode(images)
        for name, p in rows.predict(x, mirrored):
            found.setdefault(name, []).append(p)
        some = [position - start for position in of_ops if start <= position < start + len(images)]
        if some:
            found.setdefault("ops", []).append(rows.predict_ops(x[some]))
        advance(len(images))
    truth = np.concatenate(labels)
    kept = {
        name: make_entry(Prediction(np.concatenate(p)), truth[of_ops] if name == "ops" else truth, data.ignore)
        for name, p in found.items()
    }
    return {"recipes": kept, "ops": of_ops}


@dataclass
class Rows:
    """A network, adapted once for each prior of the cheap recipes, whose rows several recipes share."""

    loaded: LoadedModel
    excess: ByExcessShift
    network: Network

    def __post_init__(self) -> None:
        more = {"calibrated": one_row(self.excess)}
        if self.network.kind == "cifar":
            more["previous rule"] = one_row(ByShift(strength=1.0, half_area=200 / 32**2))
        self.adapted = adapt_rows(self.loaded, more)
        self.ops = self.loaded.adapt("ops")
        self.mirrored = None
        if self.network.kind != "camvid":
            self.mirrored = self.loaded.adapt(
                Recipe(priors=self.excess, n_views=1, augment="hflip", candidates="views", combine="mean")
            )

    def predict(self, x: np.ndarray, mirrored: bool) -> Iterator[tuple[str, np.ndarray]]:
        """Yield p (N, …, classes) of each recipe on encoded images, classes last."""
        ran = run_rows(self.adapted, x)
        for name in ("source", "bn", "shift", "calibrated", *MIXES):
            yield name, ran.probabilities(name)
        previous = "previous rule" if "previous rule" in self.adapted else "rule"
        yield "previous", 0.4 * ran.probabilities("source") + 0.6 * ran.probabilities(previous)
        if mirrored and self.mirrored is not None:
            yield MIRRORED, self.loaded.predict(self.mirrored, x)

    def predict_ops(self, x: np.ndarray) -> np.ndarray:
        """Return p (N, …, classes) of `ops`, one image at a time."""
        return np.concatenate([self.loaded.predict(self.ops, image[None]) for image in x])
