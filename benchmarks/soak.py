"""Long use: nothing grows over thousands of calls and adaptations; threads and processes answer alike, to the last bit.

    python benchmarks/soak.py                                # PyTorch
    KERAS_BACKEND=tensorflow python benchmarks/soak.py       # Keras

What is counted after the first tenth of the calls is counted again after the last one, and may not have grown by more
than the table says. It exits with 1 where something grew or an answer differed.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import multiprocessing
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import sita_adapters as sita
from sita_adapters import views
from sita_adapters.engine import thread

BACKEND = os.environ.get("KERAS_BACKEND")
if BACKEND is not None:  # before it is imported, here and in every process that is spawned
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    for setting in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
        os.environ.setdefault(setting, "1")

ALLOWED = {"resident MiB": 4.0, "objects": 100.0, "blocks of memory": 1000.0}
"""By how much each may grow, in a full run about one of Python's blocks per adaptation: allocator and interpreter have
caches of their own. Anything else may not grow at all."""

SIZES = (1, 3, 2, 5)
"""How many images the calls have, one after the other."""

COLLECTED = 50
"""Every so many steps garbage is collected. Traced graphs are cycles: those that wait for Python to collect them
are no leak, but leave holes in the memory, which the system does not get back."""

OBSERVED = 7
"""Every so many calls one is observed."""

THREADS = 4
CLASSES = 5
RECIPE = "ops_shared"

Counts = dict[str, float]


class Torch:
    """A tiny PyTorch model, and what can be counted of it."""

    name = "PyTorch"
    starts = ("fork", "spawn")
    observed_calls = OBSERVED

    def __init__(self) -> None:
        import torch

        self.torch = torch
        torch.set_num_threads(1)

    def model(self) -> Any:
        """Return a model with running statistics that are not the images'."""
        torch, nn = self.torch, self.torch.nn
        torch.manual_seed(0)
        model = nn.Sequential(
            *(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU()),
            *(nn.Conv2d(6, 8, 3), nn.BatchNorm2d(8), nn.ReLU()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES)),
        )
        model(torch.randn(16, 3, 12, 12) * 2 + 1)
        return model.eval()

    def run(self, model: Any, images: np.ndarray, *, observed: bool = False) -> np.ndarray:
        """Return the answers."""
        with self.torch.inference_mode():
            return np.asarray(model(self.torch.from_numpy(np.moveaxis(images, -1, 1).copy())))

    def count(self, model: Any) -> Counts:
        """Count what a call or an adaptation could leave behind."""
        from sita_torch import ops

        torch = self.torch
        alive = [type(item) for item in gc.get_objects()]
        hooks = [value for part in model.modules() for name, value in vars(part).items() if name.endswith("_hooks")]
        shared = vars(torch.nn.modules.module)
        hooks += [value for name, value in shared.items() if name.startswith("_global") and name.endswith("_hooks")]
        return {
            "tensors": sum(issubclass(kind, torch.Tensor) for kind in alive),
            "modules": sum(issubclass(kind, torch.nn.Module) for kind in alive),
            "hooks on the source": sum(map(len, hooks)),
            "attributes of the source": sum(len(vars(part)) for part in model.modules()),
            "registries": ops._as_tensor.cache_info().currsize,
        }

    def forget(self) -> None:
        """Nothing is kept outside the models."""


