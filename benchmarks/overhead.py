"""What adaptation costs: time per call, relative to the plain model on the same number of rows.

    python benchmarks/overhead.py --model resnet50 --size 224 --recipes augbn,ops
    python benchmarks/overhead.py --recipes augbn --dtype bfloat16 --channels-last
    python benchmarks/overhead.py --recipes augbn --noise  # the worst case for exact moments

Plain and adapted calls alternate in one process on one thread, and medians are compared, so that a slow moment of the
machine affects both. Also printed: the time of `adapt` itself and the bytes of parameters it added.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

from fair import alternate, keep_memory, picture


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet50", help="a timm model's name")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--recipes", default="augbn,ops_shared,ops")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--noise", action="store_true", help="an image of noise instead of one with structure")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    keep_memory()

    import torch

    import sita_adapters as sita

    torch.set_num_threads(1)
    torch.manual_seed(0)
    import sita_workbench.models.torchvision_compat  # noqa: F401  (before timm)

    # isort: split
    import timm

    model = timm.create_model(options.model, pretrained=False).eval()
    size = options.size
    image = torch.rand(1, 3, size, size) if options.noise else torch.from_numpy(picture(size))
    dtype = getattr(torch, options.dtype)
    model, image = model.to(dtype), image.to(dtype)
    layout = torch.channels_last if options.channels_last else torch.contiguous_format
    model, image = model.to(memory_format=layout), image.contiguous(memory_format=layout)
    figures = []
    what = {
        "model": options.model,
        "size": size,
        "dtype": options.dtype,
        "layout": "channels last" if options.channels_last else "channels first",
        "image": "noise" if options.noise else "picture",
    }
    print(", ".join(f"{name} {value}" for name, value in what.items()))
    for recipe in options.recipes.split(","):
        start = time.perf_counter()
        adapted = sita.adapt(model, recipe)
        adapt_seconds = time.perf_counter() - start
        pointers = {p.data_ptr() for p in model.parameters()}
        added = sum(p.nbytes for p in adapted.parameters() if p.data_ptr() not in pointers)
        rows = sita.describe(adapted).rows
        batch = image.expand(rows, -1, -1, -1).contiguous(memory_format=layout)
        with torch.inference_mode():
            seconds = alternate(
                {
                    "one": lambda: model(image),
                    "plain": lambda batch=batch: model(batch),
                    "adapted": lambda adapted=adapted: adapted(image),
                },
                options.repeats,
            )
        median = {name: statistics.median(times) for name, times in seconds.items()}
        ratios = sorted(a / p for a, p in zip(seconds["adapted"], seconds["plain"], strict=True))
        figures.append(
            {
                **what,
                "recipe": recipe,
                "rows": rows,
                "plain_ms": 1e3 * median["plain"],
                "adapted_ms": 1e3 * median["adapted"],
                "overhead": median["adapted"] / median["plain"],
                "overhead_low": ratios[len(ratios) // 4],
                "overhead_high": ratios[3 * len(ratios) // 4],
                "times_one_row": median["adapted"] / median["one"],
                "adapt_seconds": adapt_seconds,
                "added_parameter_bytes": added,
            }
        )
        row = figures[-1]
        print(
            f"{recipe:<10} {rows:>3} rows   plain {row['plain_ms']:8.1f} ms   "
            f"adapted {row['adapted_ms']:8.1f} ms   overhead {row['overhead']:.3f} "
            f"({row['overhead_low']:.3f}–{row['overhead_high']:.3f})   {row['times_one_row']:.1f} × one row   "
            f"adapt {adapt_seconds:.3f} s   +{added} parameter bytes",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
