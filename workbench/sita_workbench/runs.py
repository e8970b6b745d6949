"""A benchmark run: every method on every image under every condition, logged as it goes, then summarised and timed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import sita_adapters as sita
from sita_adapters.errors import InputError

from . import metrics
from .files import write_json
from .methods import SOURCE, Method, PreparedMethod, check_baselines, prepare
from .progress import Progress
from .result_log import ResultLog

if TYPE_CHECKING:
    from .data.dataset import Condition, Dataset
    from .models.loaded import LoadedModel

CHUNK = {"classification": 64, "segmentation": 8}
"""How many images one entry of the log covers. Batches that share statistics must divide it."""


@dataclass(frozen=True, eq=False)
class Run:
    """What to measure. `open_data` returns the images as a seed corrupts them."""

    loaded: LoadedModel
    open_data: Callable[[int], Dataset]
    methods: Sequence[Method]
    seeds: int = 1
    study: str | None = None

    def __post_init__(self) -> None:
        check_baselines(self.methods, self.loaded)
        self.loaded.require_inputs()
        if self.data.task != self.loaded.task:
            raise InputError(
                f"Expected data for {self.loaded.task}, the task of {self.loaded.spec}; received {self.data.name}, "
                f"which is for {self.data.task}."
            )

    @property
    def data(self) -> Dataset:
        """The images as the first seed corrupts them."""
        return self.open_data(0)

    def setup(self) -> dict[str, Any]:
        """Return what the results depend on, apart from the methods."""
        data = self.data
        return {
            "model": _without_folders(self.loaded.spec),
            "weights": self.loaded.weights,
            "framework": self.loaded.framework,
            "data": _without_folders(data.name),
            "content": data.digest(),
            "size": self.loaded.size,
            "inputs": str(self.loaded.inputs),
            "task": data.task,
            "metric": "accuracy" if data.task == "classification" else "mIoU",
            "images": len(data),
            "conditions": [str(condition) for condition in data.conditions],
        }

    def seeds_of(self, method: Method, changing: bool) -> range:
        """Return the seeds to run a method with: one where nothing depends on the seed."""
        return range(self.seeds if changing or method.is_random else 1)


def _without_folders(spec: str) -> str:
    """Return a spec without the folders of its paths: results do not depend on where the files are."""
    kind, colon, place = spec.partition(":")
    if place.isidentifier() or not colon:  # file.py:function, timm:resnet18, cifar10-resnet20
        return f"{Path(kind).name}{colon}{place}"
    return f"{kind}:{','.join(Path(part).name for part in place.split(','))}"


def run_bench(run: Run, folder: Path, progress: Progress) -> dict[str, Any]:
    """Run what is missing in the folder's `results.jsonl`; write and return `results.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    setup = run.setup()
    with closing(ResultLog(folder / "results.jsonl", setup)) as log:
        _fill(run, log, progress)
        results = _summarise(run, log, setup)
    write_json(folder / "results.json", results)
    return results


@dataclass(frozen=True)
class _Chunk:
    """Some images under one condition, with one seed."""

    seed: int
    condition: Condition
    start: int
    stop: int

    def key(self, method: Method) -> str:
        """Return the log's key of a method's predictions. It names everything that they depend on."""
        details = hashlib.sha256(str(method).encode()).hexdigest()[:8]
        return f"{method.name} {details} seed {self.seed} {self.condition} {self.start}"


def _chunks(run: Run) -> Iterator[_Chunk]:
    data = run.data
    step = CHUNK[data.task]
    for seed in range(run.seeds):
        for condition in data.conditions:
            for start in range(0, len(data), step):
                yield _Chunk(seed, condition, start, min(start + step, len(data)))


def _seed_changes_images(run: Run) -> bool:
    corrupted = any(condition.severity for condition in run.data.conditions)
    return run.seeds > 1 and corrupted and run.open_data(0).digest() != run.open_data(1).digest()


