"""Exported files, run on numpy arrays by whatever their format is made for. None of it needs the model's own code."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from .card import KEY, Card, card_path, read_card
from .errors import ExportError, InputError, SitaError

Shape = tuple["int | None", ...]

_PROVIDER = "ExecutionProvider"
"""What the names of onnxruntime's providers end in."""

SUFFIXES = {
    ".onnx": "onnx",
    ".pt2": "pt2",
    ".pt": "torchscript",
    ".ts": "torchscript",
    ".torchscript": "torchscript",
    ".tflite": "litert",
    ".litert": "litert",
    "": "saved_model",
}
"""What a file's name says of its format. A SavedModel is a folder."""

RUNTIMES = {
    "onnx": ("onnxruntime",),
    "pt2": ("torch",),
    "torchscript": ("torch",),
    "litert": ("ai_edge_litert", "tensorflow"),
    "saved_model": ("tensorflow",),
}
"""The packages that run a format; any one of them does."""


@dataclass(frozen=True, eq=False)
class ExportedFile:
    """A file that was opened: it takes images as the adapted model does, and returns its outputs by name, in order."""

    path: Path
    runtime: str
    run_named: Callable[[np.ndarray], dict[str, np.ndarray]]
    input_shape: Shape | None
    card: Card | None = None

    def run(self, images: np.ndarray) -> list[np.ndarray]:
        """Return its outputs in order."""
        return list(self.run_named(images).values())


def format_of(path: Path) -> str | None:
    """Return the format of an exported file or folder that is there; None where it is something else."""
    if path.is_dir():
        return "saved_model" if (path / "saved_model.pb").is_file() else None
    return SUFFIXES.get(path.suffix.lower()) if path.is_file() and path.suffix else None


def installed_runtime(format: str) -> str | None:
    """Return the package that will run this format, if one is installed."""
    return next((name for name in RUNTIMES[format] if find_spec(name) is not None), None)


def open_exported(path: Path, format: str, providers: Sequence[str] | None = None) -> ExportedFile:
    """Open an exported file with the runtime of its format.

    `providers` are onnxruntime's, for an ONNX file: what runs it, by preference; None: the CPU.
    """
    runtime = installed_runtime(format)
    if runtime is None:
        package = RUNTIMES[format][0].replace("_", "-")
        raise ExportError(f"{path} needs {package} to run, which is not installed. Remedy: pip install {package}")
    try:
        opened = _open_onnx(path, providers) if format == "onnx" else _OPENERS[format](path)
    except SitaError:
        raise
    except Exception as error:
        raise ExportError(
            f"Expected a file that {runtime} can run; {path} is not one: {first_line(error)} Remedy: export it again."
        ) from error
    beside = card_path(path)
    if opened.card is not None or not beside.is_file():
        return opened
    card = read_card(beside.read_text(encoding="utf-8"), str(beside))
    return replace(opened, input_shape=opened.input_shape or card.input_shape, card=card)


def first_line(error: BaseException) -> str:
    """Return the first line of an error that says something, ended as a sentence is."""
    lines = [line.strip() for line in str(error).splitlines()]
    said = next((line for line in lines if line.strip(" .=-")), "") or type(error).__name__
    if said.startswith("Exception encountered when calling"):  # what Keras puts before what happened
        said = next((line for line in lines[1:] if line), said)
    said = said.replace("\x1b[1m", "").replace("\x1b[0m", "")
    return said if said.endswith((".", "!", "?")) else f"{said}."


def _open_onnx(path: Path, providers: Sequence[str] | None = None) -> ExportedFile:
    onnxruntime = import_module("onnxruntime")
    session = onnxruntime.InferenceSession(str(path), providers=_read_providers(providers, onnxruntime))
    (image,) = session.get_inputs()
    shape = tuple(size if isinstance(size, int) else None for size in image.shape)
    written = session.get_modelmeta().custom_metadata_map.get(KEY)
    names = [output.name for output in session.get_outputs()]

    def run(images: np.ndarray) -> dict[str, np.ndarray]:
        return dict(zip(names, session.run(None, {image.name: images}), strict=True))

    return ExportedFile(path, "onnxruntime", run, shape, written and read_card(written, str(path)))


def _read_providers(providers: Sequence[str] | None, onnxruntime: Any) -> list[str]:
    """Return the providers' full names; one may be given without the ending that all of them have."""
    available = onnxruntime.get_available_providers()
    short = {name.removesuffix(_PROVIDER).lower(): name for name in available}
    found = [short.get(name.removesuffix(_PROVIDER).lower(), "") for name in providers or ["CPU"]]
    if not all(found):
        raise InputError(
            f"providers: expected some of {', '.join(name.removesuffix(_PROVIDER) for name in available)}, which this "
            f"onnxruntime has; received {', '.join(providers or ())}. Remedy: leave it out for the CPU, or install the "
            "onnxruntime that brings the provider."
        )
    return found


def _open_torch(load: Callable[[str], Any]) -> Callable[[Path], ExportedFile]:
    def open_file(path: Path) -> ExportedFile:
        torch = import_module("torch")
        module = load(str(path))

        def run(images: np.ndarray) -> dict[str, np.ndarray]:
            with torch.no_grad():
                output = module(torch.from_numpy(np.array(images, order="C")))
            named = output if isinstance(output, dict) else dict(enumerate(_listed(output)))
            return {str(name): tensor.numpy() for name, tensor in named.items()}

        return ExportedFile(path, "torch", run, None)

    return open_file


def _load_program(path: str) -> Any:
    return import_module("torch.export").load(path).module()


def _load_script(path: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of TorchScript itself
        return import_module("torch").jit.load(path, map_location="cpu")


def _open_saved_model(path: Path) -> ExportedFile:
    tensorflow = import_module("tensorflow")
    loaded = tensorflow.saved_model.load(str(path))
    signature = loaded.signatures["serving_default"]
    ((name, spec),) = signature.structured_input_signature[1].items()

    def run(images: np.ndarray) -> dict[str, np.ndarray]:
        outputs = signature(**{name: tensorflow.constant(images)})
        return {key: np.asarray(outputs[key]) for key in _in_order(outputs)}

    # The function runs only as long as what was loaded is held.
    run.loaded = loaded  # type: ignore[attr-defined]
    return ExportedFile(path, "tensorflow", run, tuple(spec.shape))


def _open_litert(path: Path) -> ExportedFile:
    if find_spec("ai_edge_litert") is not None:
        name, interpreter = "ai_edge_litert", import_module("ai_edge_litert.interpreter").Interpreter(str(path))
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # it is moving to ai_edge_litert, which was looked for first
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
    """Return the names of outputs in their order: numbered ones by number, others as TensorFlow sorts them."""
    numbered = all(name.rpartition("_")[2].isdigit() for name in outputs)
    return sorted(outputs, key=(lambda name: int(name.rpartition("_")[2])) if numbered else str)


def _listed(output: Any) -> Sequence[Any]:
    return output if isinstance(output, list | tuple) else [output]


_OPENERS: dict[str, Callable[[Path], ExportedFile]] = {
    "pt2": _open_torch(_load_program),
    "torchscript": _open_torch(_load_script),
    "litert": _open_litert,
    "saved_model": _open_saved_model,
}


def run_checked(file: ExportedFile, images: np.ndarray) -> dict[str, np.ndarray]:
    """Run a file on images; return its outputs by name, or raise an InputError where it cannot take them."""
    try:
        return file.run_named(images)
    except Exception as error:
        raise InputError(
            f"{file.path} failed on images of shape {images.shape}: {first_line(error)} Expected {file.input_shape}."
        ) from error
