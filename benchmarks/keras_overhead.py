"""What adaptation costs in Keras: time per `predict_on_batch` over that of the plain model on as many rows.

    KERAS_BACKEND=tensorflow python benchmarks/keras_overhead.py --model ResNet50 --size 224 --recipes augbn

Plain and adapted calls alternate in one process on one thread, and medians are compared.
"""

from __future__ import annotations

import argparse
import os
import statistics

from overhead import alternate, keep_memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="ResNet50", help="a model of keras.applications")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--recipes", default="augbn")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    os.environ.update(OMP_NUM_THREADS="1", TF_NUM_INTRAOP_THREADS="1", TF_NUM_INTEROP_THREADS="1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    keep_memory()

    import keras
    import numpy as np

    import sita_adapters as sita

    model = getattr(keras.applications, options.model)(weights=None, input_shape=(options.size, options.size, 3))
    image = np.random.default_rng(0).normal(size=(1, options.size, options.size, 3)).astype(np.float32)
    for recipe in options.recipes.split(","):
        adapted = sita.adapt(model, recipe)
        rows = sita.describe(adapted).rows
        batch = np.repeat(image, rows, axis=0)
        seconds = alternate(
            {
                "plain": lambda batch=batch: model.predict_on_batch(batch),
                "adapted": lambda adapted=adapted: adapted.predict_on_batch(image),
            },
            options.repeats,
        )
        plain, ours = (statistics.median(seconds[name]) for name in ("plain", "adapted"))
        ratios = sorted(a / p for a, p in zip(seconds["adapted"], seconds["plain"], strict=True))
        print(
            f"{options.model} {options.size}² Keras-{keras.backend.backend()} {recipe:<10} {rows:>3} rows   "
            f"plain {1e3 * plain:8.1f} ms   adapted {1e3 * ours:8.1f} ms   overhead {ours / plain:.3f} "
            f"({ratios[len(ratios) // 4]:.3f}–{ratios[3 * len(ratios) // 4]:.3f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
