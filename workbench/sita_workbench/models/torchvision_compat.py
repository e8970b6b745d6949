"""Make torchvision importable if its compiled operators do not match the installed torch.

Import this before timm or torchvision. A torchvision wheel built for CUDA does not load with a CPU-only torch: its
import fails on operators that have no schema. Models and transforms need none of these operators, so it is enough to
declare their schemas. If torchvision loads, this module does nothing.
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
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # type: ignore[no-untyped-call]
    return library


# The schemas exist as long as the library object does.
LIBRARY = _declare_missing_operators()
