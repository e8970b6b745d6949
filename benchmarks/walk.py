"""The walk of one later call: which of the library's functions and files an adapted model's call runs through.

    python benchmarks/walk.py             # PyTorch
    python benchmarks/walk.py --list      # also every function, in the order in which it first ran

A function counts once, however often it runs. A change of file counts whenever the next function that starts is in
another file than the one before. The network has two BatchNorm layers, and was called before.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

import sita_adapters as sita

_FOLDERS = ("sita_adapters", "sita_torch")
_COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")  # part of the function around them


class Walk:
    """Records the library's functions while a profile function sees every call and return."""

    def __init__(self) -> None:
        self.functions: dict[tuple[str, str, int], int] = {}
        self.changes = 0
        self._file = ""

    def __call__(self, frame: Any, event: str, _: Any) -> None:
        """Note a call of one of the library's functions."""
        code = frame.f_code
        path = Path(code.co_filename)
        if event != "call" or path.parent.name not in _FOLDERS or code.co_name in _COMPREHENSIONS:
            return
        file = f"{path.parent.name}/{path.name}"
        key = (file, getattr(code, "co_qualname", code.co_name), code.co_firstlineno)
        self.functions[key] = self.functions.get(key, 0) + 1
        self.changes += file != self._file
        self._file = file


def main() -> None:
    """Walk through one call, and print what was counted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="auto", help="which recipe runs")
    parser.add_argument("--list", action="store_true", help="print every function")
    options = parser.parse_args()
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3),
        nn.BatchNorm2d(8),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    ]
    layers[-1].weight.data.mul_(10)  # clearly logits: of both signs
    images = torch.rand(2, 3, 16, 16)
    adapted = sita.adapt(nn.Sequential(*layers).eval(), options.recipe)
    with torch.inference_mode():
        adapted(images)
        walk = Walk()
        sys.setprofile(walk)
        adapted(images)
        sys.setprofile(None)
    files = {name for name, *_ in walk.functions}
    print(f"{len(walk.functions)} functions, {len(files)} files, {walk.changes} changes of file")
    for (name, function, line), count in walk.functions.items() if options.list else ():
        print(f"{count:>5}  {name}:{line}  {function}")


if __name__ == "__main__":
    main()
