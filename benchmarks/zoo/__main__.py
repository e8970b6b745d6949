"""The command: check what has changed, keep the outcomes, write the page."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import hashlib
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path
from rich.console import Console

import sita_workbench.models.torchvision_compat  # noqa: F401  (before timm and torchvision)
from sita_workbench.files import write_text
from sita_workbench.progress import ConsoleProgress
from sita_workbench.result_log import ResultLog

from .members import LIBRARIES, Member, Outcome, members_of
from .page import kind_of, write_page
from .workers import check_all

_ROOT = Path(__file__).parents[2]
_PAGE = _ROOT / "docs" / "zoo.md"


def main() -> int:
    """Run the zoo; 1 where something is wrong."""
    options = _read_options()
    if options.find_timm:
        from .timm_members import find

        find()
        return 0
    progress = ConsoleProgress(Console())
    members = [member for library in options.libraries for member in members_of(library).values()]
    options.out.mkdir(parents=True, exist_ok=True)
    log = ResultLog(options.out / "zoo.jsonl", {"zoo": 1})
    wanted = [member for member in members if options.only in member.key]
    again = [member for member in wanted if options.again or options.only or not _is_current(member, log)]
    progress.say(f"{len(again)} of {len(wanted)} families to check; outcomes are kept in {log.path}.")
    with progress.track("The zoo", len(again)) as advance:
        for member, outcome in check_all(again, options.processes):
            log.add(member.key, {"fingerprint": fingerprint(member), "outcome": dataclasses.asdict(outcome)})
            advance(doing=member.key)
            if kind_of(outcome.verdict) in ("WRONG", "crash") or options.only:
                progress.say(f"{member.key} ({outcome.member}, {outcome.seconds:.0f} s): {outcome.verdict}")
    outcomes = {key: Outcome(**entry["outcome"]) for key, entry in log.entries.items()}
    log.close()
    if set(options.libraries) == set(LIBRARIES):
        write_text(options.page, write_page(members, outcomes))
        progress.say(f"Wrote {options.page}.")
    counts = Counter(kind_of(outcomes[member.key].verdict) for member in wanted)
    progress.say(", ".join(f"{count} {kind}" for kind, count in counts.most_common()))
    return 1 if counts["WRONG"] or counts["crash"] else 0


def _read_options() -> Any:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo", description=__doc__)
    parser.add_argument("--libraries", nargs="+", choices=LIBRARIES, default=LIBRARIES, help="the page needs all")
    parser.add_argument("--only", default="", help="check the families whose name has this in it, again")
    parser.add_argument("--again", action="store_true", help="check everything again")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--out", type=Path, default=user_cache_path("sita-adapters", appauthor=False) / "zoo", help="a folder"
    )
    parser.add_argument("--page", type=Path, default=_PAGE)
    parser.add_argument("--find-timm", action="store_true", help="choose timm's members again (six minutes)")
    return parser.parse_args()


def _is_current(member: Member, log: ResultLog) -> bool:
    entry = log.entries.get(member.key)
    return entry is not None and entry["fingerprint"] == fingerprint(member)


def fingerprint(member: Member) -> str:
    """Return what an outcome depends on, as a short text: the code, the versions, and how the member is made."""
    build = member.build
    made = getattr(build, "func", build)
    how = (getattr(made, "__qualname__", None), getattr(build, "args", ()), member.shapes, member.extra)
    backend = "sita_keras" if member.library.startswith("keras") else "sita_torch"
    return hashlib.sha256(f"{_code(backend)} {how}".encode()).hexdigest()[:16]


@functools.cache
def _code(backend: str) -> str:
    digest = hashlib.sha256()
    framework = backend.removeprefix("sita_")
    folders = [_ROOT / "sita_adapters", _ROOT / "backends" / backend]
    files = [path for folder in folders for path in folder.glob("*.py")]
    for path in sorted([*files, *Path(__file__).parent.glob(f"{framework}_*.py")]):
        if not path.stem.endswith("_members"):
            digest.update(path.read_bytes())
    for package in ("torch", "timm", "torchvision", "transformers", "segmentation-models-pytorch", "keras"):
        digest.update(version(package).encode())
    return digest.hexdigest()


if __name__ == "__main__":
    sys.exit(main())