class Keras:
    """A tiny Keras model, and what can be counted of it."""

    name = f"Keras on {BACKEND}"
    starts = ("spawn",)  # TensorFlow and JAX do not survive a fork
    observed_calls = 50  # Keras compiles `predict` again after each

    def __init__(self) -> None:
        import keras

        self.keras = keras

    def model(self) -> Any:
        """Return a model with moving statistics that are not the images'."""
        keras, layers = self.keras, self.keras.layers
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [
                keras.Input((12, 12, 3)),
                *(layers.Conv2D(6, 3, padding="same"), layers.BatchNormalization(momentum=0.0), layers.ReLU()),
                *(layers.Conv2D(8, 3), layers.BatchNormalization(momentum=0.0), layers.ReLU()),
                *(layers.GlobalAveragePooling2D(), layers.Dense(CLASSES)),
            ]
        )
        random = np.random.default_rng(0)
        model((random.normal(size=(16, 12, 12, 3)) * 2 + 1).astype(np.float32), training=True)
        return model

    def run(self, model: Any, images: np.ndarray, *, observed: bool = False) -> np.ndarray:
        """Return the answers: compiled, or, as an observed model runs, layer by layer."""
        if observed:
            return np.asarray(self.keras.ops.convert_to_numpy(model(images)))
        return np.asarray(model.predict_on_batch(images))

    def count(self, model: Any) -> Counts:
        """Count what a call or an adaptation could leave behind."""
        from keras.src.saving import object_registration

        from sita_keras import batchnorm

        keras = self.keras
        alive = [type(item) for item in gc.get_objects()]
        held = list(model._flatten_layers())
        registered = len(object_registration.GLOBAL_CUSTOM_OBJECTS)
        return {
            "tensors": sum(kind.__name__ in ("EagerTensor", "ArrayImpl", "Tensor") for kind in alive),
            "variables": sum(issubclass(kind, keras.Variable) for kind in alive),
            "layers": sum(issubclass(kind, keras.layers.Layer) for kind in alive),
            "nodes on the source": sum(len(each._inbound_nodes) + len(each._outbound_nodes) for each in held),
            "attributes of the source": sum(len(vars(each)) for each in held),
            "registries": len(batchnorm._classes) + registered,
        }

    def forget(self) -> None:
        """Let go of the names and graphs that Keras itself keeps until it is told."""
        self.keras.backend.clear_session(free_memory=False)


def make_framework() -> Torch | Keras:
    """Return the framework that KERAS_BACKEND names: PyTorch where it is not set."""
    return Torch() if BACKEND is None else Keras()


@dataclass(frozen=True)
class Line:
    """One line of the table: what was counted early and late, or what was compared and how often it differed."""

    part: str
    what: str
    early: float
    late: float
    allowed: float = 0.0

    @property
    def is_good(self) -> bool:
        """Whether it grew no more than allowed."""
        return self.late - self.early <= self.allowed

    def __str__(self) -> str:
        numbers = f"{self.early:>12,.6g} {self.late:>12,.6g} {self.late - self.early:>+10,.4g} {self.allowed:>9,.4g}"
        return f"{self.part:<22} {self.what:<26} {numbers}   {'ok' if self.is_good else 'GREW'}"


HEADER = f"{'':<22} {'':<26} {'early':>12} {'late':>12} {'growth':>10} {'allowed':>9}"


def resident() -> float:
    """Return the memory that this process holds now, in MiB; where the system does not tell, the most it ever held."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def give_memory_back() -> None:
    """Make the allocator return what is free to the system, where it can: what stays is in use."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def count_all(framework: Torch | Keras, model: Any) -> Counts:
    """Count everything, after the garbage is gone."""
    framework.forget()
    gc.collect()
    give_memory_back()
    observers = thread.observers
    caches = [value for value in vars(views).values() if hasattr(value, "cache_info")]
    return {
        "resident MiB": resident(),
        "objects": len(gc.get_objects()),
        "blocks of memory": sys.getallocatedblocks(),
        "observers": len(observers),
        "cached views": sum(cache.cache_info().currsize for cache in caches),
        **framework.count(model),
    }


