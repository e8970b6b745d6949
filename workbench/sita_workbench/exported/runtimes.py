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

_PROVIDER = "ExecutionProvider"
"""The end of the names of onnxruntime's providers."""

_RUNTIMES = {"onnx": "onnxruntime", "pt2": "torch", "litert": "tensorflow", "saved_model": "tensorflow"}
"""The package that runs a format."""


@dataclass(frozen=True, eq=False)
class ExportedFile:
    """An opened file. `run` takes images as the adapted model does, and returns the file's outputs by name."""

    path: Path
    runtime: str
    run: Callable[[np.ndarray], dict[str, np.ndarray]]
    input_shape: tuple[int | None, ...] | None
    metadata: ExportMetadata | None = None

    @property
    def channels_first(self) -> bool:
        """Whether it takes images with their channels first."""
        shape = self.input_shape or ()
        return len(shape) == 4 and shape[1] == 3 and shape[-1] != 3


def format_of(path: Path) -> str | None:
    """Return the format of an existing exported file or folder; None if it is something else."""
    if path.is_dir():
        return "saved_model" if (path / "saved_model.pb").is_file() else None
    return SUFFIXES.get(path.suffix.lower()) if path.is_file() and path.suffix else None


def require_runtime(format: str, path: Path) -> str:
    """Return the package that runs this format; raise if it is not installed."""
    package = _RUNTIMES[format]
    if find_spec(package) is None:
        raise ExportError(f"{path} needs {package} to run, which is not installed. Try: pip install {package}")
    return package


def open_exported(path: Path, format: str, providers: Sequence[str] | None = None) -> ExportedFile:
    """Open an exported file with the runtime of its format, and read its metadata if it has any.

    Args:
        path: The file, or the folder of a SavedModel.
        format: "onnx", "pt2", "litert" or "saved_model".
        providers: For an ONNX file, onnxruntime's providers in order of preference; None: the CPU.

    Raises:
        ExportError: The runtime is not installed or cannot open the file, or the metadata describes another file.

    Example:
        >>> scores = open_exported(Path("model.onnx"), "onnx").run(images)["scores"]
    """
    runtime = require_runtime(format, path)
    try:
        opened = _open_onnx(path, providers) if format == "onnx" else _OPENERS[format](path)
    except SitaError:
        raise
    except Exception as error:
        raise ExportError(
            f"Expected a file that {runtime} can run; {path} is not one: {first_line(error)} Try: export it again."
        ) from error
    metadata = opened.metadata if format == "onnx" else read_beside(path)
    shape = opened.input_shape or (metadata.input_shape if metadata else None)
    return replace(opened, input_shape=shape, metadata=metadata)


def _open_onnx(path: Path, providers: Sequence[str] | None) -> ExportedFile:
    onnxruntime = import_module("onnxruntime")  # without telemetry: see sita_workbench/__init__.py
    session = onnxruntime.InferenceSession(str(path), providers=_read_providers(providers, onnxruntime))
    (image,) = session.get_inputs()
    shape = tuple(size if isinstance(size, int) else None for size in image.shape)
    written = session.get_modelmeta().custom_metadata_map.get(KEY)
    names = [output.name for output in session.get_outputs()]

    def run(images: np.ndarray) -> dict[str, np.ndarray]:
        return dict(zip(names, session.run(None, {image.name: images}), strict=True))

    return ExportedFile(path, "onnxruntime", run, shape, read_metadata(written, str(path)) if written else None)


def _read_providers(providers: Sequence[str] | None, onnxruntime: Any) -> list[str]:
    """Return the full names of providers, which may be given without their common ending."""
    available = {name.removesuffix(_PROVIDER).lower(): name for name in onnxruntime.get_available_providers()}
    found = [available.get(name.removesuffix(_PROVIDER).lower(), "") for name in providers or ["CPU"]]
    if not all(found):
        raise InputError(
            f"providers: expected some of {', '.join(name.removesuffix(_PROVIDER) for name in available.values())}, "
            f"which this onnxruntime has; received {', '.join(providers or ())}. Try: leave it out for the CPU, or "
            "install the onnxruntime that has the provider."
        )
    return found


def _open_program(path: Path) -> ExportedFile:
    torch = import_module("torch")
    module = import_module("torch.export").load(str(path)).module()

    def run(images: np.ndarray) -> dict[str, np.ndarray]:
        with torch.no_grad():
            output = module(torch.from_numpy(np.array(images, order="C")))
        return {name: tensor.numpy() for name, tensor in output.items()}

    return ExportedFile(path, "torch", run, None)


def _open_saved_model(path: Path) -> ExportedFile:
    tensorflow = import_module("tensorflow")
    loaded = tensorflow.saved_model.load(str(path))
    signature = loaded.signatures["serving_default"]
    ((name, spec),) = signature.structured_input_signature[1].items()

    def run(images: np.ndarray) -> dict[str, np.ndarray]:
        outputs = signature(**{name: tensorflow.constant(images)})
        return {key: np.asarray(array) for key, array in outputs.items()}

    # The function runs only while the loaded object is alive.
    run.loaded = loaded  # type: ignore[attr-defined]
    return ExportedFile(path, "tensorflow", run, tuple(spec.shape))


def _open_litert(path: Path) -> ExportedFile:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it is moving to a package of its own
        interpreter = import_module("tensorflow").lite.Interpreter(str(path))
    (image,) = interpreter.get_input_details()
    runner = interpreter.get_signature_runner()
    (argument,) = runner.get_input_details()
    shape = tuple(int(size) if size > 0 else None for size in image["shape_signature"])
    return ExportedFile(path, "tensorflow", lambda images: dict(runner(**{argument: images})), shape)


_OPENERS = {"pt2": _open_program, "litert": _open_litert, "saved_model": _open_saved_model}


def first_line(error: BaseException) -> str:
    """Return the first informative line of an error as a sentence; frameworks add pages of advice."""
    stripped = [line.strip(" .=-") for line in str(error).splitlines()]
    return next(filter(None, stripped), type(error).__name__) + "."
