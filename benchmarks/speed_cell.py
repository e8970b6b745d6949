"""One cell of the table of speed.py: one network in one runtime, in a separate process.

    python benchmarks/speed_cell.py --network resnet50 --runtime eager --recipes augbn,ops

All calls take turns, on one thread, so that a slow moment of the machine affects all of them; ratios are taken within a
turn. The last line of the output is JSON. With --memory METHOD it is the highest resident size during a call of this
method, above that of the loaded model.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from fair import alternate, keep_memory, picture

NETWORKS = {
    "resnet50": ("resnet50", "ResNet50", 224),
    "densenet121": ("densenet121", "DenseNet121", 224),
    "inception_v3": ("inception_v3", "InceptionV3", 299),
    "mobilenet_v2": ("mobilenetv2_100", "MobileNetV2", 224),
    "segmentation": ("lraspp_mobilenet_v3_large", "fcn", 224),
}
"""Name → names in timm and keras.applications, and the side; for segmentation torchvision's name, and an own FCN."""

RUNTIMES = ("eager", "compiled", "onnxruntime", "keras-tensorflow", "keras-jax")
PEERS = ("ttach-d4", "tent", "memo")
"""Other methods, in eager PyTorch: the mean over eight views, and two with gradients."""

_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")


class Method(NamedTuple):
    """What is timed: a call on one image, and the plain model on the same number of rows."""

    name: str
    rows: int
    call: Callable[[], Any]
    plain: Callable[[], Any]


def task_of(network: str) -> Any:
    """Return the task, which decides the views."""
    return "segmentation" if network == "segmentation" else "classification"


def torch_network(name: str) -> Any:
    import torch

    import sita_workbench.models.torchvision_compat  # noqa: F401  (before timm)

    torch.manual_seed(0)
    if name == "segmentation":
        import torchvision

        return torchvision.models.get_model(NETWORKS[name][0], weights=None, weights_backbone=None).eval()
    import timm

    return timm.create_model(NETWORKS[name][0], pretrained=False).eval()


def keras_network(name: str) -> Any:
    import keras

    keras.utils.set_random_seed(0)
    _, application, size = NETWORKS[name]
    if name != "segmentation":
        return getattr(keras.applications, application)(weights=None, input_shape=(size, size, 3))
    body = keras.applications.MobileNetV2(weights=None, include_top=False, input_shape=(size, size, 3))
    scores = keras.layers.Conv2D(21, 1)(body.output)
    return keras.Model(body.input, keras.layers.UpSampling2D(32, interpolation="bilinear")(scores))


def eager_methods(network: str, recipes: Iterable[str]) -> list[Method]:
    """Return the recipes and the peers as PyTorch runs them."""
    import torch

    import sita_adapters as sita

    model, image = torch_network(network), torch.from_numpy(picture(NETWORKS[network][2]))

    def on(model: Any, batch: Any) -> Callable[[], Any]:
        def call() -> Any:
            with torch.inference_mode():
                return model(batch)

        return call

    def plain(rows: int) -> Callable[[], Any]:
        return on(model, image.expand(rows, -1, -1, -1).contiguous())

    methods = [Method("plain", 1, plain(1), plain(1))]
    for recipe in recipes:
        if recipe == "ttach-d4":
            ttach = __import__("ttach")
            views = ttach.SegmentationTTAWrapper if network == "segmentation" else ttach.ClassificationTTAWrapper
            inner = scores_alone(model) if network == "segmentation" else model
            methods.append(Method(recipe, 8, on(views(inner, ttach.aliases.d4_transform()), image), plain(8)))
        elif recipe in PEERS:
            from sita_workbench.baselines import Memo, Tent

            peer = {"tent": Tent, "memo": Memo}[recipe](model)
            methods.append(Method(recipe, 1, on(peer, image), plain(1)))
        else:
            adapted = sita.adapt(model, recipe, task=task_of(network))
            rows = sita.describe(adapted).rows
            methods.append(Method(recipe, rows, on(adapted, image), plain(rows)))
    return methods


