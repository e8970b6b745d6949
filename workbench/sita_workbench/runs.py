"""A benchmark run: every method on every image under every condition, written down as it goes; then the figures."""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sita_adapters.backend import backend_of
from sita_adapters.errors import InputError
from sita_adapters.version import __version__

from . import metrics
from .answers import record
from .files import replacing
from .ledger import Ledger
from .methods import SOURCE, Method, Ready, check_baselines, prepare
from .progress import Progress

if TYPE_CHECKING:
    from .data.datasets import Condition, Dataset
    from .models.loading import Subject

CHUNK = {"classification": 64, "segmentation": 8}
"""How many images an entry of the ledger is about. Batches that share statistics divide it."""


@dataclass(frozen=True, eq=False)
class Run:
    """What is to be measured. `open_data` gives the images as a seed corrupts them, the same where none is random."""

    subject: Subject
    open_data: Callable[[int], Dataset]
    methods: Sequence[Method]
    seeds: int = 1
    study: str | None = None

    def __post_init__(self) -> None:
        check_baselines(self.methods, self.subject)
        if self.subject.inputs is None:
            raise InputError(
                f"{self.subject.spec} does not say how its pixels are encoded. Remedy: --inputs imagenet (or another "
                "name), or a function that returns (model, {'inputs': …})."
            )
        if self.data.task != self.subject.task:
            raise InputError(
                f"Expected data for {self.subject.task}, which {self.subject.spec} does; received {self.data.name}, "
                f"which is for {self.data.task}."
            )

    @property
    def data(self) -> Dataset:
        """The images as the first seed corrupts them."""
        return self.open_data(0)

    def setup(self) -> dict[str, Any]:
        """Return what the results are results of, methods apart."""
        data, model = self.data, self.subject.model
        return {
            "model": _without_folders(self.subject.spec),
            "weights": self.subject.weights,
            "framework": backend_of(model).runner().label,
            "data": _without_folders(data.name),
            "content": data.digest(),
            "size": self.subject.size,
            "inputs": str(self.subject.inputs),
            "task": data.task,
            "metric": "accuracy" if data.task == "classification" else "mIoU",
            "images": len(data),
            "conditions": [str(condition) for condition in data.conditions],
        }

    def seeds_of(self, method: Method, changing: bool) -> range:
        """Return the seeds a method is run with: one where nothing depends on it."""
        return range(self.seeds if changing or method.is_random else 1)


def _without_folders(spec: str) -> str:
    """Return a spec without the folders of its paths: results are the same wherever the files lie."""
    kind, colon, place = spec.partition(":")
    if place.isidentifier() or not colon:  # file.py:function, timm:resnet18, cifar10-resnet20
        return f"{Path(kind).name}{colon}{place}"
    return f"{kind}:{','.join(Path(part).name for part in place.split(','))}"


def run_bench(run: Run, folder: Path, progress: Progress) -> dict[str, Any]:
    """Run what is missing in the folder's `results.jsonl`; write and return `results.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    setup = run.setup()
    with closing(Ledger(folder / "results.jsonl", setup)) as ledger:
        _fill(run, ledger, progress)
        results = _results(run, ledger, setup)
    with replacing(folder / "results.json") as temporary:
        temporary.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return results


@dataclass(frozen=True)
class _Chunk:
    """Some images under one condition, as one seed has them."""

    seed: int
    condition: Condition
    start: int
    stop: int

    def key(self, method: Method) -> str:
        """What the ledger calls a method's answers. It names all that they depend on."""
        details = hashlib.sha256(str(method).encode()).hexdigest()[:8]
        return f"{method.name} {details} seed {self.seed} {self.condition} {self.start}"


def _chunks(run: Run) -> Iterator[_Chunk]:
    data = run.data
    step = CHUNK[data.task]
    for seed in range(run.seeds):
        for condition in data.conditions:
            for start in range(0, len(data), step):
                yield _Chunk(seed, condition, start, min(start + step, len(data)))


