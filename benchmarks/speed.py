"""The table of docs/speed.md: networks × runtimes, compared with the plain model on one row and on the same rows.

    python benchmarks/speed.py                                       # all of it: an hour on one core
    python benchmarks/speed.py --networks resnet50 --runtimes eager  # a part of it
    python benchmarks/speed.py --show                                # the table from the stored results

Each cell (a network in a runtime) is measured in a separate process on one core. All calls take turns, every other turn
backwards, so a slow moment of the machine affects all of them; ratios are taken within a turn. Results are stored in a
file, and a run continues where the last one stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from fair import alternate, keep_memory, picture

_HERE = Path(__file__).parent
_PAGE = _HERE.parent / "docs" / "speed.md"
_TABLE = re.compile(r"(?<=<!-- table: written by benchmarks/speed.py -->\n\n).*?(?=\n\n<!-- end of table -->)", re.S)

NETWORKS = {
    "resnet50": ("ResNet-50", "resnet50", "ResNet50", 224),
    "densenet121": ("DenseNet121", "densenet121", "DenseNet121", 224),
    "inception_v3": ("InceptionV3", "inception_v3", "InceptionV3", 299),
    "mobilenet_v2": ("MobileNetV2", "mobilenetv2_100", "MobileNetV2", 224),
    "segmentation": ("Segmentation", "lraspp_mobilenet_v3_large", "fcn", 224),
}
"""Title, names in timm and keras.applications, and the side; for segmentation torchvision's name, and our own FCN."""

RUNTIMES = ("eager", "compiled", "onnxruntime", "keras-tensorflow", "keras-jax")
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")


class Method(NamedTuple):
    """What is timed: a call on one image, and the plain model on the same number of rows."""

    name: str
    rows: int
    call: Callable[[], Any]
    plain: Callable[[], Any]


def torch_network(name: str) -> Any:
    import torch

    import sita_workbench.models.torchvision_compat  # noqa: F401  (before timm)

    torch.manual_seed(0)
    torch.set_num_threads(1)
    if name == "segmentation":
        import torchvision

        return torchvision.models.get_model(NETWORKS[name][1], weights=None, weights_backbone=None).eval()
    import timm

    return timm.create_model(NETWORKS[name][1], pretrained=False).eval()


def keras_network(name: str) -> Any:
    import keras

    keras.utils.set_random_seed(0)
    _, _, application, size = NETWORKS[name]
    if name != "segmentation":
        return getattr(keras.applications, application)(weights=None, input_shape=(size, size, 3))
    body = keras.applications.MobileNetV2(weights=None, include_top=False, input_shape=(size, size, 3))
    scores = keras.layers.Conv2D(21, 1)(body.output)
    return keras.Model(body.input, keras.layers.UpSampling2D(32, interpolation="bilinear")(scores))


def torch_methods(network: str, runtime: str, recipes: list[str]) -> Iterator[Method]:
    """Yield the recipes in eager PyTorch, or with adapted and plain models compiled for their number of rows."""
    import torch

    model, image = torch_network(network), torch.from_numpy(picture(NETWORKS[network][3]))
    if runtime == "compiled":
        torch._dynamo.config.recompile_limit = 64

    def on(model: Any, batch: Any) -> Callable[[], Any]:
        run = torch.compile(model, fullgraph=True, dynamic=False) if runtime == "compiled" else model

        def call() -> Any:
            with torch.inference_mode():
                return run(batch)

        return call

    yield Method("plain", 1, on(model, image), on(model, image))
    for recipe in recipes:
        adapted, rows = adapt(model, recipe, network, image)
        yield Method(recipe, rows, on(adapted, image), on(model, image.expand(rows, -1, -1, -1).contiguous()))


def onnxruntime_methods(network: str, _: str, recipes: list[str]) -> Iterator[Method]:
    """Yield the recipes as exported files, and the plain model exported by PyTorch's own exporter."""
    import numpy as np
    import onnxruntime
    import torch

    import sita_adapters as sita

    model, image = torch_network(network), picture(NETWORKS[network][3])
    folder = tempfile.TemporaryDirectory()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1

    def session(path: os.PathLike[str], batch: Any) -> Callable[[], Any]:
        opened = onnxruntime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
        name = opened.get_inputs()[0].name
        return lambda: (opened.run(None, {name: batch}), folder)[0]

    path, example = Path(folder.name) / "plain.onnx", torch.from_numpy(np.repeat(image, 2, axis=0))
    sizes = {"images": {0: "batch"}}
    with torch.no_grad():
        torch.onnx.export(model, (example,), str(path), dynamo=False, input_names=["images"], dynamic_axes=sizes)
    yield Method("plain", 1, session(path, image), session(path, image))
    for recipe in recipes:
        adapted, rows = adapt(model, recipe, network)
        file = sita.export(adapted, Path(folder.name) / f"{recipe}.onnx", example=torch.from_numpy(image))
        yield Method(recipe, rows, session(file, image), session(path, np.repeat(image, rows, axis=0)))


def keras_methods(network: str, _: str, recipes: list[str]) -> Iterator[Method]:
    """Yield the recipes as `predict_on_batch` runs them, compiled as Keras chooses to."""
    import numpy as np

    model = keras_network(network)  # and another for every number of rows: none shares its graph
    image = np.moveaxis(picture(NETWORKS[network][3]), 1, -1).copy()

    def on(model: Any, batch: Any) -> Callable[[], Any]:
        return lambda: model.predict_on_batch(batch)

    yield Method("plain", 1, on(model, image), on(model, image))
    for recipe in recipes:
        adapted, rows = adapt(model, recipe, network)
        yield Method(recipe, rows, on(adapted, image), on(keras_network(network), np.repeat(image, rows, axis=0)))


