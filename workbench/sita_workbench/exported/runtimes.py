"""Run exported files on NumPy arrays, each with the runtime of its format. None of it needs the model's code."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from sita_adapters.errors import ExportError, InputError, SitaError
from sita_adapters.export import SUFFIXES

from .metadata import KEY, ExportMetadata, read_beside, read_metadata

Shape = tuple["int | None", ...]

_PROVIDER = "ExecutionProvider"
"""The end of the names of onnxruntime's providers."""

RUNTIMES = {
    "onnx": ("onnxruntime",),
    "pt2": ("torch",),
    "litert": ("ai_edge_litert", "tensorflow"),
    "saved_model": ("tensorflow",),
}
"""The packages that run a format; one of them is enough."""


@dataclass(frozen=True, eq=False)
class ExportedFile:
    """An opened file. It takes images as the adapted model does, and returns its outputs by name, in order."""

    path: Path
    runtime: str
    run_named: Callable[[np.ndarray], dict[str, np.ndarray]]
    input_shape: Shape | None
    metadata: ExportMetadata | None = None

    def run(self, images: np.ndarray) -> list[np.ndarray]:
        """Return its outputs in order."""
        return list(self.run_named(images).values())


def format_of(path: Path) -> str | None:
    """Return the format of an existing exported file or folder; None if it is something else."""
    if path.is_dir():
        return "saved_model" if (path / "saved_model.pb").is_file() else None
    return SUFFIXES.get(path.suffix.lower()) if path.is_file() and path.suffix else None


def installed_runtime(format: str) -> str | None:
    """Return the package that will run this format, if one is installed."""
    return next((name for name in RUNTIMES[format] if find_spec(name) is not None), None)


def open_exported(path: Path, format: str, providers: Sequence[str] | None = None) -> ExportedFile:
    """Open an exported file with the runtime of its format.

    Args:
        path: The file, or the folder of a SavedModel.
        format: "onnx", "pt2", "litert" or "saved_model".
        providers: For an ONNX file, onnxruntime's providers in order of preference; None: the CPU.

    Returns:
        The opened file, with its metadata if it has any.

    Raises:
        ExportError: The runtime is not installed or cannot open the file, or the metadata describes another file.

    Example:
        >>> file = open_exported(Path("model.onnx"), "onnx")
        >>> (scores,) = file.run(images)
    """
    runtime = installed_runtime(format)
    if runtime is None:
        package = RUNTIMES[format][0].replace("_", "-")
        raise ExportError(f"{path} needs {package} to run, which is not installed. Try: pip install {package}")
    try:
        opened = _open_onnx(path, providers) if format == "onnx" else _OPENERS[format](path)
    except SitaError:
        raise
    except Exception as error:
        raise ExportError(
            f"Expected a file that {runtime} can run; {path} is not one: {first_line(error)} Try: export it again."
        ) from error
    metadata = read_beside(path) if format != "onnx" else None
    if metadata is None:
        return opened
    return replace(opened, input_shape=opened.input_shape or metadata.input_shape, metadata=metadata)


def _open_onnx(path: Path, providers: Sequence[str] | None = None) -> ExportedFile:
    onnxruntime = import_module("onnxruntime")  # without telemetry: see sita_workbench/__init__.py
    session = onnxruntime.InferenceSession(str(path), providers=_read_providers(providers, onnxruntime))
    (image,) = session.get_inputs()
    shape = tuple(size if isinstance(size, int) else None for size in image.shape)
    written = session.get_modelmeta().custom_metadata_map.get(KEY)
    names = [output.name for output in session.get_outputs()]

    def run(images: np.ndarray) -> dict[str, np.ndarray]:
        return dict(zip(names, session.run(None, {image.name: images}), strict=True))

    return ExportedFile(path, "onnxruntime", run, shape, written and read_metadata(written, str(path)))


