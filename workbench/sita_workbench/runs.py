"""A benchmark run: every method on every image under every condition, logged immediately, then summarized."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import sita_adapters as sita
from sita_adapters.errors import InputError

from . import metrics
from .files import write_json
from .methods import SOURCE, Method, prepare
from .progress import Progress
from .result_log import ResultLog

if TYPE_CHECKING:
    from .data.dataset import Condition, Dataset
    from .models.loaded import LoadedModel


@dataclass(frozen=True, eq=False)
class Run:
    """What to measure."""

    loaded: LoadedModel
    data: Dataset
    methods: Sequence[Method]
    study: str | None = None

    def __post_init__(self) -> None:
        self.loaded.require_inputs()
        if self.data.task != self.loaded.task:
            raise InputError(
                f"Expected data for {self.loaded.task}, the task of {self.loaded.spec}; received {self.data.name}, "
                f"which is for {self.data.task}. Try: a model or data of the same task."
            )

    def setup(self) -> dict[str, Any]:
        """Return what the results depend on, apart from the methods."""
        return {
            "model": _without_folders(self.loaded.spec),
            "weights": self.loaded.weights,
            "framework": self.loaded.framework,
            "data": _without_folders(self.data.name),
            "content": self.data.digest(),
            "size": self.loaded.size,
            "inputs": str(self.loaded.inputs),
            "task": self.data.task,
            "metric": "accuracy" if self.data.task == "classification" else "mIoU",
            "images": len(self.data),
            "conditions": [str(condition) for condition in self.data.conditions],
        }

    def chunks(self) -> Iterator[tuple[Condition, int, int]]:
        """Yield the parts that are logged: a condition, the first of some images, and the end."""
        step = metrics.CHUNK[self.data.task]
        for condition in self.data.conditions:
            for start in range(0, len(self.data), step):
                yield condition, start, min(start + step, len(self.data))


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
        methods = _summarize(run, log)
    results = {"version": sita.__version__, "setup": {**setup, "study": run.study}, "methods": methods}
    write_json(folder / "results.json", results)
    return results


def _key(method: Method, condition: Condition, start: int) -> str:
    """Return the log's key of a method's predictions for a chunk. It names everything that they depend on."""
    details = hashlib.sha256(str(method).encode()).hexdigest()[:8]
    return f"{method.name} {details} {condition} {start}"


def _fill(run: Run, log: ResultLog, progress: Progress) -> None:
    """Run what is missing in the log. The images of a chunk are loaded once for all methods."""
    todo = []
    for condition, start, stop in run.chunks():
        missing = [method for method in run.methods if _key(method, condition, start) not in log.entries]
        todo += [(condition, start, stop, missing)] if missing else []
    every = len(run.methods) * len(run.data) * len(run.data.conditions)
    kept = every - sum((stop - start) * len(methods) for _, start, stop, methods in todo)
    if kept:
        progress.say(f"Kept from an earlier run: {kept:,} of {every:,} predictions ({100 * kept / every:.0f} %).")
    needed = dict.fromkeys(method for *_, methods in todo for method in methods)
    prepared = {method: prepare(method, run.loaded) for method in needed}
    total = sum((stop - start) * method.cost for _, start, stop, methods in todo for method in methods)
    with progress.track("running", total) as advance:
        for condition, start, stop, methods in todo:
            advance(0, str(condition))
            images, labels = run.data.load(condition, start, stop)
            encoded = run.loaded.encode(images)
            for method in methods:
                advance(0, f"{condition}, {method.name}")
                entry = metrics.score_images(prepared[method], encoded, labels, run.data.ignore)
                log.add(_key(method, condition, start), entry)
                advance((stop - start) * method.cost)


def _summarize(run: Run, log: ResultLog) -> list[dict[str, Any]]:
    """Return the results of every method."""
    weights = metrics.draw_weights(len(run.data))
    groups: dict[str, list[str]] = {"corrupted": [], "clean": []}
    for condition in run.data.conditions:
        groups["corrupted" if condition.severity else "clean"].append(str(condition))
    source: dict[str, metrics.Entry] = {}
    of_source: dict[str, metrics.Condition] = {}
    methods = []
    for method in run.methods:
        entries = _read_entries(run, log, method)
        each = {name: metrics.summarize_condition(entry, weights) for name, entry in entries.items()}
        if method.name == SOURCE:  # which comes first
            source, of_source = entries, each
        summary: dict[str, Any] = {
            "name": method.name,
            "recipe": str(method),
            "rows": method.rows,
            "study": None if method.point is None else method.point._asdict(),
            "conditions": {name: facts for name, (_, facts) in each.items()},
        }
        for group, gain in (("corrupted", "gain"), ("clean", "gain_clean")):
            summary[group] = summary[gain] = None
            if names := groups[group]:
                found = metrics.summarize_group([each[name] for name in names], [of_source[name] for name in names])
                own_gain = found.pop("gain")
                summary[group], summary[gain] = found, None if method.name == SOURCE else own_gain
        methods.append(summary | _summarize_choices(run, method, entries, source, groups))
    return methods


def _summarize_choices(
    run: Run,
    method: Method,
    entries: Mapping[str, metrics.Entry],
    source: Mapping[str, metrics.Entry],
    groups: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    """Return the chosen priors, the share of changed labels, and how often predictions of some entropy are right."""
    found: dict[str, Any] = {"priors": None, "changed": dict.fromkeys(groups), "entropy_bins": None}
    pooled = {
        group: metrics.join_entries([entries[name] for name in names]) for group, names in groups.items() if names
    }
    if method.priors:
        counts = {group: metrics.count_priors(entry, method.priors) for group, entry in pooled.items()}
        found["priors"] = dict.fromkeys(groups) | counts
    if run.data.task == "classification":  # label maps are not kept
        for group, entry in pooled.items():
            changed = entry["said"] != np.concatenate([source[name]["said"] for name in groups[group]])
            found["changed"][group] = round(float(changed.mean()), 6)
        seen = max(int(entry[name].max()) for entry in source.values() for name in ("said", "label"))
        main = pooled["corrupted" if groups["corrupted"] else "clean"]
        found["entropy_bins"] = metrics.bin_entropies(main, run.data.classes or 1 + max(1, seen))
    return found


def _read_entries(run: Run, log: ResultLog, method: Method) -> dict[str, metrics.Entry]:
    """Return what the log has of a method, by condition."""
    parts: dict[str, list[dict[str, Any]]] = {}
    for condition, start, _ in run.chunks():
        parts.setdefault(str(condition), []).append(log.entries[_key(method, condition, start)])
    return {condition: metrics.join_entries(entries) for condition, entries in parts.items()}