def _is_changing(run: Run) -> bool:
    """Whether another seed corrupts the images in another way."""
    corrupted = any(condition.severity for condition in run.data.conditions)
    return run.seeds > 1 and corrupted and run.open_data(0).digest() != run.open_data(1).digest()


def _fill(run: Run, ledger: Ledger, progress: Progress) -> None:
    """Do what is missing. The images of a chunk are made once, for all methods."""
    changing = _is_changing(run)

    def missing(chunk: _Chunk) -> list[Method]:
        wanted = [m for m in run.methods if chunk.seed in run.seeds_of(m, changing)]
        return [m for m in wanted if chunk.key(m) not in ledger]

    todo = [(chunk, methods) for chunk in _chunks(run) if (methods := missing(chunk))]
    total = sum((chunk.stop - chunk.start) * method.weight for chunk, methods in todo for method in methods)
    ready: dict[tuple[str, int], Ready] = {}
    data: dict[int, Dataset] = {}
    with progress.track("running", total) as advance:
        for chunk, methods in todo:
            advance(0, f"{chunk.condition}")
            opened = data.setdefault(chunk.seed, run.open_data(chunk.seed))
            images, labels = opened.load(chunk.condition, chunk.start, chunk.stop)
            encoded = run.subject.encode(images)
            for method in methods:
                advance(0, f"{chunk.condition}, {method.name}")
                seed = chunk.seed if method.is_random else 0
                if (method.name, seed) not in ready:
                    ready[method.name, seed] = prepare(method, run.subject, seed)
                said = ready[method.name, seed].answer(encoded)
                _check_labels(labels, said.probabilities, opened)
                ledger.add(chunk.key(method), record(said, labels, opened.ignore))
                advance((chunk.stop - chunk.start) * method.weight)


def _check_labels(labels: np.ndarray, p: np.ndarray, data: Dataset) -> None:
    counted = labels if data.ignore is None else labels[labels != data.ignore]
    if counted.size and counted.max() >= p.shape[1]:
        raise InputError(
            f"{data.name}: expected labels below {p.shape[1]}, the number of classes of the model; received "
            f"{int(counted.max())}. Remedy: a model of these classes, or data whose labels are in its order."
        )
    if labels.ndim == 3 and labels.shape[1:] != p.shape[2:]:
        raise InputError(
            f"{data.name}: expected answers for the places of the label maps, {labels.shape[1:]}; the model gives "
            f"{p.shape[2:]}. Remedy: a model that puts out maps of its input's size."
        )


def _results(run: Run, ledger: Ledger, setup: Mapping[str, Any]) -> dict[str, Any]:
    weights = metrics.draw_weights(len(run.data))
    changing = _is_changing(run)
    conditions = run.data.conditions
    classes = run.data.classes or _classes(run, ledger)
    scores: dict[str, dict[str, metrics.Score]] = {}
    methods = []
    for method in run.methods:
        seeds = run.seeds_of(method, changing)
        entries = {str(c): [_entries(run, ledger, method, c, seed) for seed in seeds] for c in conditions}
        each = {name: metrics.summarise_condition(found, weights) for name, found in entries.items()}
        scores[method.name] = {name: found for name, (found, _) in each.items()}
        corrupted = [str(c) for c in conditions if c.severity]
        clean = [str(c) for c in conditions if not c.severity]
        groups = {"corrupted": corrupted, "clean": clean}
        made: dict[str, Any] = {
            "name": method.name,
            "recipe": str(method),
            "rows": method.rows,
            "study": None if method.point is None else vars(method.point),
            "conditions": {name: facts for name, (_, facts) in each.items()},
        }
        for group, names in groups.items():
            found = [scores[method.name][name] for name in names]
            made[group] = metrics.summarise_mean(found, [each[name][1] for name in names]) if names else None
        for name, names in (("gain", corrupted), ("gain_clean", clean)):
            made[name] = _gain(scores[method.name], scores[SOURCE], names) if method.name != SOURCE else None
        per_seed = [
            metrics.mean_score([metrics.score([entries[name][place]], weights) for name in corrupted or clean]).value
            for place in range(len(seeds))
        ]
        made["seeds"] = [round(value, 4) for value in per_seed]
        made["priors"] = _priors(method, entries, groups)
        pooled = [entry for name in corrupted or clean for entry in entries[name]]
        made["entropy_bins"] = metrics.bin_entropies(pooled, classes)
        methods.append(made)
    return {"version": __version__, "setup": {**setup, "seeds": run.seeds, "study": run.study}, "methods": methods}


