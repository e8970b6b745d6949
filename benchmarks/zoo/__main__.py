"""The command: check what is missing, store the outcomes, write the page."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path

from platformdirs import user_cache_path
from rich.console import Console

import sita_workbench.models.torchvision_compat  # noqa: F401  (before timm and torchvision)
from sita_workbench.files import write_text
from sita_workbench.progress import ConsoleProgress
from sita_workbench.result_log import ResultLog

from . import __doc__ as description
from . import timm_members
from .libraries import all_members
from .members import Outcome
from .page import LIBRARIES, write_page
from .workers import check_all

_ROOT = Path(__file__).parents[2]


def main() -> int:
    """Run the zoo; 1 where something is wrong."""
    options = _read_options()
    if options.find_timm:
        timm_members.find()
        return 0
    progress = ConsoleProgress(Console())
    options.out.mkdir(parents=True, exist_ok=True)
    log = ResultLog(options.out / "outcomes.jsonl", {"zoo": 2})
    code = _code()
    wanted = [member for member in all_members() if options.only in member.key]
    missing = [m for m in wanted if options.only or log.entries.get(m.key, {}).get("code") != code]
    progress.say(f"{len(missing)} of {len(wanted)} models to check; outcomes are stored in {log.path}.")
    with progress.track("The zoo", len(missing)) as advance:
        for member, outcome in check_all(missing, options.processes):
            log.add(member.key, {"code": code, "outcome": dataclasses.asdict(outcome)})
            advance(doing=member.key)
            if options.only or outcome.kind in ("WRONG", "crash"):
                progress.say(f"{member.key} ({outcome.seconds:.0f} s): {outcome.verdict}")
    log.close()
    outcomes = [(member, Outcome(**log.entries[member.key]["outcome"])) for member in wanted]
    if not options.only:
        write_text(_ROOT / "docs" / "zoo.md", write_page(outcomes))
        progress.say("Wrote docs/zoo.md.")
    counts = Counter(outcome.kind for _, outcome in outcomes)
    progress.say(", ".join(f"{count} {kind}" for kind, count in counts.most_common()))
    return 1 if counts["WRONG"] or counts["crash"] else 0


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.zoo", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="check the models whose name has this in it, again")
    parser.add_argument("--processes", type=int, default=2)
    out = user_cache_path("sita-adapters", appauthor=False) / "zoo"
    parser.add_argument("--out", type=Path, default=out, help="the folder for the outcomes")
    parser.add_argument("--find-timm", action="store_true", help="choose timm's members again (six minutes)")
    return parser.parse_args()


def _code() -> str:
    """Return a short text that changes with the code and the versions that an outcome depends on."""
    versions = [version(name.partition(".")[0]) for name in ("torch", *LIBRARIES)]
    digest = hashlib.sha256(" ".join(versions).encode())
    for folder in ("sita_adapters", "backends/sita_torch", "backends/sita_keras", "benchmarks/zoo"):
        for path in sorted((_ROOT / folder).glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())
