"""What an exported file answers, without any code of the library."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

NEEDS = {".onnx": ("onnx", "onnxruntime"), ".tflite": ("keras.src.export.litert",), "": ("tensorflow",)}


def need(file: str) -> None:
    """Skip the test unless what writes and runs such a file is installed."""
    for package in NEEDS.get(Path(file).suffix, ()):
        pytest.importorskip(package)
    import sys

    if file.endswith(".onnx") and "keras" in sys.modules and sys.modules["keras"].backend.backend() == "tensorflow":
        pytest.importorskip("tf2onnx")


def run(path: Path, batch: np.ndarray) -> list[np.ndarray]:
    """Return every output of the file."""
    return list(run_named(path, batch).values())


def run_named(path: Path, batch: np.ndarray) -> dict[str, np.ndarray]:
    """Return every output of the file, by name."""
    runners = {".onnx": _run_onnx, ".tflite": _run_litert, "": _run_saved_model}
    return runners.get(path.suffix, _run_torch)(path, batch)


def _run_onnx(path: Path, batch: np.ndarray) -> dict[str, np.ndarray]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {session.get_inputs()[0].name: batch}), strict=True))


def _run_saved_model(path: Path, batch: np.ndarray) -> dict[str, np.ndarray]:
    import tensorflow

    loaded = tensorflow.saved_model.load(str(path))  # has to be held while its function runs
    return {name: np.asarray(array) for name, array in sorted(loaded.serve(batch).items())}


def _run_litert(path: Path, batch: np.ndarray) -> dict[str, np.ndarray]:
    import tensorflow

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is moving to a package of its own
        runner = tensorflow.lite.Interpreter(str(path)).get_signature_runner()
    (argument,) = runner.get_input_details()
    return dict(runner(**{argument: batch}))


def _run_torch(path: Path, batch: np.ndarray) -> dict[str, np.ndarray]:
    import torch

    with torch.no_grad():
        output = torch.export.load(path).module()(torch.from_numpy(batch))
    named = output if isinstance(output, dict) else {"scores": output}
    return {name: tensor.numpy() for name, tensor in named.items()}
