"""Peak memory under max_rows, compared with the plain model on the same number of rows.

    python benchmarks/memory.py --model resnet50 --size 224 --recipe ops --max-rows 6

Every number comes from a separate process: the highest resident size during calls, minus the one just before, when the
model is loaded and has run once on a tiny image.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path


def resident_peak() -> int:
    """Return the highest resident size so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def measure(options: argparse.Namespace) -> int:
    import torch

    import sita_adapters as sita

    torch.set_num_threads(1)
    import sita_workbench.models.torchvision_compat  # noqa: F401  (before timm)

    # isort: split
    import timm

    model = timm.create_model(options.model, pretrained=False).eval()
    rows = options.rows
    if options.case == "plain":
        called, batch = model, torch.rand(rows, 3, options.size, options.size)
    else:
        limit = rows if options.case == "max_rows" else None
        called = sita.adapt(model, options.recipe, max_rows=limit)
        batch = torch.rand(options.images, 3, options.size, options.size)
    with torch.inference_mode():
        called(torch.rand(1, 3, 32, 32))
        before = resident_peak()
        for _ in range(2):
            called(batch)
    return resident_peak() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet50", help="a timm model's name")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--recipe", default="ops")
    parser.add_argument("--images", type=int, default=4, help="images per call (4)")
    parser.add_argument("--max-rows", default="3,6,12,22", help="separated by commas")
    parser.add_argument("--case", choices=("plain", "max_rows", "whole"), help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    if options.case:
        print(measure(options))
        return

    def run(case: str, rows: int) -> float:
        command = [sys.executable, __file__, "--case", case, "--rows", str(rows)]
        for name in ("model", "size", "recipe", "images"):
            command += [f"--{name}", str(getattr(options, name))]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return int(done.stdout.split()[-1]) / 2**20

    print(
        f"{options.model} {options.size}², {options.recipe}, {options.images} images per call, "
        "MiB above the loaded model"
    )
    print(f"{'rows at once':>12}  {'plain':>8}  {'max_rows':>8}  {'ratio':>6}")
    figures = []
    for rows in map(int, options.max_rows.split(",")):
        plain, bounded = run("plain", rows), run("max_rows", rows)
        figures.append({"max_rows": rows, "plain_mib": plain, "max_rows_mib": bounded, "ratio": bounded / plain})
        print(f"{rows:>12}  {plain:8.0f}  {bounded:8.0f}  {bounded / plain:6.2f}", flush=True)
    whole = run("whole", 0)
    print(f"{'no bound':>12}  {'':8}  {whole:8.0f}")
    if options.json:
        options.json.write_text(json.dumps({"cases": figures, "unbounded_mib": whole}, indent=2))


if __name__ == "__main__":
    main()
