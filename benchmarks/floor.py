"""How much of the overhead is reading the features, which no kernel can avoid.

    python benchmarks/floor.py --model resnet50 --recipe augbn

Times the BatchNorm layers of a network inside whole calls, on the recipe's number of rows: unchanged; with one more
mean per channel; with a mean and a norm, the least that exact moments need; and adapted.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from typing import Any

from fair import keep_memory, picture


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet50", help="a timm model's name, with PyTorch's own BatchNorm2d")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--recipe", default="augbn")
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    keep_memory()

    import torch

    import sita_adapters as sita

    torch.set_num_threads(1)
    torch.manual_seed(0)
    import sita_workbench.models.torchvision_compat  # noqa: F401  (before timm)

    # isort: split
    import timm

    def mean(x: torch.Tensor) -> None:
        x.flatten(2).mean(2)

    def mean_and_norm(x: torch.Tensor) -> None:
        mean(x)
        torch.linalg.vector_norm(x.flatten(2), dim=2)

    spent: dict[str, list[float]] = {}

    def timed(forward: Callable[[Any], Any], name: str, read: Callable[[Any], None] | None) -> Callable[[Any], Any]:
        def call(x: torch.Tensor) -> torch.Tensor:
            start = time.perf_counter()
            if read:
                read(x)
            out: torch.Tensor = forward(x)
            spent[name][-1] += time.perf_counter() - start
            return out

        return call

    model = timm.create_model(options.model, pretrained=False).eval()
    adapted = sita.adapt(model, options.recipe)
    image = torch.from_numpy(picture(options.size))
    batch = image.expand(sita.describe(adapted).rows, -1, -1, -1).contiguous()
    cases = {
        "unchanged": (copy.deepcopy(model), batch, None),
        "with a mean": (copy.deepcopy(model), batch, mean),
        "with a mean and a norm": (copy.deepcopy(model), batch, mean_and_norm),
        "adapted": (adapted, image, None),
    }
    for name, (network, _, read) in cases.items():
        spent[name] = []
        for layer in network.modules():
            if isinstance(layer, torch.nn.BatchNorm2d):
                vars(layer)["forward"] = timed(layer.forward, name, read)
    whole: dict[str, list[float]] = {name: [] for name in cases}
    with torch.inference_mode():
        for turn in range(options.repeats + 1):
            for name, (network, images, _) in list(cases.items())[:: -1 if turn % 2 else 1]:
                spent[name].append(0.0)
                start = time.perf_counter()
                network(images)
                whole[name].append(time.perf_counter() - start)
    plain = statistics.median(whole["unchanged"][1:])
    base = statistics.median(spent["unchanged"][1:])
    print(
        f"{options.model} {options.size}², {options.recipe}, {len(batch)} rows: a plain call takes {1e3 * plain:.0f} ms"
    )
    for name, seconds in spent.items():
        layers = statistics.median(seconds[1:])
        print(
            f"  BatchNorm layers {name:<24} {1e3 * layers:6.1f} ms   {1 + (layers - base) / plain:.3f} of a plain call"
        )


if __name__ == "__main__":
    main()
