"""Images per second of `sita score`: two workers against one, one against a bare loop, Ray against local workers.

    python benchmarks/score_speed.py                            # seeded weights, made-up images
    python benchmarks/score_speed.py --sets cifar --images 2000 --rounds 3

Every round runs everything once, in turns; a ratio is of two figures of the same round: the median, and the range.
Speed is counted from when all workers have processed a batch until the last one, without the start of the processes: a
set that is worth being cut into shards is large.

- `bare`: the adapted model, in a process with one thread, on images that are decoded and encoded already, in batches as
  large as the engine's.
- `shards`: the function that scores a shard, in such a process.
- `local1`, `local2`, `ray2`: the engines, with one worker and with two.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sita_workbench.scoring.events import BatchDone
from sita_workbench.scoring.scorer import Scorer, use_one_thread

from sita_adapters.recipe import DEFAULT
from sita_workbench import ModelSpec, score
from sita_workbench.commands.image_files import read_image
from sita_workbench.scoring import score_shard
from sita_workbench.scoring.folder import OutputFolder, choose_shard, prepare_folder
from sita_workbench.scoring.spec import make_job

SETS = {
    "cifar": (ModelSpec("cifar10-resnet20", "random", "auto"), 32, 2000),
    "photos": (ModelSpec("torchvision:resnet18", "random", "auto"), 224, 200),
}
"""The model, the images' side, and how many there are.

`auto` runs two rows per image: what is not the model's time shows most there. (Where λ = 1 is no candidate, as with
`augbn`, the source model runs as well, which the bare loop does not.)
"""


RUNS = ("bare", "shards", "local1", "local2", "ray2")
RATIOS = (("shards", "bare"), ("local1", "bare"), ("local2", "local1"), ("ray2", "local2"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default="cifar,photos", help="cifar (32²), photos (224²)")
    parser.add_argument("--images", type=int, help="how many images (2000 and 200)")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--recipe", help="another one than auto")
    parser.add_argument("--runs", default=",".join(RUNS), help=f"what to run, of {', '.join(RUNS)}")
    parser.add_argument("--alone", nargs=3, metavar=("RUN", "SET", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.recipe:
        SETS.update({name: (replace(spec, recipe=options.recipe), *rest) for name, (spec, *rest) in SETS.items()})
    if options.alone:
        run, name, folder = options.alone
        print(json.dumps((run_bare if run == "bare" else run_shards)(name, folder)))
        return
    for name in options.sets.split(","):
        measure(name, options.images or SETS[name][2], options.rounds, options.runs.split(","))


def measure(name: str, count: int, rounds: int, runs: list[str]) -> None:
    found: dict[str, list[dict[str, float]]] = {run: [] for run in runs}
    with tempfile.TemporaryDirectory() as place:
        images = Path(place, "images")
        draw(images, count, SETS[name][1])
        for turn in range(rounds):
            for run in runs if turn % 2 == 0 else runs[::-1]:
                if run in ("bare", "shards"):
                    figures = run_alone(run, name, images)
                else:
                    figures = run_engine(name, images, Path(place, f"{run}-{turn}"))
                found[run].append(figures)
                print(f"{name} {run:<7}", *(f"{key} {value:.2f}" for key, value in figures.items()), flush=True)
    for over, under in RATIOS:
        for kind in ("images/s", "images per CPU second"):
            pairs = zip(found.get(over, []), found.get(under, []), strict=False)
            ratios = [a[kind] / b[kind] for a, b in pairs if kind in a and kind in b]
            if ratios:
                middle, spread = statistics.median(ratios), f"{min(ratios):.2f} to {max(ratios):.2f}"
                print(f"{name} {over} over {under}, {kind}: {middle:.2f} ({spread})", flush=True)


def draw(folder: Path, count: int, side: int) -> None:
    """Write images with structure of two scales: small ones as PNG, large ones as JPEG."""
    folder.mkdir()
    random = np.random.default_rng(0)
    ending = "png" if side < 64 else "jpg"
    for place in range(count):
        coarse = random.uniform(0, 255, (side // 8, side // 8, 3)).repeat(8, axis=0).repeat(8, axis=1)
        pixels = coarse + random.normal(0, 12, coarse.shape)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{place:05d}.{ending}")


def run_engine(name: str, images: Path, output: Path) -> dict[str, float]:
    run = output.name.partition("-")[0]
    engine: Any = run[:-1]
    workers = int(run[-1])
    done: dict[int, int] = {}
    seen: set[int] = set()
    all_there: tuple[float, int] | None = None
    start = last = time.perf_counter()

    def note(batch: BatchDone) -> None:
        nonlocal all_there, last
        seen.add(batch.pid)
        done[batch.number], last = batch.images, time.perf_counter()
        if all_there is None and len(seen) == workers:
            all_there = last, sum(done.values())

    score(SETS[name][0], images, output, engine=engine, workers=workers, watch=note)
    assert all_there is not None
    rate = (sum(done.values()) - all_there[1]) / (last - all_there[0])
    return {"images/s": rate, "seconds in all": time.perf_counter() - start}


def run_alone(run: str, name: str, images: Path) -> dict[str, float]:
    """Run in a process of its own, as a worker is."""
    command = [sys.executable, __file__, "--alone", run, name, str(images), "--recipe", SETS[name][0].recipe or DEFAULT]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def run_bare(name: str, folder: str) -> dict[str, float]:
    """Run the adapted model on encoded images, in the batches that the shards' images run in."""
    use_one_thread()
    spec, side, _ = SETS[name]
    scorer = Scorer(spec)
    adapted = scorer.loaded.adapt(spec.open_recipe(scorer.loaded.task) or DEFAULT)
    paths = sorted(Path(folder).iterdir())
    at_once, shard = scorer.images_per_call(side, side), choose_shard(len(paths))
    shards = [paths[first : first + shard] for first in range(0, len(paths), shard)]
    batches = [
        scorer.loaded.encode(np.stack([read_image(path, scorer.loaded) for path in part[start : start + at_once]]))
        for part in shards
        for start in range(0, len(part), at_once)
    ]
    scorer.loaded.run(adapted, batches[0])  # the trial before the first answer
    clock = Clock()
    for batch in batches[1:]:
        scorer.loaded.run(adapted, batch)
    return clock.rates(len(paths) - len(batches[0]))


def run_shards(name: str, folder: str) -> dict[str, float]:
    """Call the shard function, as a worker does, one shard after the other: reading, answers, Parquet."""
    use_one_thread()
    paths = [str(path) for path in sorted(Path(folder).iterdir())]
    with tempfile.TemporaryDirectory() as place:
        shards = prepare_folder(OutputFolder(Path(place)), {}, paths, None)
        job = make_job(SETS[name][0], Path(place), shards.run)
        score_shard(job, 0)
        clock = Clock()
        for number in range(1, len(shards)):
            score_shard(job, number)
        return clock.rates(shards.images - shards.size)


class Clock:
    """Time on the wall, and of the processor: the latter is little disturbed by what else runs on the machine."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def rates(self, images: int) -> dict[str, float]:
        """Return how many images were processed per second since this was made."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return {"images/s": images / wall, "images per CPU second": images / cpu}


if __name__ == "__main__":
    main()
