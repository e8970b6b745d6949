"""Run exported files on NumPy arrays with the runtime of their format. This does not need the model's code."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

import numpy as np

from sita_adapters.errors import ExportError, InputError

from .metadata import KEY, ExportMetadata, read_metadata

Run: TypeAlias = Callable[[np.ndarray], dict[str, np.ndarray]]
"""Takes images as the adapted model does, and returns a file's outputs by name."""


@dataclass(frozen=True, eq=False)
class OnnxFile:
    """An open ONNX file. `metadata` is None if `sita export` did not write the file."""

    path: Path
    run: Run
    input_shape: tuple[int | None, ...]
    metadata: ExportMetadata | None

    @property
    def channels_first(self) -> bool:
        """Whether it takes images with their channels first."""
        return self.input_shape[1] == 3 and self.input_shape[-1] != 3


def require_runtime(format: str, path: Path) -> str:
    """Return the package that runs this format; raise if it is not installed."""
    package = {"onnx": "onnxruntime", "pt2": "torch"}.get(format, "tensorflow")
    if find_spec(package) is None:
        raise ExportError(f"{path} needs {package} to run, which is not installed. Try: pip install {package}")
    return package


def open_onnx(path: Path, providers: Sequence[str] | None = None) -> OnnxFile:
    """Open an ONNX file, and read its metadata if it has any.

    `providers` are onnxruntime's execution providers in order of preference, such as "CUDA"; None for the CPU.

    Example:
        >>> scores = open_onnx(Path("model.onnx")).run(images)["scores"]
    """
    require_runtime("onnx", path)
    onnxruntime = import_module("onnxruntime")  # without telemetry: see sita_workbench/__init__.py
    available = [name.removesuffix("ExecutionProvider") for name in onnxruntime.get_available_providers()]
    chosen = providers or ["CPU"]
    if not set(chosen) <= set(available):
        raise InputError(
            f"providers: expected some of {', '.join(available)}, which this onnxruntime has; received "
            f"{', '.join(chosen)}. Try: omit it for the CPU, or install an onnxruntime that has the provider."
        )
    try:
        session = onnxruntime.InferenceSession(str(path), providers=[f"{name}ExecutionProvider" for name in chosen])
        (image,) = session.get_inputs()
    except Exception as error:
        raise ExportError(
            f"Expected a file that onnxruntime can run; {path} is not one: {first_line(error)} Try: export it again."
        ) from error
    names = [output.name for output in session.get_outputs()]
    written = session.get_modelmeta().custom_metadata_map.get(KEY)

    def run(images: np.ndarray) -> dict[str, np.ndarray]:
        return dict(zip(names, session.run(None, {image.name: images}), strict=True))

    shape = tuple(size if isinstance(size, int) else None for size in image.shape)
    return OnnxFile(path, run, shape, read_metadata(written, str(path)) if written else None)


def _open_program(path: Path) -> Run:
    torch = import_module("torch")
    module = import_module("torch.export").load(str(path)).module()

    def run(images: np.ndarray) -> dict[str, np.ndarray]:
        with torch.no_grad():
            output = module(torch.from_numpy(np.array(images, order="C")))
        return {name: tensor.numpy() for name, tensor in output.items()}

    return run


def _open_saved_model(path: Path) -> Run:
    tensorflow = import_module("tensorflow")
    loaded = tensorflow.saved_model.load(str(path))
    (name,) = loaded.signatures["serving_default"].structured_input_signature[1]

    def run(images: np.ndarray) -> dict[str, np.ndarray]:
        outputs = loaded.signatures["serving_default"](**{name: tensorflow.constant(images)})
        return {key: np.asarray(array) for key, array in outputs.items()}

    return run


def _open_litert(path: Path) -> Run:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it is moving to a package of its own
        runner = import_module("tensorflow").lite.Interpreter(str(path)).get_signature_runner()
    (name,) = runner.get_input_details()
    return lambda images: dict(runner(**{name: images}))


OPENERS: Mapping[str, Callable[[Path], Run]] = {
    "onnx": lambda path: open_onnx(path).run,
    "pt2": _open_program,
    "litert": _open_litert,
    "saved_model": _open_saved_model,
}
"""What runs a file of each format. Except for ONNX, opening one can execute code: it must be trusted."""


def first_line(error: BaseException) -> str:
    """Return the first informative line of an error as a sentence; frameworks add pages of advice."""
    stripped = [line.strip(" .=-") for line in str(error).splitlines()]
    return next(filter(None, stripped), type(error).__name__) + "."
