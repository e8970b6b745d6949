"""The memory of the probe: its peak above the loaded model, against one copy of the weights and a plain call.

    python benchmarks/probe_memory.py                     # ResNet-152, VGG-16 with BatchNorm, EfficientNet-B4; a minute
    python benchmarks/probe_memory.py --dtype float64 resnet50

Each figure is the peak of a process of its own above its resident memory with the model loaded, on two images: the
number that the probe runs at most. Linux only.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

SIZES = {"resnet152": 224, "vgg16_bn": 224, "efficientnet_b4": 380}
LIMIT = 1.25


def main() -> None:
    """Measure each model in processes of their own, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(SIZES), help="names of timm")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--measure", choices=("plain", "probe"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.models[0], options.dtype, options.measure)
        return
    # Memory that is freed goes back to the system, or it would count as the model's.
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "MALLOC_TRIM_THRESHOLD_": "0",
    }
    print(
        f"{'model':<20}{'weights':>9}{'plain call':>12}{'probe':>9}   probe / (weights + plain call), at most {LIMIT}"
    )
    for name in options.models:
        found = {}
        for what in ("plain", "probe"):
            command = [sys.executable, __file__, name, "--dtype", options.dtype, "--measure", what]
            done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
            found[what], weights = map(float, done.stdout.split()[-2:])
        ratio = found["probe"] / (weights + found["plain"])
        print(f"{name:<20}{weights:>6.0f} MB{found['plain']:>9.0f} MB{found['probe']:>6.0f} MB   {ratio:.2f}")


def measure(name: str, dtype: str, what: str) -> None:
    """Print the peak of a plain call or of the probe, in MB, and the size of the weights."""
    import sita_workbench.models.torchvision_compat  # noqa: F401, I001  (before timm)
    import timm
    import torch

    import sita_adapters as sita

    torch.set_num_threads(1)
    sita.adapt(torch.nn.Sequential(torch.nn.BatchNorm2d(3)).eval(), "bn", example=torch.rand(1, 3, 4, 4))  # imports
    model = timm.create_model(name, pretrained=False).eval().to(getattr(torch, dtype))
    images = torch.rand(2, 3, SIZES.get(name, 224), SIZES.get(name, 224), dtype=getattr(torch, dtype))
    with torch.inference_mode():
        model(images[:, :, :64, :64])
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = memory("VmRSS")
    with torch.inference_mode():
        model(images) if what == "plain" else sita.adapt(model, "shift", example=images)
    weights = sum(each.numel() * each.element_size() for each in (*model.parameters(), *model.buffers()))
    print(memory("VmHWM") - before, weights / 2**20)


def memory(kind: str) -> float:
    """Return what the system says of this process's memory, in MB."""
    found = re.search(rf"{kind}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) / 1024 if found else float("nan")


if __name__ == "__main__":
    main()
