"""Two checkouts of this project against each other: the time of the same calls, taking turns in one run.

    git worktree add ../before v0.1.0
    python benchmarks/versions.py ../before . --runtime eager --recipe augbn
    python benchmarks/versions.py ../before . --runtime keras --recipe augbn --repeats 7

Every checkout runs in a process of its own, on one thread, and times itself; the processes take turns, every other
turn backwards. Printed: the median time of each, and the ratio of the two calls of a turn: its median and quartiles.
Times are of the CPU, which a busy machine disturbs less than the clock.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from fair import keep_memory, picture

RUNTIMES = ("eager", "compiled", "onnxruntime", "keras")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="+", type=Path, help="folders of two versions, the older first")
    parser.add_argument("--runtime", choices=RUNTIMES, default="eager")
    parser.add_argument("--network", default="resnet50", help="of torchvision, or of keras.applications in lower case")
    parser.add_argument("--recipe", default="augbn")
    parser.add_argument("--layers", help="adapt these layers only")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--noise", action="store_true", help="an image of noise instead of one with structure")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    keep_memory()
    if options.work:
        _work(_make_call(options))
    else:
        _compare(options)


def _compare(options: argparse.Namespace) -> None:
    workers = {folder: _start(folder) for folder in options.checkouts}
    for worker in workers.values():
        worker.stdout.readline()  # ready
    seconds: dict[Path, list[float]] = {folder: [] for folder in workers}
    for turn in range(options.repeats):
        for folder, worker in list(workers.items())[:: -1 if turn % 2 else 1]:
            worker.stdin.write("go\n")
            worker.stdin.flush()
            seconds[folder].append(float(worker.stdout.readline()))
    for worker in workers.values():
        worker.stdin.close()
    first, *_ = seconds.values()
    print(f"{options.runtime} {options.network} {options.recipe} {options.size}² ({options.repeats} turns)")
    for folder, times in seconds.items():
        ratios = [b / a for a, b in zip(first, times, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"  {1e3 * statistics.median(times):8.1f} ms   × {middle:.3f} ({low:.3f}–{high:.3f})   {folder}")


def _start(folder: Path) -> Any:
    roots = [str(folder.resolve() / part) for part in ("", "backends", "workbench")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(roots)}
    environment.update(OMP_NUM_THREADS="1", TF_NUM_INTRAOP_THREADS="1", TF_NUM_INTEROP_THREADS="1")
    arguments = [sys.executable, __file__, *sys.argv[1:], "--work"]
    return subprocess.Popen(
        arguments, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def _work(call: Callable[[], object]) -> None:
    call()
    call()
    print("ready", flush=True)
    for _ in sys.stdin:
        start = time.process_time()
        call()
        print(time.process_time() - start, flush=True)


def _make_call(options: argparse.Namespace) -> Callable[[], object]:
    image = picture(options.size)
    if options.noise:
        image = np.random.default_rng(0).random(image.shape, dtype=np.float32)
    if options.runtime == "keras":
        return _keras_call(options, np.moveaxis(image, 1, -1))
    return _torch_call(options, image)


def _torch_call(options: argparse.Namespace, image: np.ndarray) -> Callable[[], object]:
    import runpy
    import tempfile

    import torch

    # By its path: the two checkouts may have it under different names.
    compat = runpy.run_path(str(Path(__file__).parents[1] / "workbench/sita_workbench/models/torchvision_compat.py"))
    import torchvision

    import sita_adapters as sita

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torchvision.models.get_model(options.network, weights=None).eval()
    x = torch.from_numpy(image)
    if options.channels_last:
        model, x = model.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    adapted: Any = sita.adapt(model, options.recipe, layers=options.layers)
    if options.runtime == "onnxruntime":
        import onnxruntime

        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = 1
        with tempfile.TemporaryDirectory() as folder:
            path = sita.export(adapted, f"{folder}/model.onnx", example=x)
            session = onnxruntime.InferenceSession(os.fspath(path), settings, providers=["CPUExecutionProvider"])
        return lambda: session.run(None, {session.get_inputs()[0].name: image})
    if options.runtime == "compiled":
        adapted = torch.compile(adapted, fullgraph=True)

    def call(_: object = compat) -> object:
        with torch.inference_mode():
            return adapted(x)

    return call


def _keras_call(options: argparse.Namespace, image: np.ndarray) -> Callable[[], object]:
    import keras

    import sita_adapters as sita

    names = {name.lower(): name for name in dir(keras.applications) if name[0].isupper()}
    model = getattr(keras.applications, names[options.network])(weights=None, input_shape=image.shape[1:])
    adapted: Any = sita.adapt(model, options.recipe, layers=options.layers)
    return lambda: adapted.predict_on_batch(image)


if __name__ == "__main__":
    main()
