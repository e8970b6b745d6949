"""Lets torchvision's Python side be imported where its compiled operators do not fit the installed torch.

Import this before timm or torchvision. A torchvision wheel built for CUDA does not load beside a CPU-only torch, and
its import then fails on operators without a schema. Models and transforms need none of them, so declaring the schemas
is enough; where the wheel fits, nothing is done.
"""

from importlib.util import find_spec
from pathlib import Path

import torch


def _declare_missing_operators() -> torch.library.Library | None:
    spec = find_spec("torchvision")
    if spec is None or spec.origin is None:
        return None
    for compiled in Path(spec.origin).parent.glob("_C*"):
        try:
            torch.ops.load_library(compiled)  # type: ignore[no-untyped-call]
        except OSError:
            break
        else:
            return None
    library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # type: ignore[no-untyped-call]
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # type: ignore[no-untyped-call]
    return library


# Schemas live as long as the library object does.
LIBRARY = _declare_missing_operators()
