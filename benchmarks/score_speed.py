"""Images per second of `sita score`: two workers against one, one against a bare loop, Ray against local workers.

    python benchmarks/score_speed.py                            # seeded weights, made-up images
    python benchmarks/score_speed.py --sets cifar --images 2000 --rounds 3

Every round runs everything once, in turns; a ratio is of two figures of the same round: the median, and the range.
Speed is counted from the first batch to the last, without the start of the processes, which is shown beside it: a set
that is worth being cut into shards is large.

The bare loop runs the adapted model, in a process of its own with one thread, on images that are decoded and encoded
already, in batches as large as the engine's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from sita_workbench import ModelSpec, score
from sita_workbench.scoring.events import BatchDone

SETS = {
    "cifar": (ModelSpec("cifar10-resnet20", "random", "auto"), 32, 2000),
    "photos": (ModelSpec("torchvision:resnet18", "random", "auto"), 224, 200),
}
"""The model, the images' side, and how many there are.

`auto` runs two rows per image: what is not the model's time shows most there. (Where λ = 1 is no candidate, as with
`augbn`, the source model runs as well, which the bare loop does not.)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default="cifar,photos", help="cifar (32²), photos (224²)")
    parser.add_argument("--images", type=int, help="how many images (2000 and 200)")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--runs", default="bare,local1,local2,ray2", help="what to run, of bare, local1, local2, ray2")
    parser.add_argument("--bare", nargs=2, metavar=("SET", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bare:
        print(json.dumps(run_bare(*options.bare)))
        return
    for name in options.sets.split(","):
        measure(name, options.images or SETS[name][2], options.rounds, options.runs.split(","))


def measure(name: str, count: int, rounds: int, runs: list[str]) -> None:
    with tempfile.TemporaryDirectory() as place:
        images = Path(place, "images")
        draw(images, count, SETS[name][1])
        found: dict[str, list[float]] = {run: [] for run in runs}
        for turn in range(rounds):
            for run in runs if turn % 2 == 0 else runs[::-1]:
                output = Path(place, f"{run}-{turn}")
                figures = start_bare(name, images) if run == "bare" else run_engine(name, images, output, run)
                found[run].append(figures["rate"])
                print(
                    f"{name} {run:<7} {figures['rate']:8.2f} images/s, {figures['seconds']:6.1f} s in all", flush=True
                )
    for over, under in (("local1", "bare"), ("local2", "local1"), ("ray2", "local2")):
        if over in found and under in found:
            ratios = [a / b for a, b in zip(found[over], found[under], strict=True)]
            spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
            print(f"{name} {over} over {under}: {statistics.median(ratios):.2f} ({spread})", flush=True)


def draw(folder: Path, count: int, side: int) -> None:
    """Write images with structure of two scales: small ones as PNG, large ones as JPEG."""
    folder.mkdir()
    random = np.random.default_rng(0)
    ending = "png" if side < 64 else "jpg"
    for place in range(count):
        coarse = random.uniform(0, 255, (side // 8, side // 8, 3)).repeat(8, axis=0).repeat(8, axis=1)
        pixels = coarse + random.normal(0, 12, coarse.shape)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{place:05d}.{ending}")


def run_engine(name: str, images: Path, output: Path, run: str) -> dict[str, float]:
    engine: Any = run[:-1]
    batches: list[tuple[float, int]] = []
    done: dict[int, int] = {}

    def note(batch: BatchDone) -> None:
        done[batch.number] = batch.images
        batches.append((time.perf_counter(), sum(done.values())))

    start = time.perf_counter()
    score(SETS[name][0], images, output, engine=engine, workers=int(run[-1]), watch=note)
    seconds = time.perf_counter() - start
    (first, before), (last, after) = batches[0], batches[-1]
    return {"rate": (after - before) / (last - first), "seconds": seconds}


def start_bare(name: str, images: Path) -> dict[str, float]:
    """Run the loop in a process of its own, as a worker is."""
    command = [sys.executable, __file__, "--bare", name, str(images)]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return {**figures, "seconds": time.perf_counter() - start}


def run_bare(name: str, folder: str) -> dict[str, float]:
    from sita_workbench.commands.image_files import read_image
    from sita_workbench.scoring.scorer import Scorer, use_one_thread

    use_one_thread()
    spec = SETS[name][0]
    scorer = Scorer(spec)
    adapted = scorer.loaded.adapt(scorer.recipe)
    paths = sorted(Path(folder).iterdir())
    side = SETS[name][1]
    at_once = scorer.images_per_call(side, side)
    pixels = np.stack([read_image(path, scorer.loaded) for path in paths])
    # In rows of the list's own shards, as the engine's batches are.
    from sita_workbench.scoring.folder import choose_shard

    shard = choose_shard(len(paths))
    batches = [
        scorer.loaded.encode(part[start : start + at_once])
        for part in (pixels[first : first + shard] for first in range(0, len(pixels), shard))
        for start in range(0, len(part), at_once)
    ]
    scorer.loaded.run(adapted, batches[0])  # the trial before the first answer
    start = time.perf_counter()
    for batch in batches[1:]:
        scorer.loaded.run(adapted, batch)
    return {"rate": (len(pixels) - len(batches[0])) / (time.perf_counter() - start)}


if __name__ == "__main__":
    main()
