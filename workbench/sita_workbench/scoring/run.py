"""score(): an answer for every image of a set, on this machine or a cluster, to be stopped and gone on with."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from os import PathLike
from pathlib import Path
from typing import Literal, TypeAlias

from sita_adapters.errors import InputError, SitaError

from .display import Display, NoDisplay
from .events import BatchDone
from .folder import OutputFolder, Shards, held, prepare_folder
from .inputs import list_paths
from .shard import ShardDone
from .spec import ModelSpec, make_job
from .summary import Scored, finish

Engine: TypeAlias = Literal["local", "ray"]
Paths: TypeAlias = str | PathLike[str] | Iterable[str | PathLike[str]]


def score(
    spec: ModelSpec | str,
    paths: Paths,
    output: str | PathLike[str],
    *,
    engine: Engine = "local",
    workers: int | None = None,
    shard: int | None = None,
    address: str | None = None,
    display: Display | None = None,
    watch: Callable[[BatchDone], None] | None = None,
) -> Scored:
    """Write an answer for every image of a set to a folder, as Parquet; go on where an earlier run was stopped.

    - `spec`: the model and its recipe; a text is a model that brings its weights, under the default recipe.
    - `paths`: a folder, a Parquet file with a column `path`, a list of paths in a file, or the paths themselves.
    - `output`: a new folder, or that of an earlier run of the same model, recipe and paths.
    - `engine`: "local", worker processes on this machine, or "ray", actors on a cluster: at `address` ("auto": the one
      that this machine belongs to), or one that is started and ended here.
    - `workers`: how many, each with a model of its own and one thread; by default one per core.
    - `shard`: how many images a part has: all that is lost with a worker. By default 1,000, less for a small set.
    - `watch`: called after every batch, wherever it was processed.

    >>> score(ModelSpec("timm:resnet50", weights="pretrained", recipe="augbn"), "photos", "scored").changed
    """
    if engine not in ("local", "ray"):
        raise InputError(f"engine: expected 'local' or 'ray'; received {engine!r}.")
    for name, value in (("workers", workers), ("shard", shard)):
        if value is not None and value < 1:
            raise InputError(f"{name}: expected a whole number, 1 or more; received {value!r}.")
    if address is not None and engine != "ray":
        raise InputError(f"address: expected engine='ray' beside it; received {engine!r}.")
    listed = list_paths(paths)
    chosen = (ModelSpec(spec) if isinstance(spec, str) else spec).resolved()
    folder = OutputFolder(Path(output))
    with held(folder):
        shards = prepare_folder(folder, chosen.identity(), listed, shard)
        job = make_job(chosen, folder.path, shards.run)
        missing = folder.missing(shards)
        tally = _Tally(shards, missing, display or NoDisplay(), watch)
        with tally.display.track(tally.images, shards.images):
            if missing and engine == "ray":
                from .ray_engine import run_ray

                run_ray(job, missing, workers, tally, address)
            elif missing:
                from .local import run_local, usable_cores

                run_local(job, missing, workers or usable_cores(), tally)
        return _finish(folder, shards)


def _finish(folder: OutputFolder, shards: Shards) -> Scored:
    missing = folder.missing(shards)
    if missing:
        raise SitaError(
            f"{len(missing)} of {len(shards)} parts are missing in {folder.path}, or damaged, though every shard was "
            "reported as done. Is the folder on a disk that all workers share? Try: run the same command again."
        )
    scored = finish(folder, len(shards))
    if not scored.rows:
        raise InputError(f"None of {scored.failed} images could be scored. {' '.join(scored.reasons[:1])}")
    return scored


class _Tally:
    """Counts what is done. A shard that is begun again counts from its start again."""

    def __init__(
        self, shards: Shards, missing: list[int], display: Display, watch: Callable[[BatchDone], None] | None
    ) -> None:
        self._shards, self.display, self._watch = shards, display, watch
        self._finished = shards.images - sum(map(shards.images_in, missing))
        self._running: dict[int, int] = {}
        self._done: set[int] = set()
        self._said: set[str] = set()
        self._failed = 0
        self._lock = threading.Lock()

    @property
    def images(self) -> int:
        """How many images are done, earlier runs' included."""
        return self._finished + sum(self._running.values())

    def batch(self, done: BatchDone) -> None:
        """Count a batch."""
        with self._lock:
            if done.number not in self._done:
                self._running[done.number] = done.images
                self.display.show(self.images, self._failed)
        if self._watch is not None:
            self._watch(done)

    def shard(self, done: ShardDone) -> None:
        """Count a shard, and say what the library had to say, once."""
        with self._lock:
            self._running.pop(done.number, None)
            if done.number not in self._done:
                self._done.add(done.number)
                self._finished += self._shards.images_in(done.number)
                self._failed += done.failed
            self.display.show(self.images, self._failed)
        for warning in done.warnings:
            if warning not in self._said:
                self._said.add(warning)
                self.say(f"Warning: {warning}")

    def say(self, message: str) -> None:
        """Tell the user."""
        self.display.say(message)