def soak(part: str, times: int, step: Callable[[int], None], count: Callable[[], Counts]) -> list[Line]:
    """Do a step so many times; compare what is there after a tenth of them with what is there at the end."""
    warm = max(1, times // 10)
    early: Mapping[str, float] = {}
    for turn in range(times):
        step(turn)
        if turn % COLLECTED == 0:
            gc.collect()
        if (turn + 1) % warm == 0:
            print(f"{part}: {turn + 1:,} done", end="\r", file=sys.stderr, flush=True)
        if turn + 1 == warm:
            count()  # which makes what counting itself needs
            early = count()
    late = count()
    return [Line(part, what, early[what], late[what], ALLOWED.get(what, 0.0)) for what in early]


def make_batches() -> list[np.ndarray]:
    """Return a batch of every size."""
    random = np.random.default_rng(1)
    return [random.normal(size=(size, 12, 12, 3)).astype(np.float32) for size in SIZES]


def soak_calls(framework: Torch | Keras, calls: int) -> list[Line]:
    """Call one adapted model, in batches of several sizes; some of the calls are observed."""
    model, batches = framework.model(), make_batches()
    adapted = sita.adapt(model, RECIPE)

    def step(turn: int) -> None:
        images = batches[turn % len(batches)]
        if turn % framework.observed_calls == 0:
            with sita.observe(adapted) as seen:
                framework.run(adapted, images, observed=True)
            assert len(seen) == len(images)
        else:
            framework.run(adapted, images)

    return soak(f"{calls:,} calls", calls, step, lambda: count_all(framework, model))


def soak_cycles(framework: Torch | Keras, cycles: int) -> list[Line]:
    """Adapt a model, call it, and unwrap it, again and again."""
    model, batches = framework.model(), make_batches()

    def step(turn: int) -> None:
        adapted = sita.adapt(model, RECIPE)
        framework.run(adapted, batches[turn % len(batches)], observed=True)
        framework.run(sita.unwrap(adapted), batches[0], observed=True)
        if turn % 50 == 0:
            framework.forget()

    return soak(f"{cycles:,} adapt and unwrap", cycles, step, lambda: count_all(framework, model))


def compare_threads(framework: Torch | Keras, calls: int) -> list[Line]:
    """Return how many answers of several threads, two of which observe, differ from those of one thread."""
    adapted, batches = sita.adapt(framework.model(), RECIPE), make_batches()
    expected = [framework.run(adapted, images, observed=True) for images in batches]
    wrong, missed = [0] * THREADS, [0] * THREADS
    ready = threading.Barrier(THREADS)

    def work(place: int) -> None:
        ready.wait()
        for turn in range(calls):
            which = (place + turn) % len(batches)
            if place % 2:
                with sita.observe(adapted) as seen:
                    answer = framework.run(adapted, batches[which], observed=True)
                missed[place] += len(seen) != len(answer)
            else:
                answer = framework.run(adapted, batches[which], observed=True)
            wrong[place] += not np.array_equal(answer, expected[which])

    workers = [threading.Thread(target=work, args=(place,)) for place in range(THREADS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    part = f"{THREADS} threads, {THREADS * calls:,} calls"
    return [Line(part, "answers that differ", 0, sum(wrong)), Line(part, "images not observed", 0, sum(missed))]


def answer_elsewhere(kind: type[Torch | Keras], adapted: Any, answers: Any) -> None:
    """Answer every batch, in another process."""
    framework = kind()
    answers.put([framework.run(adapted, images, observed=True) for images in make_batches()])


def compare_processes(framework: Torch | Keras) -> Iterator[Line]:
    """Yield how many answers of a process of each kind differ from this one's. A spawned one unpickles the model."""
    adapted = sita.adapt(framework.model(), RECIPE)
    expected = [framework.run(adapted, images, observed=True) for images in make_batches()]
    for start in framework.starts:
        context: Any = multiprocessing.get_context(start)
        answers = context.SimpleQueue()
        process = context.Process(target=answer_elsewhere, args=(type(framework), adapted, answers), daemon=True)
        process.start()
        # Joined first: the answers are small enough for the queue, and a child that died would never send any.
        process.join(300)
        if process.exitcode != 0:
            raise RuntimeError(f"The process that was started by {start} ended with {process.exitcode}.")
        pairs = zip(answers.get(), expected, strict=True)
        wrong = sum(not np.array_equal(given, wanted) for given, wanted in pairs)
        yield Line(f"a process, by {start}", "answers that differ", 0, wrong)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=10_000, help="of one adapted model (10,000)")
    parser.add_argument("--cycles", type=int, default=1_000, help="of adapt, a call and unwrap (1,000)")
    options = parser.parse_args()
    framework = make_framework()
    print(f"{framework.name}, {RECIPE}\n{HEADER}")
    parts: list[Callable[[], list[Line]]] = [
        lambda: soak_calls(framework, options.calls),
        lambda: soak_cycles(framework, options.cycles),
        lambda: compare_threads(framework, max(4, options.calls // 100)),
        lambda: list(compare_processes(framework)),
    ]
    good = True
    for run in parts:
        started = time.perf_counter()
        lines = run()
        good = good and all(line.is_good for line in lines)
        print("\n".join(map(str, lines)))
        print(f"{'':<22} {time.perf_counter() - started:.0f} s", flush=True)
    print("Nothing grew, and all answers are the same." if good else "Something GREW, or an answer differed.")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
