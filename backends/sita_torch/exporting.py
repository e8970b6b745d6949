"""Adapted modules as files: ONNX and torch.export."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from sita_adapters.errors import ExportError, SitaError
from sita_adapters.export import name_outputs, require_exporter
from sita_adapters.outputs import flatten

from .call import Arguments, probe_example, run_call
from .inspection import named_tensors
from .ops import TORCH

FORMATS = ("onnx", "pt2")

_IMAGES = "images"
_AS_IT_IS = torch.onnx.TrainingMode.PRESERVE
"""Weights stay as they are: the exporter would write convolutions a second time, fused with constant statistics."""


def write(adapted: nn.Module, path: Path, format: str, example: Any, diagnostics: bool) -> tuple[int | None, ...]:
    """Write an adapted module to a file for any number of images of the example's height and width."""
    images = _check_example(adapted, example)
    probe_example(adapted, (images,), {})
    own_call = type(adapted).__call__ is not nn.Module.__call__
    if diagnostics and (adapted._forward_hooks or adapted._forward_pre_hooks or own_call):
        raise ExportError(
            f"diagnostics: {type(adapted).__name__} has forward hooks on itself, or a __call__ of its own, which would "
            "not run in such a file. Try: export without diagnostics, or put the hooks on one of its submodules."
        )
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about sizes that a trace keeps, and deprecated exporters
        if format == "onnx":
            _to_onnx(adapted, diagnostics, path, images)
        else:
            torch.export.save(_program(Exportable(adapted, diagnostics), images), str(path))
    return (None, *images.shape[1:])


class Exportable(nn.Module):
    """An adapted model whose output every format can hold: tensors by name, or in the order of their names for ONNX."""

    def __init__(self, adapted: nn.Module, diagnostics: bool, by_name: bool = True) -> None:
        super().__init__()
        self.adapted, self.diagnostics, self.by_name = adapted, diagnostics, by_name
        self.training = False

    def forward(self, images: torch.Tensor) -> Any:
        """Return the answer, and the diagnostics if asked."""
        if self.diagnostics:
            answer = run_call(self.adapted, Arguments((images,), {}), diagnosed=True)
            assert answer.diagnostics is not None
            output, found = answer.rebuild(TORCH), answer.diagnostics.outputs(TORCH)
        else:
            output, found = self.adapted(images), {}
        named = name_outputs(flatten(output, TORCH.is_array), found)
        return named if self.by_name else tuple(named.values())


def _to_onnx(adapted: nn.Module, diagnostics: bool, path: Path, images: torch.Tensor) -> None:
    """Trace the module. If an operation cannot be traced, use torch.export, which takes ten times as long.

    The two give graphs with the same answers; the traced one is faster.
    """
    require_exporter("onnx", to="onnx")
    names = list(Exportable(adapted, diagnostics)(images))
    module = Exportable(adapted, diagnostics, by_name=False)
    dynamic = {name: {0: "batch"} for name in (_IMAGES, *names)}
    settings: dict[str, Any] = {"input_names": [_IMAGES], "output_names": names}
    try:
        how: dict[str, Any] = {"dynamo": False, "dynamic_axes": dynamic, "training": _AS_IT_IS}
        torch.onnx.export(module, (images,), str(path), **how, **settings)
    except SitaError:
        raise
    except Exception:
        require_exporter("onnxscript", to="onnx")
        program = _program(module, images)
        torch.onnx.export(program, (images,), str(path), dynamo=True, external_data=False, verbose=False, **settings)


def _program(module: nn.Module, images: torch.Tensor) -> torch.export.ExportedProgram:
    sizes = {_IMAGES: {0: torch.export.Dim("batch", min=1)}}
    return torch.export.export(module, (images,), dynamic_shapes=sizes, strict=False)


def _check_example(adapted: nn.Module, example: Any) -> torch.Tensor:
    """Return at least two images on the model's device: with one, exporters would make the batch a constant."""
    if not isinstance(example, torch.Tensor | np.ndarray) or example.ndim < 2 or len(example) == 0:
        shape = f" of shape {tuple(example.shape)}" if hasattr(example, "shape") else ""
        raise ExportError(
            "example: expected a batch of images as the adapted model takes them, a tensor or numpy array; received "
            f"{type(example).__name__}{shape}. Try: sita.export(adapted, path, example=images)."
        )
    images = torch.as_tensor(example).detach()
    like = next((tensor for _, tensor in named_tensors(adapted) if tensor.is_floating_point()), images)
    if like.device.type != "cpu" or like.dtype not in (torch.float32, torch.float64):
        raise ExportError(
            f"Expected a model in float32 on the CPU; received one in {like.dtype} on {like.device}. Try: "
            "sita.export(adapted.cpu().float(), …); the file runs on any device that its runtime supports."
        )
    images = images.to("cpu", like.dtype if images.is_floating_point() else images.dtype).contiguous()
    return images if len(images) > 1 else torch.cat([images, images.flip(-1)])
