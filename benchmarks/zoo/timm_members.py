"""timm: the smallest member of every family that has BatchNorm.

A family is a module of timm and the letters that a model's name begins with: `byobnet/gernet`, `resnet/seresnext`. To
know the smallest, all 1,351 models have to be made, which takes six minutes: timm_members.json keeps the choice,
and null for a family without BatchNorm.
"""

from __future__ import annotations

import functools
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sita_workbench.files import write_json

from .members import Member, squares

_CHOICE = Path(__file__).with_suffix(".json")
_SIZES = (64, 96, 128, 160, 192)


def members() -> Iterator[Member]:
    """Yield the chosen members; a family of the installed timm that nothing was chosen for is an error."""
    chosen = json.loads(_CHOICE.read_text(encoding="utf-8"))
    for family in families():
        if family not in chosen:
            raise LookupError(f"timm's family {family} is not in {_CHOICE.name}. Try: --find-timm.")
        if choice := chosen[family]:
            shapes = squares(*_SIZES, choice["size"])
            yield Member("timm", choice["name"], functools.partial(_build, choice["name"]), shapes)


def families() -> dict[str, list[str]]:
    """Return the names of the models of each family."""
    import timm
    from timm.models import get_arch_name, model_entrypoint

    found: defaultdict[str, list[str]] = defaultdict(list)
    for name in timm.list_models():
        module = model_entrypoint(get_arch_name(name)).__module__.rpartition(".")[2]
        letters = re.match(r"(tf_)?([a-z]+v\d+|[a-z]+)", name)
        stem = letters.group(0) if letters else name
        found[module if stem == module else f"{module}/{stem}"].append(name)
    return dict(sorted(found.items()))


def find() -> None:
    """Make every model of timm, without memory for its weights, and write which is each family's smallest."""
    from rich.progress import track

    chosen: dict[str, Any] = {}
    for family, names in track(families().items(), "Making timm's models"):
        having = [facts for facts in map(_facts, names) if facts.pop("layers")]
        chosen[family] = min(having, key=lambda facts: facts["parameters"], default=None)
    write_json(_CHOICE, chosen)


def _facts(name: str) -> dict[str, Any]:
    import torch

    from .torch_layers import statistics_of

    with torch.device("meta"):
        model = _build(name)
    return {
        "name": name,
        "size": model.default_cfg["input_size"][-1],
        "parameters": sum(each.numel() for each in model.parameters()),
        "layers": sum(statistics_of(module) is not None for module in model.modules()),
    }


def _build(name: str) -> Any:
    import timm

    return timm.create_model(name)