def scores_alone(model: Any) -> Any:
    """Return a torchvision network that returns only its scores, not its other outputs."""
    import torch

    class Scores(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return model(x)["out"]

    return Scores()


def compiled_methods(network: str, recipes: Iterable[str]) -> list[Method]:
    """Return the recipes, with adapted and plain models compiled for their number of rows."""
    import torch

    import sita_adapters as sita

    torch._dynamo.config.recompile_limit = 64
    model, image = torch_network(network), torch.from_numpy(picture(NETWORKS[network][2]))

    def compiled(model: Any, batch: Any) -> Callable[[], Any]:
        run = torch.compile(model, fullgraph=True, dynamic=False)

        def call() -> Any:
            with torch.inference_mode():
                return run(batch)

        return call

    methods = [Method("plain", 1, compiled(model, image), compiled(model, image))]
    for recipe in recipes:
        adapted = sita.adapt(model, recipe, task=task_of(network))
        rows = sita.describe(adapted).rows
        batch = image.expand(rows, -1, -1, -1).contiguous()
        methods.append(Method(recipe, rows, compiled(adapted, image), compiled(model, batch)))
    return methods


def onnxruntime_methods(network: str, recipes: Iterable[str]) -> list[Method]:
    """Return the recipes as exported files, and the plain model exported by PyTorch's own exporter."""
    import numpy as np
    import onnxruntime
    import torch

    import sita_adapters as sita

    model, image = torch_network(network), picture(NETWORKS[network][2])
    folder = tempfile.TemporaryDirectory()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1

    def session(path: os.PathLike[str], batch: Any) -> Callable[[], Any]:
        opened = onnxruntime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
        name = opened.get_inputs()[0].name
        return lambda: (opened.run(None, {name: batch}), folder)[0]

    path = Path(folder.name) / "plain.onnx"
    example = torch.from_numpy(np.repeat(image, 2, axis=0))
    sizes = {"images": {0: "batch"}}
    with torch.no_grad():
        torch.onnx.export(model, (example,), str(path), dynamo=False, input_names=["images"], dynamic_axes=sizes)
    methods = [Method("plain", 1, session(path, image), session(path, image))]
    for recipe in recipes:
        adapted = sita.adapt(model, recipe, task=task_of(network))
        rows = sita.describe(adapted).rows
        file = sita.export(adapted, Path(folder.name) / f"{recipe}.onnx", example=torch.from_numpy(image))
        methods.append(Method(recipe, rows, session(file, image), session(path, np.repeat(image, rows, axis=0))))
    return methods


def keras_methods(network: str, recipes: Iterable[str]) -> list[Method]:
    """Return the recipes as `predict_on_batch` runs them, compiled as Keras chooses to."""
    import numpy as np

    import sita_adapters as sita

    model = keras_network(network)  # and another for every number of rows, so that none shares its graph
    image = np.moveaxis(picture(NETWORKS[network][2]), 1, -1).copy()

    def on(model: Any, batch: Any) -> Callable[[], Any]:
        return lambda: model.predict_on_batch(batch)

    methods = [Method("plain", 1, on(model, image), on(model, image))]
    for recipe in recipes:
        adapted = sita.adapt(model, recipe, task=task_of(network))
        rows = sita.describe(adapted).rows
        batch = np.repeat(image, rows, axis=0)
        methods.append(Method(recipe, rows, on(adapted, image), on(keras_network(network), batch)))
    return methods


def time_all(methods: list[Method], repeats: int) -> list[dict[str, Any]]:
    """Return the median time of each method, and its ratios to the plain model with their quartiles."""
    calls = {f"{kind} {m.name}": getattr(m, kind) for m in methods for kind in ("call", "plain")}
    seconds = alternate(calls, repeats)
    one = seconds["call plain"]
    figures = []
    for method in methods:
        times, same = seconds[f"call {method.name}"], seconds[f"plain {method.name}"]
        figures.append(
            {
                "method": method.name,
                "rows": method.rows,
                "ms": 1e3 * statistics.median(times),
                "times_one_row": _quartiles(times, one),
                "overhead": _quartiles(times, same),
            }
        )
    return figures


def _quartiles(times: list[float], base: list[float]) -> list[float]:
    """Return the ratio of a turn's two times: median, lower and upper quartile."""
    ratios = sorted(a / b for a, b in zip(times, base, strict=True))
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return [middle, low, high]


def peak_memory(call: Callable[[], Any]) -> float:
    """Return the highest resident size during a call, in MiB above that before the first call."""

    def resident(field: str) -> float:
        status = Path("/proc/self/status").read_text()
        return int(status.split(f"{field}:")[1].split()[0]) / 1024

    before = resident("VmRSS")
    call()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    call()
    return resident("VmHWM") - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=tuple(NETWORKS), required=True)
    parser.add_argument("--runtime", choices=RUNTIMES, required=True)
    parser.add_argument(
        "--recipes", default="augbn,ops_shared,ops", help="recipes, and in eager also ttach-d4,tent,memo"
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument(
        "--memory",
        metavar="METHOD",
        help="measure the memory of this one instead: a recipe, or plain:RECIPE for the plain model on its rows",
    )
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):  # all threads share one core; JAX has no other setting
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"), TF_CPP_MIN_LOG_LEVEL="3")
    if options.runtime.startswith("keras-"):
        os.environ["KERAS_BACKEND"] = options.runtime.removeprefix("keras-")
    else:
        import torch

        torch.set_num_threads(1)
    if not options.memory:
        keep_memory()
    kinds = {"eager": eager_methods, "compiled": compiled_methods, "onnxruntime": onnxruntime_methods}
    methods_of = kinds.get(options.runtime, keras_methods)
    if options.memory:
        method = methods_of(options.network, [options.memory.removeprefix("plain:")])[-1]
        print(json.dumps(peak_memory(method.plain if options.memory.startswith("plain:") else method.call)))
    else:
        print(json.dumps(time_all(methods_of(options.network, options.recipes.split(",")), options.repeats)))


if __name__ == "__main__":
    main()