def adapt(model: Any, recipe: Any, network: str, example: Any = None) -> tuple[Any, int]:
    import sita_adapters as sita

    task: Any = "segmentation" if network == "segmentation" else "classification"
    adapted = sita.adapt(model, recipe, task=task, example=example)
    return adapted, sita.describe(adapted).rows


def time_cell(network: str, runtime: str, recipes: list[str], repeats: int) -> list[dict[str, Any]]:
    """Return the median time of each method, and its ratios to the plain model with their quartiles."""
    kinds = {"eager": torch_methods, "compiled": torch_methods, "onnxruntime": onnxruntime_methods}
    methods = list(kinds.get(runtime, keras_methods)(network, runtime, recipes))
    seconds = alternate({f"{kind} {m.name}": getattr(m, kind) for m in methods for kind in ("call", "plain")}, repeats)

    def quartiles(method: Method, base: str) -> list[float]:
        pairs = zip(seconds[f"call {method.name}"], seconds[base], strict=True)
        low, middle, high = statistics.quantiles(sorted(a / b for a, b in pairs), n=4, method="inclusive")
        return [round(each, 3) for each in (middle, low, high)]

    return [
        {
            "method": method.name,
            "rows": method.rows,
            "ms": round(1e3 * statistics.median(seconds[f"call {method.name}"]), 2),
            "times_one_row": quartiles(method, "call plain"),
            "overhead": quartiles(method, f"plain {method.name}"),
        }
        for method in methods
    ]


def run_cell(name: str, recipes: list[str], repeats: int) -> None:
    """Measure one cell in this process, and print its figures as JSON."""
    network, runtime = name.split("/")
    if hasattr(os, "sched_setaffinity"):  # all threads share one core; JAX has no other setting
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"), TF_CPP_MIN_LOG_LEVEL="3")
    if runtime.startswith("keras-"):
        os.environ["KERAS_BACKEND"] = runtime.removeprefix("keras-")
    keep_memory()
    print(json.dumps(time_cell(network, runtime, recipes, repeats)))


def fill(options: argparse.Namespace, kept: dict[str, Any]) -> None:
    """Measure the missing cells, each in a separate process, and store each at once."""
    from rich.console import Console

    from sita_workbench.progress import ConsoleProgress

    progress = ConsoleProgress(Console())
    cells = [f"{network}/{runtime}" for runtime in options.runtimes for network in options.networks]
    with progress.track("Measuring", len(cells)) as advance:
        for cell in cells:
            advance(0, doing=cell)
            if options.again or cell not in kept["cells"]:
                arguments = ["--cell", cell, "--recipes", *options.recipes, "--repeats", str(options.repeats)]
                command = [sys.executable, str(Path(__file__).resolve()), *arguments]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    progress.say(f"{cell}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
                else:
                    kept["cells"][cell] = json.loads(done.stdout.strip().splitlines()[-1])
                    kept["machine"] = machine()
                    options.out.write_text(json.dumps(kept, indent=1) + "\n")
                    progress.say("\n".join(rows_of(cell, kept["cells"][cell])))
            advance()


def machine() -> dict[str, str]:
    """Return the versions."""
    packages = ("torch", "timm", "torchvision", "onnxruntime", "keras", "tensorflow-cpu", "jax")
    return {"python": platform.python_version(), **{package: version(package) for package in packages}}


def rows_of(cell: str, figures: list[dict[str, Any]]) -> list[str]:
    """Return a cell's lines of the table."""
    network, runtime = cell.split("/")
    plain, *recipes = figures
    title = f"{NETWORKS[network][0]} | {runtime.replace('keras-', 'Keras, ')}"
    one, same = "{:.1f} ({:.1f}–{:.1f})", "{:.2f} ({:.2f}–{:.2f})"
    return [
        f"| {title} | {one.format(*each['times_one_row'])} | {same.format(*each['overhead'])} "
        f"| {plain['ms']:.0f} | {each['ms']:.0f} ({each['method']}) |"
        for each in recipes
    ]


def table(kept: dict[str, Any]) -> str:
    """Return the whole table in Markdown."""
    lines = [
        "| network | runtime | × plain, 1 row | × plain, same rows | plain, ms | adapted, ms |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    cells = [f"{network}/{runtime}" for network in NETWORKS for runtime in RUNTIMES]
    return "\n".join([*lines, *(line for c in cells if c in kept["cells"] for line in rows_of(c, kept["cells"][c]))])


def put_table(page: str, lines: str) -> str:
    """Return the page with another table."""
    changed, found = _TABLE.subn(lambda _: lines, page)
    if found != 1:
        raise SystemExit(f"{_PAGE}: expected the comments around its table once; found them {found} times.")
    return changed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=tuple(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--runtimes", nargs="+", choices=RUNTIMES, default=list(RUNTIMES))
    parser.add_argument("--recipes", nargs="+", default=["auto"])
    parser.add_argument("--repeats", type=int, default=9, help="turns that are counted (9)")
    parser.add_argument("--out", type=Path, default=_HERE / "speed.json", help="the file for the results")
    parser.add_argument("--again", action="store_true", help="measure stored results again")
    parser.add_argument("--show", action="store_true", help="measure nothing")
    parser.add_argument("--cell", help="measure one cell (NETWORK/RUNTIME) in this process, and print it as JSON")
    options = parser.parse_args()
    if options.cell:
        run_cell(options.cell, options.recipes, options.repeats)
        return
    kept = json.loads(options.out.read_text()) if options.out.exists() else {"cells": {}}
    if not options.show:
        fill(options, kept)
    print(table(kept))
    _PAGE.write_text(put_table(_PAGE.read_text(encoding="utf-8"), table(kept)), encoding="utf-8")


if __name__ == "__main__":
    main()
