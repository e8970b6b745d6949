"""A benchmark run: every method on every image under every condition, logged immediately, then compared."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import sita_adapters as sita
from sita_adapters.errors import InputError

from .files import write_json
from .methods import Method
from .metrics import CHUNK, METRIC, Parts, compare, make_entry
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
            "metric": METRIC[self.data.task],
            "images": len(self.data),
            "conditions": [str(condition) for condition in self.data.conditions],
        }

    def chunks(self) -> Iterator[tuple[Condition, int, int]]:
        """Yield the parts that are logged: a condition, the first of some images, and the end."""
        step = CHUNK[self.data.task]
        for condition in self.data.conditions:
            for start in range(0, len(self.data), step):
                yield condition, start, min(start + step, len(self.data))


def _without_folders(spec: str) -> str:
    """Return a spec without the folders of its paths: results do not depend on where the files are."""
    kind, colon, path = spec.partition(":")
    if path.isidentifier() or not colon:  # file.py:function, timm:resnet18, cifar10-resnet20
        return f"{Path(kind).name}{colon}{path}"
    return f"{kind}:{','.join(Path(part).name for part in path.split(','))}"


def run_bench(run: Run, folder: Path, progress: Progress) -> dict[str, Any]:
    """Run what is missing in the folder's `results.jsonl`; write and return `results.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    setup = run.setup()
    with closing(ResultLog(folder / "results.jsonl", setup)) as log:
        _fill(run, log, progress)
    results = {"version": sita.__version__, "setup": setup, "methods": _compare(run, log)}
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
        progress.say(f"Reused from an earlier run: {kept:,} of {every:,} predictions ({100 * kept / every:.0f} %).")
    prepared = {method: method.prepare(run.loaded) for method in {m: None for *_, methods in todo for m in methods}}
    total = sum((stop - start) * method.cost for _, start, stop, methods in todo for method in methods)
    with progress.track("running", total) as advance:
        for condition, start, stop, methods in todo:
            advance(0, str(condition))
            images, labels = run.data.load(condition, start, stop)
            encoded = run.loaded.encode(images)
            for method in methods:
                advance(0, f"{condition}, {method.name}")
                predicted = method.predict(run.loaded, prepared[method], encoded)
                _check_classes(run, predicted.probabilities.shape[-1], labels)
                log.add(_key(method, condition, start), make_entry(predicted, labels, run.data.ignore))
                advance((stop - start) * method.cost)


def _check_classes(run: Run, predicted: int, labels: np.ndarray) -> None:
    """Raise if the labels of the data cannot be those of the model, which predicts this many classes."""
    if run.data.classes not in (None, predicted):
        raise InputError(
            f"{run.data.name} has {run.data.classes} classes, but {run.loaded.spec} predicts {predicted}. Try: a file "
            f"classes.txt next to the folders, with all {predicted} class names in the model's order, one per line."
        )
    if (largest := labels[labels != run.data.ignore].max(initial=0)) >= predicted:
        raise InputError(f"{run.data.name} has the label {largest}; {run.loaded.spec} predicts {predicted} classes.")


def _compare(run: Run, log: ResultLog) -> list[dict[str, Any]]:
    """Return the results of every method."""
    parts: Parts = {method.name: {} for method in run.methods}
    for method in run.methods:
        for condition, start, _ in run.chunks():
            entry = log.entries[_key(method, condition, start)]
            parts[method.name].setdefault(str(condition), []).append(entry)
    groups: dict[str, list[str]] = {"corrupted": [], "clean": []}
    for condition in run.data.conditions:
        groups["corrupted" if condition.severity else "clean"].append(str(condition))
    found = compare(parts, groups)
    return [
        {"name": method.name, "recipe": str(method), "rows": method.rows, **found[method.name]}
        for method in run.methods
    ]