def _gain(
    own: Mapping[str, metrics.Score], source: Mapping[str, metrics.Score], names: Sequence[str]
) -> dict[str, float] | None:
    if not names:
        return None
    return (metrics.mean_score([own[n] for n in names]) - metrics.mean_score([source[n] for n in names])).to_dict()


def _priors(
    method: Method, entries: Mapping[str, metrics.Entries], groups: Mapping[str, Sequence[str]]
) -> dict[str, Any] | None:
    if method.recipe is None or len(set(method.recipe.lambdas)) == 1:
        return None
    found = {}
    for group, names in groups.items():
        pooled = [entry for name in names for entry in entries[name]]
        found[group] = metrics.count_priors(pooled, sorted(set(method.recipe.lambdas))) if pooled else None
    return found if any(found.values()) else None


def _entries(run: Run, ledger: Ledger, method: Method, condition: Condition, seed: int) -> dict[str, np.ndarray]:
    step = CHUNK[run.data.task]
    chunks = [_Chunk(seed, condition, start, 0) for start in range(0, len(run.data), step)]
    parts = [ledger.entries[chunk.key(method)] for chunk in chunks]
    joined = {}
    for name in parts[0]:
        values = [value for part in parts for value in part[name]]
        ragged = name.startswith("prior_")  # the priors that were chosen, which differ between chunks
        joined[name] = np.array([None, *values], dtype=object)[1:] if ragged else np.asarray(values)
    return joined


def _classes(run: Run, ledger: Ledger) -> int:
    """Return how many classes there are, as far as the data and the answers tell."""
    most = 1
    for entry in ledger.entries.values():
        if "said" in entry:
            most = max(most, *entry["said"], *entry["label"])
    return most + 1


def time_methods(run: Run, rounds: int, threads: int | None, progress: Progress) -> dict[str, Any]:
    """Return the time for one image at a time, the methods in turn, so that a slow moment slows them all."""
    data = run.data
    condition = data.conditions[-1]
    methods = [method for method in run.methods if method.point is None and method.batch is None]
    calls: dict[str, Callable[[np.ndarray], object]] = {}
    images = run.subject.encode(data.load(condition, 0, min(4, len(data)))[0])
    for method in methods:
        ready = prepare(method, run.subject)
        calls[method.name] = lambda image, ready=ready: ready.run(ready.arrange(image))  # type: ignore[misc]
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    with progress.track("timing", (rounds + 1) * len(calls)) as advance:
        for turn in range(rounds + 1):
            image = images[turn % len(images)][None]
            for name, call in calls.items():
                start = time.perf_counter()
                call(image)
                if turn:  # frameworks compile and allocate in the first
                    seconds[name].append(time.perf_counter() - start)
                advance(1, f"timing, {name}")
    source = np.array(seconds[SOURCE])
    found = {}
    for name, each in seconds.items():
        low, middle, high = np.percentile(1e3 * np.array(each), [25, 50, 75])
        ratio = float(np.median(np.array(each) / source))
        found[name] = {
            "ms": round(middle, 3),
            "low": round(low, 3),
            "high": round(high, 3),
            "relative": round(ratio, 3),
        }
    return {
        "machine": f"{platform.machine()}, {platform.system()}",
        "threads": threads,
        "batch": 1,
        "rounds": rounds,
        "methods": found,
    }
