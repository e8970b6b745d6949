"""Images per second of `sita score`: one worker over a loop, two workers over one, Ray over local workers.

    python benchmarks/score_speed.py                            # seeded weights, random images
    python benchmarks/score_speed.py --sets cifar --images 2000 --rounds 3

Every round runs everything once; a ratio is of two figures of the same round: the median, and the range. Speed is
counted from when all workers have processed a batch until the last one, without the start of the processes. `loop` is
the adapted model, in a process with one thread, on images that are decoded and encoded already, in as large batches.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from sita_workbench import ModelSpec, score
from sita_workbench.commands.image_files import read_image
from sita_workbench.models.loading import load_model
from sita_workbench.scoring import Report, use_threads

# The model, the side of the images, how many there are, and how many of them a part has: as many as run in one call.
SETS = {"cifar": ("cifar10-resnet20", 32, 2000, 63), "photos": ("torchvision:resnet18", 224, 200, 7)}
RECIPE = "auto"  # two rows per image: what is not the model's time shows most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default="cifar,photos", help="cifar (32²), photos (224²)")
    parser.add_argument("--images", type=int, help="how many images (2000 and 200)")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--runs", default="loop,local1,local2,ray2", help="what to run")
    options = parser.parse_args()
    for name in options.sets.split(","):
        _, side, count, _ = SETS[name]
        with tempfile.TemporaryDirectory() as folder:
            for number in range(options.images or count):
                path = Path(folder, f"{number:05d}.{'png' if side < 64 else 'jpg'}")
                Image.fromarray(random_image(number, side)).save(path)
            measure(name, Path(folder), options.rounds, options.runs.split(","))


def measure(name: str, images: Path, rounds: int, runs: list[str]) -> None:
    found: dict[str, list[float]] = {run: [] for run in runs}
    for turn in range(rounds):
        for run in runs if turn % 2 == 0 else runs[::-1]:
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
                measured = process.submit(run_loop if run == "loop" else run_engine, run, name, images)
                found[run].append(measured.result())
            print(f"{name} {run:<7} {found[run][-1]:.2f} images/s", flush=True)
    for under, over in itertools.pairwise(runs):
        ratios = np.divide(found[over], found[under])
        print(f"{name} {over} over {under}: {np.median(ratios):.2f} ({ratios.min():.2f} to {ratios.max():.2f})")


def random_image(seed: int, side: int) -> np.ndarray:
    """Return an image with structure of two scales."""
    random = np.random.default_rng(seed)
    coarse = random.uniform(0, 255, (side // 8, side // 8, 3)).repeat(8, axis=0).repeat(8, axis=1)
    return (coarse + random.normal(0, 12, coarse.shape)).clip(0, 255).astype(np.uint8)


def run_engine(run: str, name: str, images: Path) -> float:
    workers = int(run[-1])
    done, seen, times = dict[int, int](), set[int](), list[tuple[float, int]]()

    def note(report: Report) -> None:
        seen.add(report.pid)
        done[report.number] = report.images
        if len(seen) == workers:
            times.append((time.perf_counter(), sum(done.values())))

    spec, shard = ModelSpec(SETS[name][0], "random", RECIPE), SETS[name][3]
    with tempfile.TemporaryDirectory() as output:
        score(
            spec, images, output, engine="ray" if run == "ray2" else "local", workers=workers, shard=shard, watch=note
        )
    return (times[-1][1] - times[0][1]) / (times[-1][0] - times[0][0])


def run_loop(run: str, name: str, images: Path) -> float:
    use_threads(1)
    model, _, _, at_once = SETS[name]
    loaded = load_model(model, "random")
    adapted = loaded.adapt(RECIPE)
    pixels = np.stack([read_image(path, loaded) for path in sorted(images.iterdir())])
    batches = [loaded.encode(pixels[start : start + at_once]) for start in range(0, len(pixels), at_once)]
    loaded.run(adapted, batches[0])  # the trial before the first answer
    start = time.perf_counter()
    for batch in batches[1:]:
        loaded.run(adapted, batch)
    return (len(pixels) - at_once) / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
