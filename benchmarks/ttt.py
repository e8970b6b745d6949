"""TTT and the other methods on the networks that have a rotation head, on CIFAR-10-C at severity 5 and on clean images.

    python benchmarks/ttt.py DATA --out OUT             # both networks: 40 minutes on one idle core
    python benchmarks/ttt.py DATA --out OUT --only gn

DATA holds `cifar10c/` and `cifar10/test_1000.npz`. `train_cifar.py` says how the networks were trained. The library
refuses the network with GroupNorm, because there is nothing to adapt: there, only methods run that train. Results are
logged in OUT; rerun the same command to resume.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from study.cifar_ttt import load

from sita_adapters.inputs import ENCODINGS
from sita_adapters.voting import Scores
from sita_workbench.data.opening import open_data
from sita_workbench.methods import make_methods
from sita_workbench.models.loaded import LoadedModel
from sita_workbench.progress import ConsoleProgress
from sita_workbench.runs import Run, run_bench
from sita_workbench.timing import time_methods

RECIPES = {"bn": "bn,augbn[priors=0.8],ops,auto,ptn,tent,memo,mixnorm,ttt", "gn": "memo,ttt"}


class WithoutBatchNorm(LoadedModel):
    """A PyTorch model that returns logits and that the library does not adapt."""

    def _run(self, model: Any, images: np.ndarray) -> tuple[np.ndarray, Scores]:
        with torch.inference_mode():
            return model(torch.from_numpy(np.moveaxis(images, -1, 1).copy())).numpy(), "logits"


def load_network(norm: str) -> LoadedModel:
    """Return the network with BatchNorm or GroupNorm."""
    name = f"resnet26_{norm}_ttt"
    file = Path(__file__).parent / f"weights/cifar10_{name}.safetensors"
    kind = LoadedModel if norm == "bn" else WithoutBatchNorm
    return kind(name, load(name, file), ENCODINGS["imagenet"], 32, 1.0, weights=file.name)


def measure(norm: str, data: Path, out: Path, options: argparse.Namespace, progress: ConsoleProgress) -> None:
    """Run what is missing, and print the network's table."""
    loaded, methods = load_network(norm), make_methods(options.recipes or RECIPES[norm], "classification")
    specs = {
        "corrupted": (f"cifar10c:{data / 'cifar10c'}", "all", options.limit),
        "clean": (f"npz:{data / 'cifar10/test_1000.npz'}", "none", options.clean),
    }
    found: dict[str, list[dict[str, Any]]] = {}
    for part, (spec, corrupt, limit) in specs.items():
        opened = open_data(spec, corrupt=corrupt, severities=(5,), limit=limit, size=32, crop=1.0)
        run = Run(loaded, opened, methods)
        found[part] = run_bench(run, out / f"{norm}-{part}-{limit}", progress)["methods"]
    times = time_methods(run, options.timing, out / f"{norm}-timing.json", progress)
    assert times is not None
    print(
        f"\n| {loaded.spec} | severity 5 | gain | clean | gain | ms per image |\n| --- | --- | --- | --- | --- | --- |"
    )
    for corrupted, clean in zip(found["corrupted"], found["clean"], strict=True):
        name, parts = corrupted["name"], (corrupted["corrupted"], clean["clean"])
        cells = [text for part in parts for text in (_cell(part), _cell(part["gain"], "+"))]
        print(f"| {name} | {' | '.join(cells)} | {times['methods'][name]['ms']:.0f} |", flush=True)


def _cell(score: dict[str, float] | None, sign: str = "") -> str:
    """Return a score and its interval; nothing for the source's gain."""
    if score is None:
        return ""
    value, low, high = (f"{score[key]:{sign}.1f}".replace("-", "−") for key in ("score", "low", "high"))
    return f"{value} ({low} … {high})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="the folder for results")
    parser.add_argument("--only", choices=RECIPES, help="one of the networks")
    parser.add_argument("--recipes", help="some of the methods, as for `sita bench`")
    parser.add_argument("--limit", type=int, default=40, help="images of each of the 15 kinds (40)")
    parser.add_argument("--clean", type=int, default=300, help="clean images (300)")
    parser.add_argument("--timing", type=int, default=5, help="timed runs of each method (5)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for norm in [options.only] if options.only else RECIPES:
        measure(norm, options.data, options.out, options, ConsoleProgress(Console(highlight=False)))


if __name__ == "__main__":
    main()