def _fill(run: Run, log: ResultLog, progress: Progress) -> None:
    """Run what is missing in the log. The images of a chunk are loaded once for all methods."""
    changing = _seed_changes_images(run)

    def wanted(chunk: _Chunk) -> list[Method]:
        return [m for m in run.methods if chunk.seed in run.seeds_of(m, changing)]

    def missing(chunk: _Chunk) -> list[Method]:
        return [m for m in wanted(chunk) if chunk.key(m) not in log.entries]

    todo = [(chunk, methods) for chunk in _chunks(run) if (methods := missing(chunk))]
    every = sum((chunk.stop - chunk.start) * len(wanted(chunk)) for chunk in _chunks(run))
    kept = every - sum((chunk.stop - chunk.start) * len(methods) for chunk, methods in todo)
    if kept:
        progress.say(f"Kept from an earlier run: {kept:,} of {every:,} predictions ({100 * kept / every:.0f} %).")
    total = sum((chunk.stop - chunk.start) * method.cost for chunk, methods in todo for method in methods)
    prepared: dict[tuple[str, int], PreparedMethod] = {}
    data: dict[int, Dataset] = {}
    with progress.track("running", total) as advance:
        for chunk, methods in todo:
            advance(0, f"{chunk.condition}")
            opened = data.setdefault(chunk.seed, run.open_data(chunk.seed))
            images, labels = opened.load(chunk.condition, chunk.start, chunk.stop)
            encoded = run.loaded.encode(images)
            for method in methods:
                advance(0, f"{chunk.condition}, {method.name}")
                seed = chunk.seed if method.is_random else 0
                if (method.name, seed) not in prepared:
                    prepared[method.name, seed] = prepare(method, run.loaded, seed)
                predicted = prepared[method.name, seed].predict(encoded)
                _check_labels(labels, predicted.probabilities, opened)
                log.add(chunk.key(method), metrics.make_entry(predicted, labels, opened.ignore))
                advance((chunk.stop - chunk.start) * method.cost)


def _check_labels(labels: np.ndarray, p: np.ndarray, data: Dataset) -> None:
    counted = labels if data.ignore is None else labels[labels != data.ignore]
    if counted.size and counted.max() >= p.shape[-1]:
        raise InputError(
            f"{data.name}: expected labels below {p.shape[-1]}, the model's number of classes; received "
            f"{int(counted.max())}. Try: a model of these classes, or data whose labels are in its order."
        )
    if labels.shape != p.shape[:-1]:
        raise InputError(
            f"{data.name}: expected predictions for labels of shape {labels.shape}; the model returns "
            f"{p.shape[:-1]}. Try: a model whose output has the size of its input."
        )


def _summarise(run: Run, log: ResultLog, setup: Mapping[str, Any]) -> dict[str, Any]:
    weights = metrics.draw_weights(len(run.data))
    changing = _seed_changes_images(run)
    conditions = run.data.conditions
    classes = run.data.classes or _count_classes(log)
    scores: dict[str, dict[str, metrics.Score]] = {}
    sources: Mapping[str, metrics.Entries] = {}
    methods = []
    for method in run.methods:
        seeds = run.seeds_of(method, changing)
        entries = {str(c): [_entries(run, log, method, c, seed) for seed in seeds] for c in conditions}
        each = {name: metrics.summarise_condition(found, weights) for name, found in entries.items()}
        scores[method.name] = {name: found for name, (found, _) in each.items()}
        corrupted = [str(c) for c in conditions if c.severity]
        clean = [str(c) for c in conditions if not c.severity]
        groups = {"corrupted": corrupted, "clean": clean}
        summary: dict[str, Any] = {
            "name": method.name,
            "recipe": str(method),
            "rows": method.rows,
            "study": None if method.point is None else vars(method.point),
            "conditions": {name: facts for name, (_, facts) in each.items()},
        }
        for group, names in groups.items():
            found = [scores[method.name][name] for name in names]
            summary[group] = metrics.summarise_mean(found, [each[name][1] for name in names]) if names else None
        for name, names in (("gain", corrupted), ("gain_clean", clean)):
            summary[name] = _gain(scores[method.name], scores[SOURCE], names) if method.name != SOURCE else None
        summary["severities"] = {
            str(severity): _by_severity(method, scores, [str(c) for c in conditions if c.severity == severity])
            for severity in sorted({c.severity for c in conditions} - {0})
        }
        per_seed = [
            metrics.mean_score([metrics.score([entries[name][place]], weights) for name in corrupted or clean]).value
            for place in range(len(seeds))
        ]
        summary["seeds"] = [round(value, 4) for value in per_seed]
        summary["priors"] = _priors(method, entries, groups)
        sources = entries if method.name == SOURCE else sources
        summary["changed"] = {group: _changed(entries, sources, names) for group, names in groups.items()}
        pooled = [entry for name in corrupted or clean for entry in entries[name]]
        summary["entropy_bins"] = metrics.bin_entropies(pooled, classes)
        methods.append(summary)
    return {"version": sita.__version__, "setup": {**setup, "seeds": run.seeds, "study": run.study}, "methods": methods}


