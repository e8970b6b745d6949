"""What is run: for each network and set, every recipe on the same images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import sita_adapters as sita
from sita_adapters import Recipe
from sita_adapters.recipe import resolve_recipe
from sita_workbench.data.dataset import CLEAN
from sita_workbench.data.images import read_rgb
from sita_workbench.data.opening import open_data
from sita_workbench.demo.digits import load_digits
from sita_workbench.methods import Prediction
from sita_workbench.metrics import make_entry
from sita_workbench.models.digits import as_pictures
from sita_workbench.models.loaded import LoadedModel
from sita_workbench.progress import Progress
from sita_workbench.result_log import ResultLog

from ..study.measure import CALIBRATION_IMAGES
from ..study.networks import Folders, data_spec
from ..study.rows import MIXES, PREVIOUS, Ran, adapt_rows, calibrate, run_rows
from .images import OUTSIDE, SETS, to_scored_classes
from .networks import NETWORKS, Network

AUGBN = "augbn, λ = 0.9"
RECIPES = ("source", "bn", AUGBN, "shift", "auto", "restore", "calibrated", PREVIOUS, "ops")

MANY_ROWS = (AUGBN, "ops")
"""Recipes that take most of the time, and run only on demand."""

GROUPS = ("cheap", "many rows")
CHUNK = 40
"""How many images share an entry of the log."""


def open_log(name: str, folders: Folders) -> ResultLog:
    """Open the file of a network's results."""
    recipes = {key: sita.RECIPES[key].to_json() for key in ("auto", "restore", "bn", "shift", "ops", "augbn")}
    return ResultLog(folders.out / f"{name}.jsonl", {"network": name, "recipes": recipes})


def key_of(images: str, group: str, start: int) -> str:
    """Return the name of an entry in the log."""
    return f"{images}, {group}, {start}"


def run_network(name: str, group: str, folders: Folders, progress: Progress) -> None:
    """Run what is missing of a network: the cheap recipes, or those with many rows."""
    network, log = NETWORKS[name], open_log(name, folders)
    files = {images: SETS[images].list_files(folders) for images in network.sets}
    todo = [(images, start) for images in network.sets for start in range(0, len(files[images]), CHUNK)]
    missing = [each for each in todo if key_of(each[0], group, each[1]) not in log.entries]
    if missing:
        loaded = network.load(folders)
        if network.kind != "faces" and "clean" not in log.entries:
            log.add("clean", _measure_clean(network, loaded, folders))
        adapted = _adapt(loaded, log) if group == "cheap" else _adapt_many_rows(loaded)
        batch = network.batch if group == "cheap" else 1
        with progress.track(f"{network.title}, {group}", sum(map(len, files.values()))) as advance:
            advance(sum(len(files[images][start : start + CHUNK]) for images, start in set(todo) - set(missing)))
            for images, start in missing:
                some = files[images][start : start + CHUNK]
                log.add(key_of(images, group, start), _measure(adapted, loaded, images, some, batch, advance))
    log.close()


def _adapt(loaded: LoadedModel, log: ResultLog) -> dict[str, Any]:
    """Return the network adapted once for each row."""
    known = log.entries.get("clean")
    return adapt_rows(loaded, {"calibrated": Recipe.from_json(known["recipe"])} if known else {})


def _adapt_many_rows(loaded: LoadedModel) -> dict[str, Any]:
    """Return the network adapted with the recipes of many rows."""
    return {AUGBN: loaded.adapt(resolve_recipe("augbn", {"priors": 0.9}, loaded.task)), "ops": loaded.adapt("ops")}


def _measure_clean(network: Network, loaded: LoadedModel, folders: Folders) -> dict[str, Any]:
    """Return what is measured on in-distribution images: the calibrated recipe, and the facts of the rows of `auto`."""
    if network.kind == "digits":
        images = as_pictures(load_digits()[1].images[:CALIBRATION_IMAGES])
    elif network.kind == "retina":
        images = np.stack([loaded.fit(read_rgb(file)) for file in SETS["drive"].list_files(folders)])
    else:
        spec = data_spec("imagenet", "choose", folders)
        data = open_data(spec, corrupt="none", limit=CALIBRATION_IMAGES, size=loaded.size, crop=loaded.crop)
        images, _ = data.load(CLEAN, 0, len(data))
    adapted = {name: model for name, model in adapt_rows(loaded, {}).items() if name in ("source", "rule")}
    every = [run_rows(adapted, loaded.encode(image[None]), loaded.task) for image in images]
    return {"recipe": calibrate(loaded, images).to_json(), "rows": _join([_facts(ran) for ran in every])}


def _measure(  # noqa: PLR0917
    adapted: dict[str, Any], loaded: LoadedModel, name: str, files: list[Path], batch: int, advance: Any
) -> dict[str, Any]:
    """Return what is kept of every recipe's predictions, and of the rows: D, confidence, and the weight in a mix."""
    images, truth, found, facts = SETS[name], [], {}, []
    for start in range(0, len(files), batch):
        x, labels = images.load(files[start : start + batch], loaded)
        ran = run_rows(adapted, x, loaded.task)
        truth.append(labels)
        for recipe in (*RECIPES, "rule"):  # the adapted row of `auto`, whose own answer is kept as well
            if set(MIXES.get(recipe, (recipe,))) <= set(adapted):
                found.setdefault(recipe, []).append(to_scored_classes(ran.probabilities(recipe), images.kind))
        facts.append(_facts(ran))
        advance(len(labels))
    ignore = OUTSIDE if images.kind == "retina" else None
    kept = {
        recipe: make_entry(Prediction(np.concatenate(p)), np.concatenate(truth), ignore) for recipe, p in found.items()
    }
    return {"files": [f"{file.parent.name}/{file.name}" for file in files], "recipes": kept, "rows": _join(facts)}


def _facts(ran: Ran) -> dict[str, dict[str, np.ndarray]]:
    """Return D and the confidence of each row, over the network's own classes; of `rule`, also its weight in `auto`."""
    found = {name: {"confidence": ran.confidences(name)} for name in ran.scores}
    for name in found.keys() - {"source", *MANY_ROWS}:
        found[name]["shift"] = ran.shifts[name]
    if "rule" in found:
        found["rule"]["weight"] = ran.weights("auto")[:, 1]
    return found


def _join(parts: list[dict[str, dict[str, np.ndarray]]]) -> dict[str, dict[str, list[float]]]:
    return {
        row: {fact: np.round(np.concatenate([part[row][fact] for part in parts]), 5).tolist() for fact in facts}
        for row, facts in parts[0].items()
    }
