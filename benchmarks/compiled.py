"""Where the time of a compiled call goes: the generated kernels, and the convolutions that they call.

    python benchmarks/compiled.py --model resnet50 --recipe augbn

The plain model runs on the same number of rows as the recipe. Statistics and their application are in generated
kernels, as are ReLU, sums and poolings: their difference is most of what adaptation costs.
"""

from __future__ import annotations

import argparse
from typing import Any

from fair import keep_memory, picture


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet50", help="a timm model's name")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--recipe", default="augbn")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    keep_memory()

    import torch
    from torch._inductor import config
    from torch.profiler import ProfilerActivity, profile

    import sita_adapters as sita

    config.cpp.enable_kernel_profile = True
    torch.set_num_threads(1)
    torch.manual_seed(0)
    import sita_workbench.models.torchvision_compat  # noqa: F401  (before timm)

    # isort: split
    import timm

    model = timm.create_model(options.model, pretrained=False).eval()
    adapted = sita.adapt(model, options.recipe)
    image = torch.from_numpy(picture(options.size))
    batch = image.repeat(sita.describe(adapted).rows, 1, 1, 1)

    def spent(network: Any, images: torch.Tensor) -> dict[str, float]:
        """Return milliseconds per call, by kind of work."""
        run = torch.compile(network, fullgraph=True, dynamic=False)
        for _ in range(3):
            run(images)
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            for _ in range(options.repeats):
                run(images)
        sums = {"generated kernels": 0.0, "convolutions": 0.0, "the rest": 0.0}
        for event in profiled.key_averages():
            if "cpp_fused" in event.key:
                kind = "generated kernels"
            else:
                kind = "convolutions" if "conv" in event.key else "the rest"
            sums[kind] += event.self_cpu_time_total / 1e3 / options.repeats
        return sums

    with torch.inference_mode():
        for name, network, images in (("plain", model, batch), ("adapted", adapted, image)):
            figures = ", ".join(f"{kind} {ms:.1f} ms" for kind, ms in spent(network, images).items())
            print(f"{options.model} {options.size}² {options.recipe}, {len(batch)} rows, {name}: {figures}", flush=True)


if __name__ == "__main__":
    main()
