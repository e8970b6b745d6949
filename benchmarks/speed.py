"""The table of speed: networks × recipes × runtimes, compared with the plain model on one row and on the same rows.

    python benchmarks/speed.py                                       # all of it: two hours on one core
    python benchmarks/speed.py --networks resnet50 --runtimes eager  # a part of it
    python benchmarks/speed.py --show                                # the page from what is stored

Every cell (a network in a runtime) is measured in a separate process, on one thread, with all calls taking turns
(speed_cell.py). Results are stored in a file, and a run continues where the last one stopped. --again measures again.
The table and the figure of docs/speed.md are written at the end.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from speed_cell import NETWORKS, PEERS, RUNTIMES

_HERE = Path(__file__).parent
_PAGE = _HERE.parent / "docs" / "speed.md"
_TABLE = re.compile(
    r"(?<=<!-- table: written by benchmarks/speed.py -->\n\n).*?(?=\n\n<!-- end of table -->)", re.DOTALL
)
_PACKAGES = (
    "sita-adapters",
    "torch",
    "timm",
    "torchvision",
    "onnxruntime",
    "keras",
    "tensorflow-cpu",
    "tensorflow",
    "jax",
    "ttach",
)
_NAMES = {
    "resnet50": "ResNet-50",
    "densenet121": "DenseNet121",
    "inception_v3": "InceptionV3",
    "mobilenet_v2": "MobileNetV2",
    "segmentation": "Segmentation",
}
_COLOURS = {"auto": "#009E73", "augbn": "#0072B2", "ops_shared": "#E69F00", "ops": "#D55E00"}


def measure(network: str, runtime: str, *arguments: str) -> Any:
    """Return the output of a cell, or raise with the last line of its error."""
    command = [sys.executable, str(_HERE / "speed_cell.py"), "--network", network, "--runtime", runtime, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ})
    if done.returncode:
        message = done.stderr.strip().splitlines() or ["no message"]
        raise RuntimeError(message[-1])
    return json.loads(done.stdout.strip().splitlines()[-1])


def methods_of(network: str, runtime: str, recipes: list[str]) -> list[str]:
    """Return the recipes, and in eager the peers; MEMO labels whole images, and ttach need not be installed."""
    without = {"memo"} if network == "segmentation" else set()
    without |= set() if importlib.util.find_spec("ttach") else {"ttach-d4"}
    peers = [peer for peer in PEERS if runtime == "eager" and peer not in without]
    return [recipe for recipe in recipes if recipe not in PEERS or recipe in peers]


def fill(options: argparse.Namespace, kept: dict[str, Any]) -> None:
    """Measure the missing cells, and store each at once."""
    from rich.console import Console

    from sita_workbench.progress import ConsoleProgress

    progress = ConsoleProgress(Console())
    cells = [(network, runtime) for runtime in options.runtimes for network in options.networks]
    with progress.track("Measuring", len(cells)) as advance:
        for network, runtime in cells:
            cell = kept["cells"].setdefault(f"{network}/{runtime}", {"figures": [], "memory": {}})
            advance(0, doing=f"{_NAMES[network]}, {runtime}")
            try:
                fill_cell(cell, network, runtime, options)
                cell.pop("error", None)
            except RuntimeError as error:
                cell["error"] = str(error)
                progress.say(f"{_NAMES[network]}, {runtime}: {error}")
            write(options.out, kept)
            for line in rows_of(network, runtime, cell):
                progress.say(line)
            advance()


def fill_cell(cell: dict[str, Any], network: str, runtime: str, options: argparse.Namespace) -> None:
    """Measure what is missing in a cell."""
    wanted = methods_of(network, runtime, options.recipes)
    there = {figure["method"]: figure for figure in cell["figures"]}
    missing = [method for method in wanted if options.again or method not in there]
    if missing:
        turns = ("--repeats", str(options.repeats))
        figures = measure(network, runtime, "--recipes", ",".join(missing), *turns)
        there |= {figure["method"]: {**figure, "with": machine()} for figure in figures}
        cell["figures"] = list(there.values())
    if runtime == "eager" and sys.platform == "linux":
        for method in (name for recipe in wanted if recipe not in PEERS for name in (recipe, f"plain:{recipe}")):
            if options.again or method not in cell["memory"]:
                cell["memory"][method] = measure(network, runtime, "--memory", method)


def write(path: Path, kept: dict[str, Any]) -> None:
    """Write the file atomically."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(kept, indent=1) + "\n")
    part.replace(path)


