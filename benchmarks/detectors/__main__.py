"""The command: check all detectors, or those whose names contain a word."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from pathlib import Path

os.environ.update(KERAS_BACKEND="torch", YOLO_OFFLINE="true", YOLO_CONFIG_DIR=tempfile.mkdtemp())
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import torch

import sita_workbench.models.torchvision_compat  # noqa: F401  (before torchvision)
from sita_adapters.errors import SitaError

from .checks import Result, check
from .members import Detector, detectors

_PAGE = Path(__file__).parents[2] / "docs/detectors.md"

_INTRODUCTION = """# Detectors

Adapt a detector like any other model, or the module inside its pipeline ([Pipelines](pipelines.md)). `auto` keeps
the source's boxes unless an image is far from the training images ([Segmentation and other outputs](outputs.md)). To
adapt to every image, use `shift`. Whether this improves detections (mAP) was not measured, so measure it before you use
it.

    yolo.model = sita.adapt(yolo.model, "shift")

The table shows what detectors return, and what `auto` does with it: `1.boxes 64×336` is the array at
`output[1]["boxes"]`, without its batch dimension. The counts say nothing about your images, because each model has
random weights, and statistics measured on random images. Each model runs on four images: two that the statistics were
measured on, one of low contrast, and one unlike them. The reference runs the source twice per image, in float64:
unchanged, and with the statistics that the rule of `auto` gives every normalization. It decides independently of the
library which of the two an image's outputs come from.

    python -m benchmarks.detectors

measures this table in a few minutes. The column "adapted" counts the images whose outputs came from the adapted row; a
mix gives both rows some weight. The largest difference is relative to the largest value of each array. Class ids stored
as floats were whole numbers in every answer.

| library | model | returns, per image | what `auto` does | adapted | largest difference |
| --- | --- | --- | --- | ---: | --- |
"""


def main() -> None:
    """Check, print each row, and write the page if all were checked."""
    torch.set_num_threads(1)
    logging.getLogger("ultralytics").setLevel(logging.ERROR)
    words, lines, failed = sys.argv[1:], [], False
    for detector in detectors():
        if words and not any(word in f"{detector.library} {detector.name}" for word in words):
            continue
        try:
            result = check(detector)
            failed = (
                failed or result.whole == "no" or result.difference > (1e-6 if result.precision == "float64" else 1e-3)
            )
            lines.append(row(detector, result))
        except SitaError as error:
            lines.append(f"| {detector.library} | {detector.name} | | refused: {error} | | |")
        print(lines[-1], flush=True)
    if not words:
        _PAGE.write_text(_INTRODUCTION + "\n".join(lines) + "\n", encoding="utf-8")
        print(f"Wrote {_PAGE}.")
    sys.exit(int(failed))


def row(detector: Detector, result: Result) -> str:
    """Return a row of the table."""
    by = "confidence" if result.scored else "shift"
    what = "mixes class scores" if result.mixed else f"selects a row, by {by}"
    given = f" (`{', '.join(f'{k}={v!r}' for k, v in detector.settings.items())}`)" if detector.settings else ""
    ids = ", class ids" if result.whole == "yes" else ""
    difference = f"{result.difference:.0e}{'' if result.precision == 'float64' else ' (float32)'}"
    count = f"{result.adapted} of {result.images}"
    return f"| {detector.library} | {detector.name} | {result.returns}{ids} | {what}{given} | {count} | {difference} |"


if __name__ == "__main__":
    main()
