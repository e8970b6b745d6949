"""The defects of `make mutants` fit the source, and the tests that are to find them are there."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

sys.path.append(str(ROOT / "benchmarks"))
from mutant_list import MUTANTS  # noqa: E402


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_defect_fits_the_source_and_has_its_tests(mutant: Any) -> None:
    assert (ROOT / mutant.file).read_text(encoding="utf-8").count(mutant.old) == 1
    assert mutant.new != mutant.old
    for test in mutant.tests:
        file, *names = test.partition("[")[0].split("::")
        assert re.search(rf"def {names[-1]}\(", (ROOT / file).read_text(encoding="utf-8"))


def test_names_are_told_apart() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_the_first_failure_is_read_from_what_pytest_prints() -> None:
    mutants = importlib.import_module("mutants")
    printed = "..F\nFAILED tests/a.py::test_b[two images] - AssertionError: 1 - 2\nFAILED tests/a.py::test_c\n"
    assert mutants.first_failure(printed) == "tests/a.py::test_b[two images]"
    with pytest.raises(mutants.StaleMutantError):
        mutants.first_failure("3 passed")
