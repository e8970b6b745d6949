"""Images per second of `sita score`: two workers over one, one over a bare loop, Ray over local workers.

    python benchmarks/score_speed.py                            # seeded weights, random images
    python benchmarks/score_speed.py --sets cifar --images 2000 --rounds 3

Every round runs everything once; a ratio is of two figures of the same round: the median, and the range. Speed is
counted from when all workers have processed a batch until the last one, without the start of the processes.

- `bare`: the adapted model, in a process with one thread, on images that are decoded and encoded already, in batches as
  large as the engine's.
- `local1`, `local2`, `ray2`: the engines, with one worker and with two.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from sita_workbench import ModelSpec, score
from sita_workbench.commands.image_files import read_image
from sita_workbench.methods import images_per_call
from sita_workbench.models.loading import load_model
from sita_workbench.scoring import Report, use_one_thread
from sita_workbench.scoring.folder import choose_shard

# The model, the side of the images, and how many there are.
SETS = {"cifar": ("cifar10-resnet20", 32, 2000), "photos": ("torchvision:resnet18", 224, 200)}
RECIPE = "auto"  # two rows per image: what is not the model's time shows most
RUNS = ("bare", "local1", "local2", "ray2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default="cifar,photos", help="cifar (32²), photos (224²)")
    parser.add_argument("--images", type=int, help="how many images (2000 and 200)")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--runs", default=",".join(RUNS), help=f"what to run, of {', '.join(RUNS)}")
    options = parser.parse_args()
    for name in options.sets.split(","):
        measure(name, options.images or SETS[name][2], options.rounds, options.runs.split(","))


def measure(name: str, count: int, rounds: int, runs: list[str]) -> None:
    found: dict[str, list[float]] = {run: [] for run in runs}
    with tempfile.TemporaryDirectory() as folder:
        images = Path(folder, "images")
        draw(images, count, SETS[name][1])
        for turn in range(rounds):
            for run in runs if turn % 2 == 0 else runs[::-1]:
                with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
                    measured = process.submit(run_bare if run == "bare" else run_engine, run, name, images)
                    found[run].append(measured.result())
                print(f"{name} {run:<7} {found[run][-1]:.2f} images/s", flush=True)
    for under, over in itertools.pairwise(runs):
        ratios = [a / b for a, b in zip(found[over], found[under], strict=True)]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"{name} {over} over {under}: {statistics.median(ratios):.2f} ({spread})", flush=True)


def draw(folder: Path, count: int, side: int) -> None:
    """Write images with structure of two scales: small ones as PNG, large ones as JPEG."""
    folder.mkdir()
    random = np.random.default_rng(0)
    for number in range(count):
        coarse = random.uniform(0, 255, (side // 8, side // 8, 3)).repeat(8, axis=0).repeat(8, axis=1)
        pixels = (coarse + random.normal(0, 12, coarse.shape)).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:05d}.{'png' if side < 64 else 'jpg'}")


def run_engine(run: str, name: str, images: Path) -> float:
    workers = int(run[-1])
    done, seen, times = dict[int, int](), set[int](), list[tuple[float, int]]()

    def note(report: Report) -> None:
        seen.add(report.pid)
        done[report.number] = report.images
        if len(seen) == workers:
            times.append((time.perf_counter(), sum(done.values())))

    spec = ModelSpec(SETS[name][0], "random", RECIPE)
    with tempfile.TemporaryDirectory() as output:
        score(spec, images, output, engine="ray" if run == "ray2" else "local", workers=workers, watch=note)
    return (times[-1][1] - times[0][1]) / (times[-1][0] - times[0][0])


def run_bare(run: str, name: str, images: Path) -> float:
    use_one_thread()
    loaded = load_model(SETS[name][0], "random")
    adapted = loaded.adapt(RECIPE)
    pixels = np.stack([read_image(path, loaded) for path in sorted(images.iterdir())])
    at_once = min(images_per_call(2, *pixels.shape[1:3]), choose_shard(len(pixels)))
    batches = [loaded.encode(pixels[start : start + at_once]) for start in range(0, len(pixels), at_once)]
    loaded.run(adapted, batches[0])  # the trial before the first answer
    start = time.perf_counter()
    for batch in batches[1:]:
        loaded.run(adapted, batch)
    return (len(pixels) - at_once) / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
