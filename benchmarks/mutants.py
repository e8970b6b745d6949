"""Would the tests notice? Defects are put into copies of the source, one at a time; a test has to fail for each.

    python benchmarks/mutants.py            # all of them; writes docs/mutants.md
    python benchmarks/mutants.py --only γ   # those with this in their name

First all the tests that are used run on the source as it is, where they have to pass. It exits with 1 where a defect
survived, and where one does not fit the source any more.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from mutant_list import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("sita_adapters", "backends", "workbench", "tests", "benchmarks", "pyproject.toml")
PAGE = ROOT / "docs" / "mutants.md"
TIMEOUT = 300
"""Seconds for the tests of a mutant: one that makes them hang is caught, too."""

SURVIVED = "SURVIVED"


class StaleMutantError(Exception):
    """A mutant, or its choice of tests, does not fit the source."""


def mutate(mutant: Mutant, root: Path) -> None:
    """Put a defect into a copy of the source."""
    path = root / mutant.file
    text = path.read_text(encoding="utf-8")
    found = text.count(mutant.old)
    if found != 1 or mutant.old == mutant.new:
        raise StaleMutantError(f"{mutant.name!r}: expected its text once in {mutant.file}; found it {found} times.")
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")


def copy_source(to: Path) -> None:
    """Copy all that the tests need."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, to / name)


def run_tests(root: Path, tests: Iterable[str], keras: str | None) -> tuple[int, str]:
    """Run tests on a copy of the source; return pytest's exit code and what it printed."""
    folders = (".", "backends", "workbench", "tests/shared")
    environment = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    environment |= {"PYTHONPATH": os.pathsep.join(str(root / each) for each in folders), "PYTHONDONTWRITEBYTECODE": "1"}
    if keras is not None:
        environment["KERAS_BACKEND"] = keras
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return 1, f"FAILED {next(iter(tests))} - it hangs"
    return done.returncode, done.stdout + done.stderr


def first_failure(output: str) -> str:
    """Return the first test that failed, as pytest names it."""
    found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
    if found is None:
        raise StaleMutantError(f"pytest names no test that failed:\n{output[-2000:]}")
    return found[1]


def judge(mutant: Mutant) -> str:
    """Return the test that catches a mutant, or that it survived."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        root = Path(folder) / "source"
        root.mkdir()
        copy_source(root)
        mutate(mutant, root)
        code, output = run_tests(root, mutant.tests, mutant.keras)
    if code == 0:
        return SURVIVED
    if code != 1:  # nothing was collected, or the copy cannot be imported
        raise StaleMutantError(f"{mutant.name!r}: pytest ended with {code}:\n{output[-2000:]}")
    return first_failure(output)


def check_source(mutants: Iterable[Mutant]) -> None:
    """Raise unless every mutant fits the source, and its tests pass on it."""
    chosen: dict[str | None, dict[str, None]] = {}
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        root = Path(folder) / "source"
        root.mkdir()
        copy_source(root)
        for mutant in mutants:
            before = (root / mutant.file).read_text(encoding="utf-8")
            mutate(mutant, root)
            (root / mutant.file).write_text(before, encoding="utf-8")
            chosen.setdefault(mutant.keras, {}).update(dict.fromkeys(mutant.tests))
        for keras, tests in chosen.items():
            code, output = run_tests(root, tests, keras)
            if code:
                raise StaleMutantError(f"The tests fail on the source as it is:\n{output[-3000:]}")


def write_page(verdicts: dict[Mutant, str]) -> None:
    """Write the table of docs/mutants.md."""
    caught = sum(verdict != SURVIVED for verdict in verdicts.values())
    lines = [
        "# Would the tests notice?",
        "",
        "`make mutants` puts each of these defects into a copy of the source (`benchmarks/mutant_list.py` has the",
        "changes) and runs a few tests of `make test` on it. A defect is caught if one of them fails. The page is",
        "written by that command.",
        "",
        f"{caught} of {len(verdicts)} are caught.",
        "",
        "| defect | in | caught by |",
        "| --- | --- | --- |",
    ]
    for mutant, verdict in verdicts.items():
        shown = f"**{SURVIVED}**" if verdict == SURVIVED else f"`{verdict.replace('|', chr(92) + '|')}`"
        lines.append(f"| {mutant.name} | `{mutant.file}` | {shown} |")
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="mutants with this in their name; the page is not written then")
    options = parser.parse_args()
    mutants = [mutant for mutant in MUTANTS if options.only in mutant.name]
    try:
        print("the source as it is: its tests have to pass", flush=True)
        check_source(mutants)
        verdicts: dict[Mutant, str] = {}
        for place, mutant in enumerate(mutants, 1):
            started = time.perf_counter()
            verdict = verdicts[mutant] = judge(mutant)
            shown = verdict if verdict == SURVIVED else f"caught by {verdict}"
            seconds = time.perf_counter() - started
            print(f"{place:>3}/{len(mutants)}  {seconds:4.0f} s  {mutant.name:<54} {shown}", flush=True)
    except StaleMutantError as error:
        print(error, file=sys.stderr)
        return 1
    survivors = [mutant.name for mutant, verdict in verdicts.items() if verdict == SURVIVED]
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} caught.", *(f"Survived: {name}" for name in survivors))
    if not options.only:
        write_page(verdicts)
    return 1 if survivors or not mutants else 0


if __name__ == "__main__":
    sys.exit(main())
