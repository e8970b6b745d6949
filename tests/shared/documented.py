"""The code blocks of README and documentation, and how they are run.

A page's Python blocks run in order, in one namespace and an empty folder. What a page does not show, for it would be in
a reader's way, stands in comments that are not displayed:

    <!-- run                      run this, too
    images = torch.rand(2, 3, 8, 8)
    -->
    <!-- skip: the reason -->     do not run the next block

A block of plain text right after a Python block is what that prints, perhaps with … in place of the rest. So is the
comment after `print(…)` on the same line. Models come with seeded weights: nothing is downloaded.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]

_FENCE = re.compile(r"^(?P<fence>`{3,}|:{3,})\s*(?P<language>.*?)\s*$")
_COMMENT = re.compile(r"^<!-- (?P<kind>run$|skip: \S.*-->$)")


@dataclass(frozen=True)
class Block:
    """A block of a page: its language ("run" for a comment that is run), text, and the line before its first."""

    language: str
    text: str
    line: int
    skipped: bool = False


def blocks_of(page: Path) -> list[Block]:
    """Return all blocks of a page, in order."""
    found: list[Block] = []
    skip = False
    lines = iter(enumerate(page.read_text(encoding="utf-8").splitlines(), 1))
    for number, line in lines:
        if comment := _COMMENT.match(line):
            if comment["kind"] == "run":
                found.append(Block("run", _until(lines, "-->"), number))
            else:
                skip = True
        elif fence := _FENCE.match(line):
            if fence["fence"][0] == ":":  # a note, whose text is part of the page
                continue
            found.append(Block(fence["language"], _until(lines, fence["fence"]), number, skip))
            skip = False
    return found


def _until(lines: Iterator[tuple[int, str]], end: str) -> str:
    text = []
    for _, line in lines:
        if line == end:
            return "\n".join(text) + "\n"
        text.append(line)
    raise AssertionError(f"a block is not closed with {end}")


def code_of(page: Path, framework: str) -> list[Block]:
    """Return what runs of a page in a process of "torch" or "keras", and what it prints.

    A block that imports Keras, and those after it, belong to Keras, until one imports PyTorch alone.
    """
    chosen = []
    current = "torch"
    for block in blocks_of(page):
        if block.language == "python" and re.search(r"^(import|from) keras", block.text, re.MULTILINE):
            current = "keras"
        elif block.language == "python" and re.search(r"^(import|from) (torch|timm)", block.text, re.MULTILINE):
            current = "torch"
        if block.language in ("python", "run", "text") and current == framework:
            chosen.append(block)
    return chosen if any(block.language == "python" for block in chosen) else []


def run_page(page: Path, framework: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a page's Python blocks, and compare what they print with the text after them."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    namespace: dict[str, Any] = {"__name__": page.stem}
    printed: str | None = None
    for block in code_of(page, framework):
        if block.language == "text":
            if printed is not None:
                _compare(printed, block.text)
            printed = None
        elif block.skipped:
            compile(block.text, str(page), "exec")
            printed = None
        else:
            code = compile("\n" * block.line + block.text, str(page), "exec")
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(code, namespace)
            printed = out.getvalue() if block.language == "python" else None
            if comments := re.findall(r"print\(.*\)  # (.*)$", block.text, re.MULTILINE):
                assert out.getvalue().splitlines() == comments


def _compare(printed: str, shown: str) -> None:
    lines, expected = [line.rstrip() for line in printed.splitlines()], shown.splitlines()
    if expected[-1] == "…":
        expected = expected[:-1]
        lines = lines[: len(expected)]
    assert lines == expected


def seeded(build: Callable[..., Any], seed: Callable[[], Any], **instead: Any) -> Callable[..., Any]:
    """Return a function that builds a model with seeded weights, where it would download trained ones.

    ResNets of timm have an eighth of their channels: the layers, and all that the pages show, are the same.
    """

    def build_seeded(*args: Any, **kwargs: Any) -> Any:
        seed()
        narrow = {"channels": (8, 16, 32, 64)} if args and str(args[0]).startswith("resnet") else {}
        return build(*args, **{**kwargs, **instead, **narrow})

    return build_seeded


def forbid_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a download that slipped through fail at once, whatever the machine is connected to."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setitem(os.environ, name, "http://127.0.0.1:9")