def _by_severity(
    method: Method, scores: Mapping[str, Mapping[str, metrics.Score]], names: Sequence[str]
) -> dict[str, Any]:
    """Return the mean over the kinds at one severity, and the gain over the source."""
    own = metrics.mean_score([scores[method.name][name] for name in names])
    gain = _gain(scores[method.name], scores[SOURCE], names) if method.name != SOURCE else None
    return {**own.to_dict(), "gain": gain}


def _gain(
    own: Mapping[str, metrics.Score], source: Mapping[str, metrics.Score], names: Sequence[str]
) -> dict[str, float] | None:
    if not names:
        return None
    return (metrics.mean_score([own[n] for n in names]) - metrics.mean_score([source[n] for n in names])).to_dict()


def _changed(
    own: Mapping[str, metrics.Entries], source: Mapping[str, metrics.Entries], names: Sequence[str]
) -> float | None:
    """Return the share of labels that are not the source model's; None for label maps, which are not kept.

    The source model is run once where the images do not depend on the seed.
    """
    shares = [
        float(np.mean(entry["said"] != source[name][min(place, len(source[name]) - 1)]["said"]))
        for name in names
        for place, entry in enumerate(own[name])
        if "said" in entry
    ]
    return round(float(np.mean(shares)), 6) if shares else None


def _priors(
    method: Method, entries: Mapping[str, metrics.Entries], groups: Mapping[str, Sequence[str]]
) -> dict[str, Any] | None:
    recipe = method.recipe
    if recipe is None or (len(set(recipe.prior_values)) == 1 and recipe.rule is None):
        return None
    values = [step / 20 for step in range(21)]
    if recipe.rule is None:
        values = [prior for prior in recipe.prior_values if isinstance(prior, float)]
    found = {}
    for group, names in groups.items():
        pooled = [entry for name in names for entry in entries[name]]
        found[group] = metrics.count_priors(pooled, sorted(set(values))) if pooled else None
    return found if any(found.values()) else None


def _entries(run: Run, log: ResultLog, method: Method, condition: Condition, seed: int) -> dict[str, np.ndarray]:
    step = CHUNK[run.data.task]
    chunks = [_Chunk(seed, condition, start, 0) for start in range(0, len(run.data), step)]
    parts = [log.entries[chunk.key(method)] for chunk in chunks]
    joined = {}
    for name in parts[0]:
        values = [value for part in parts for value in part[name]]
        ragged = name.startswith("prior_")  # chunks differ in which priors were chosen
        joined[name] = np.array([None, *values], dtype=object)[1:] if ragged else np.asarray(values)
    return joined


def _count_classes(log: ResultLog) -> int:
    """Return how many classes there are, as far as the data and the predictions show."""
    most = 1
    for entry in log.entries.values():
        if "said" in entry:
            most = max(most, *entry["said"], *entry["label"])
    return most + 1