def _read_providers(providers: Sequence[str] | None, onnxruntime: Any) -> list[str]:
    """Return the full names of providers, which may be given without their common ending."""
    available = onnxruntime.get_available_providers()
    short = {name.removesuffix(_PROVIDER).lower(): name for name in available}
    found = [short.get(name.removesuffix(_PROVIDER).lower(), "") for name in providers or ["CPU"]]
    if not all(found):
        raise InputError(
            f"providers: expected some of {', '.join(name.removesuffix(_PROVIDER) for name in available)}, which this "
            f"onnxruntime has; received {', '.join(providers or ())}. Try: leave it out for the CPU, or install the "
            "onnxruntime that has the provider."
        )
    return found


def _open_program(path: Path) -> ExportedFile:
    torch = import_module("torch")
    module = import_module("torch.export").load(str(path)).module()

    def run(images: np.ndarray) -> dict[str, np.ndarray]:
        with torch.no_grad():
            output = module(torch.from_numpy(np.array(images, order="C")))
        named = output if isinstance(output, dict) else dict(enumerate(_listed(output)))
        return {str(name): tensor.numpy() for name, tensor in named.items()}

    return ExportedFile(path, "torch", run, None)


def _open_saved_model(path: Path) -> ExportedFile:
    tensorflow = import_module("tensorflow")
    loaded = tensorflow.saved_model.load(str(path))
    signature = loaded.signatures["serving_default"]
    ((name, spec),) = signature.structured_input_signature[1].items()

    def run(images: np.ndarray) -> dict[str, np.ndarray]:
        outputs = signature(**{name: tensorflow.constant(images)})
        return {key: np.asarray(outputs[key]) for key in _in_order(outputs)}

    # The function runs only while the loaded object is alive.
    run.loaded = loaded  # type: ignore[attr-defined]
    return ExportedFile(path, "tensorflow", run, tuple(spec.shape))


def _open_litert(path: Path) -> ExportedFile:
    if find_spec("ai_edge_litert") is not None:
        name, interpreter = "ai_edge_litert", import_module("ai_edge_litert.interpreter").Interpreter(str(path))
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # it is moving to ai_edge_litert, which is preferred
            name, interpreter = "tensorflow", import_module("tensorflow").lite.Interpreter(str(path))
    (image,) = interpreter.get_input_details()
    runner = interpreter.get_signature_runner()
    (argument,) = runner.get_input_details()

    def run(images: np.ndarray) -> dict[str, np.ndarray]:
        outputs = runner(**{argument: images})
        return {key: outputs[key] for key in _in_order(outputs)}

    shape = tuple(int(size) if size > 0 else None for size in image["shape_signature"])
    return ExportedFile(path, name, run, shape)


def _in_order(outputs: dict[str, Any]) -> list[str]:
    """Return the names of outputs in order: numbered ones by number, others as TensorFlow sorts them."""
    numbered = all(name.rpartition("_")[2].isdigit() for name in outputs)
    return sorted(outputs, key=(lambda name: int(name.rpartition("_")[2])) if numbered else str)


def _listed(output: Any) -> Sequence[Any]:
    return output if isinstance(output, list | tuple) else [output]


_OPENERS: dict[str, Callable[[Path], ExportedFile]] = {
    "pt2": _open_program,
    "litert": _open_litert,
    "saved_model": _open_saved_model,
}


def first_line(error: BaseException) -> str:
    """Return the first informative line of an error as a sentence."""
    stripped = [line.strip(" .=-") for line in str(error).splitlines()]
    return next(filter(None, stripped), type(error).__name__) + "."


def run_checked(file: ExportedFile, images: np.ndarray) -> dict[str, np.ndarray]:
    """Run a file on images; return its outputs by name, or raise an InputError if it cannot take them."""
    try:
        return file.run_named(images)
    except Exception as error:
        raise InputError(
            f"{file.path} expected images of shape {file.input_shape}; on {images.shape} it failed: {first_line(error)}"
        ) from error
