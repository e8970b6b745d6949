"""export_checked(): an exported file with its metadata, put in place only if it answers as the adapted model does."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import sita_adapters as sita
from sita_adapters.backend import adaptation_of, backend_of
from sita_adapters.engine import Adaptation
from sita_adapters.export import Exported, replacing, resolve_format
from sita_adapters.views import spatial_kind

from .check import Expected, expect, verify
from .metadata import ExportMetadata, write_beside, write_into_onnx
from .runtimes import RUNTIMES, installed_runtime


@dataclass(frozen=True)
class CheckedExport(Exported):
    """An exported file that was compared with its adapted model.

    Attributes:
        difference: The largest difference of a probability; None if the format's runtime is not installed, so nothing
            was compared.
    """

    difference: float | None

    def __str__(self) -> str:
        if self.difference is None:
            checked = f"not checked: {' or '.join(RUNTIMES[self.format])} is not installed"
        else:
            checked = f"checked: within {self.difference:.0e} of the adapted model's answers"
        return f"{super().__str__()}; {checked}"


def export_checked(
    adapted: Any,
    path: str | os.PathLike[str],
    example: Any = None,
    metadata_fields: Mapping[str, Any] | None = None,
    *,
    diagnostics: bool = False,
) -> CheckedExport:
    """Export an adapted model, describe the file, and compare it with the model before it is put in place.

    The metadata is stored inside an ONNX file, or as `NAME.json` beside any other.

    Args:
        adapted: A model that `sita.adapt` returned.
        path: The file to write, as in `sita.export`.
        example: A batch of images, as in `sita.export`.
        metadata_fields: Fields of `ExportMetadata` to set, such as `inputs`, `names` and `weights`.
        diagnostics: Whether the file also returns `prior`, `entropy` and `source`, as in `sita.export`.

    Returns:
        The file, and how far its answers are from the adapted model's.

    Raises:
        ExportError: The model cannot be exported, or the file's answers differ. An existing file stays as it was.

    Example:
        >>> fields = {"inputs": sita.Inputs(), "names": ("cat", "dog")}
        >>> print(export_checked(sita.adapt(model), "model.onnx", torch.rand(2, 3, 64, 64), metadata_fields=fields))
        model.onnx: ONNX, images (N, 3, 64, 64); checked: within 1e-07 of the adapted model's answers
    """
    backend, target = backend_of(adapted), Path(path)
    chosen = resolve_format(target, backend)
    with replacing(target, chosen) as made:
        exported = sita.export(adapted, made, example=example, diagnostics=diagnostics)
        images = _images(example, exported)
        several = (images, images[:1], np.concatenate([images, images[::-1]]))
        batches = [expect(adapted, batch, diagnostics=diagnostics) for batch in several]
        metadata = _describe_file(adaptation_of(adapted), exported, batches[0])
        metadata = replace(metadata, **(metadata_fields or {}))
        if chosen == "onnx":
            write_into_onnx(made, metadata)
        difference = None if installed_runtime(chosen) is None else verify(made, chosen, batches)
    if chosen != "onnx":
        write_beside(target, metadata)
    return CheckedExport(target, chosen, exported.input_shape, difference)


def _images(example: Any, exported: Exported) -> np.ndarray:
    """Return the images of the example, or random ones, as the file takes them."""
    if example is None:
        shape = [size or 2 for size in exported.input_shape]
        return np.random.default_rng(0).normal(size=shape).astype(np.float32)
    images = np.asarray(example.detach().cpu() if hasattr(example, "detach") else example)
    return images.astype(np.float32) if images.dtype.kind == "f" else images


def _describe_file(adaptation: Adaptation, exported: Exported, expected: Expected) -> ExportMetadata:
    """Return what the adapted model and its answers tell about the file."""
    shape, kinds = exported.input_shape, adaptation.kinds
    channel = adaptation.channel_axis % len(shape)
    spatial = [size or 0 for axis, size in enumerate(shape) if axis not in (0, channel)]
    plan, _ = adaptation.plan_for(kinds[0] if len(kinds) == 1 else spatial_kind(spatial))
    return ExportMetadata(
        recipe=str(adaptation.recipe),
        scores=None if expected.scores is None else expected.scores.kind,
        class_axis=-1 if expected.scores is None else expected.scores.class_axis,
        scores_name=expected.scores_name,
        input_shape=shape,
        inputs=adaptation.settings.inputs,
        diagnostics=expected.diagnostics,
        rows=plan.rows,
    )