def machine() -> dict[str, Any]:
    """Return the machine and the versions."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=_HERE, capture_output=True, text=True, check=False
    )
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "commit": commit.stdout.strip(),
        **versions,
    }


def rows_of(network: str, runtime: str, cell: dict[str, Any]) -> list[str]:
    """Return a cell's lines of the table."""
    if "error" in cell:
        return [f"| {_NAMES[network]} | {runtime} | — | | | | | |"]
    lines = []
    for figure in cell["figures"]:
        name = figure["method"]
        cost = "{:.1f} ({:.1f}–{:.1f})".format(*figure["times_one_row"])
        overhead = "{:.2f} ({:.2f}–{:.2f})".format(*figure["overhead"])
        memory = (
            "{:.0f} / {:.0f}".format(*(cell["memory"][f"{kind}{name}"] for kind in ("", "plain:")))
            if name in cell["memory"]
            else ""
        )
        if name == "plain" or name in ("tent", "memo"):
            overhead = ""
        rows = "" if name in ("tent", "memo") else figure["rows"]
        lines.append(
            f"| {_NAMES[network]} | {runtime} | {name} | {rows} | {figure['ms']:.0f} | {cost} | {overhead} | {memory} |"
        )
    return lines


def table(kept: dict[str, Any]) -> str:
    """Return the whole table in Markdown."""
    lines = [
        "| network | runtime | method | rows | ms | × plain, 1 row | × plain, same rows | MiB / plain's |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for network in NETWORKS:
        for runtime in RUNTIMES:
            cell = kept["cells"].get(f"{network}/{runtime}")
            if cell:
                lines += rows_of(network, runtime, cell)
    return "\n".join(lines)


def put_table(page: str, lines: str) -> str:
    """Return the page with another table."""
    changed, found = _TABLE.subn(lambda _: lines, page)
    if found != 1:
        raise SystemExit(f"{_PAGE}: expected the comments around its table once; found them {found} times.")
    return changed


def draw(kept: dict[str, Any], path: Path) -> None:
    """Draw the overhead over the plain model on the same rows: one panel per network, one line per runtime."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    networks = [n for n in NETWORKS if any(f"{n}/{r}" in kept["cells"] for r in RUNTIMES)]
    figure, panels = plt.subplots(
        1, len(networks), figsize=(2.4 * len(networks) + 1.2, 3.4), sharey=True, squeeze=False
    )
    for axes, network in zip(panels[0], networks, strict=True):
        axes.axvline(1, color="#6E6E6E", linewidth=0.8)
        for place, runtime in enumerate(RUNTIMES):
            figures = {f["method"]: f for f in kept["cells"].get(f"{network}/{runtime}", {"figures": []})["figures"]}
            for step, (recipe, colour) in enumerate(_COLOURS.items()):
                if recipe in figures:
                    middle, low, high = figures[recipe]["overhead"]
                    height = place + 0.2 * (step - 1)
                    axes.plot([low, high], [height, height], color=colour, linewidth=1.5)
                    axes.plot(middle, height, "o", color=colour, markersize=5, label=recipe)
        axes.set_title(_NAMES[network], fontsize=10)
        axes.grid(axis="x", color="#E3E3E3")
        axes.set_xlim(left=0.9)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_yticks(range(len(RUNTIMES)), RUNTIMES)
    panels[0][0].set_ylim(len(RUNTIMES) - 0.5, -0.5)
    handles = [plt.Line2D([], [], marker="o", color=c, linewidth=1.5, markersize=5) for c in _COLOURS.values()]
    figure.legend(handles, _COLOURS, loc="lower center", ncols=len(_COLOURS), frameon=False, fontsize=9)
    figure.suptitle(
        "Time of the adapted model over the plain model's on the same rows (median, quartiles; 1 thread)", fontsize=10
    )
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    figure.savefig(path, dpi=130)


def some_of(allowed: tuple[str, ...]) -> Any:
    """Return a reader for an option with names separated by commas."""

    def read(text: str) -> list[str]:
        names = text.split(",")
        unknown = [name for name in names if name not in allowed]
        if unknown:
            raise argparse.ArgumentTypeError(f"expected some of {', '.join(allowed)}; received {', '.join(unknown)}")
        return names

    return read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=some_of(tuple(NETWORKS)), default=list(NETWORKS), help=", ".join(NETWORKS))
    parser.add_argument("--runtimes", type=some_of(RUNTIMES), default=list(RUNTIMES), help=", ".join(RUNTIMES))
    parser.add_argument(
        "--recipes",
        type=lambda text: text.split(","),
        default=["augbn", "ops_shared", "ops", *PEERS],
        help=f"recipes and, in eager, peers ({', '.join(PEERS)})",
    )
    parser.add_argument("--repeats", type=int, default=7, help="turns that are counted (7)")
    parser.add_argument("--out", type=Path, default=_HERE / "speed.json", help="the file for the results")
    parser.add_argument("--again", action="store_true", help="measure stored results again")
    parser.add_argument("--show", action="store_true", help="measure nothing")
    options = parser.parse_args()
    kept = json.loads(options.out.read_text()) if options.out.exists() else {"cells": {}}
    if not options.show:
        fill(options, kept)
    print(table(kept))
    _PAGE.write_text(put_table(_PAGE.read_text(encoding="utf-8"), table(kept)), encoding="utf-8")
    draw(kept, _PAGE.with_suffix(".png"))


if __name__ == "__main__":
    main()
