"""Adapted modules as files: ONNX and torch.export."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from sita_adapters.errors import ExportError, SitaError
from sita_adapters.export import require_exporter
from sita_adapters.gauge import SCORES, name_outputs
from sita_adapters.outputs import flatten

from .call import forward_with_gauge, try_out_example
from .ops import TORCH

FORMATS = ("onnx", "pt2")

_IMAGES = "images"


def write(adapted: nn.Module, path: Path, format: str, example: np.ndarray) -> None:
    """Write an adapted module, with or without diagnostics, to a file.

    It takes any number of images of the height and width of the example.
    """
    images = torch.from_numpy(example)
    writers: dict[str, Callable[..., None]] = {"onnx": _to_onnx, "pt2": _to_pt2}
    try_out_example(adapted.adapted if isinstance(adapted, WithDiagnostics) else adapted, images)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on sizes that a trace keeps, and on exporters that will go one day
        writers[format](adapted, path, images)


class WithDiagnostics(nn.Module):
    """An adapted model that also returns the diagnostics of shift, all outputs by name."""

    def __init__(self, adapted: nn.Module) -> None:
        super().__init__()
        if adapted._forward_hooks or adapted._forward_pre_hooks:
            raise ExportError(
                "diagnostics: expected a model without forward hooks on itself, which would not run in the file; "
                f"received a {type(adapted).__name__} with hooks. Try: export without diagnostics, or put the hooks on "
                "a submodule."
            )
        self.adapted = adapted
        self.training = False

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the adapted model's answer, and the diagnostics."""
        output, gauge = forward_with_gauge(self.adapted, images)
        return name_outputs(flatten(output, TORCH.is_array), gauge)


class _Plain(nn.Module):
    """The adapted model, with an output that every format can hold: a tensor, or several by name or in order."""

    def __init__(self, adapted: nn.Module, by_name: bool) -> None:
        super().__init__()
        self.adapted, self.by_name = adapted, by_name
        self.training = False

    def forward(self, images: torch.Tensor) -> Any:
        """Return the adapted model's answer."""
        found = flatten(self.adapted(images), TORCH.is_array)
        if len(found) == 1:
            return found[0][1]
        return dict(found) if self.by_name else tuple(array for _, array in found)


def _to_onnx(adapted: nn.Module, path: Path, images: torch.Tensor) -> None:
    """Trace the module; where an operation cannot be traced, follow it symbolically, which takes ten times as long.

    The two give graphs of the same answers; the traced one is faster.
    """
    require_exporter("onnx", to="onnx")
    module = _Plain(adapted, by_name=False)
    names = [name for name, _ in flatten(adapted(images), TORCH.is_array)]
    outputs = [SCORES] if len(names) == 1 else names
    dynamic = {name: {0: "batch"} for name in (_IMAGES, *outputs)}
    try:
        torch.onnx.export(
            module,
            (images,),
            str(path),
            dynamo=False,
            input_names=[_IMAGES],
            output_names=outputs,
            dynamic_axes=dynamic,
        )
    except SitaError:
        raise
    except Exception:
        require_exporter("onnxscript", to="onnx")
        torch.onnx.export(
            _program(module, images),
            (images,),
            str(path),
            dynamo=True,
            input_names=[_IMAGES],
            output_names=outputs,
            external_data=False,
            verbose=False,
        )


def _to_pt2(adapted: nn.Module, path: Path, images: torch.Tensor) -> None:
    torch.export.save(_program(_Plain(adapted, by_name=True), images), str(path))


def _program(module: nn.Module, images: torch.Tensor) -> torch.export.ExportedProgram:
    sizes = {_IMAGES: {0: torch.export.Dim("batch", min=1)}}
    return torch.export.export(module, (images,), dynamic_shapes=sizes, strict=False)


def read_example(adapted: nn.Module, example: Any) -> np.ndarray:
    """Return at least two images where the model is; of one, exporters would take the batch for a constant."""
    if example is None:
        raise ExportError(
            "example: a PyTorch model is exported by running it. Expected a batch of images as it takes them; received "
            "none. Remedy: sita.export(adapted, path, example=images)."
        )
    if not isinstance(example, torch.Tensor | np.ndarray) or example.ndim < 2 or len(example) == 0:
        shape = f" of shape {tuple(example.shape)}" if hasattr(example, "shape") else ""
        raise ExportError(
            "example: expected a batch of images as the adapted model takes them, a tensor or numpy array; received "
            f"{type(example).__name__}{shape}."
        )
    images = torch.as_tensor(example).detach()
    like = next((p for p in itertools.chain(adapted.parameters(), adapted.buffers()) if p.is_floating_point()), images)
    if like.device.type != "cpu" or like.dtype not in (torch.float32, torch.float64):
        raise ExportError(
            f"Expected a model in float32 on the CPU; received one in {like.dtype} on {like.device}. Remedy: "
            "sita.export(adapted.cpu().float(), …); the file runs on any device that its runtime supports."
        )
    images = images.to("cpu", like.dtype if images.is_floating_point() else images.dtype).contiguous()
    return np.asarray((images if len(images) > 1 else torch.cat([images, images.flip(-1)])).numpy())
