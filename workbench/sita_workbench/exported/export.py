"""export_checked(): an exported file with its metadata, put in place only if it answers as the adapted model does."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import sita_adapters as sita
from sita_adapters.backend import Backend, backend_of
from sita_adapters.description import Description
from sita_adapters.export import Exported, replacing, resolve_format
from sita_adapters.plan import make_plan
from sita_adapters.views import SpatialKind, spatial_kind

from .check import Check, make_check, verify
from .metadata import ExportMetadata, write_beside, write_into_onnx
from .runtimes import RUNTIMES, Shape, installed_runtime


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
    format: str | None = None,
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
        format: The format, as in `sita.export`.
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
    description = sita.describe(adapted)
    chosen = resolve_format(target, format, backend, description)
    with replacing(target, chosen) as temporary:
        exported = sita.export(adapted, temporary, example=example, format=chosen, diagnostics=diagnostics)
        written = backend.with_diagnostics(adapted) if diagnostics else adapted
        check = make_check(backend, adapted, written, backend.read_example(adapted, example))
        metadata = replace(_describe_file(description, backend, check), **(metadata_fields or {}))
        if chosen == "onnx":
            write_into_onnx(temporary, metadata)
        difference = None
        if installed_runtime(chosen) is not None:
            difference = verify(temporary, chosen, check, description, backend.ops.class_axis)
    if chosen != "onnx":
        write_beside(target, metadata)
    return CheckedExport(target, chosen, exported.input_shape, difference)


def _describe_file(description: Description, backend: Backend, check: Check) -> ExportMetadata:
    """Return what the adapted model and the check know about the file."""
    return ExportMetadata(
        recipe=str(description.recipe),
        scores=description.scores,
        class_axis=backend.ops.class_axis,
        scores_index=check.scores_index or 0,
        input_shape=check.input_shape,
        inputs=description.inputs,
        diagnostics=check.diagnostics,
        rows=make_plan(description.recipe, _kind(description, check.input_shape, backend.ops.class_axis)).rows,
    )


def _kind(description: Description, shape: Shape, channel_axis: int) -> SpatialKind:
    """Return which kind of image these are to the adapted model, which decides their views."""
    if len(description.kinds) == 1:
        return description.kinds[0]
    return spatial_kind([size or 0 for axis, size in enumerate(shape) if axis not in (0, channel_axis % len(shape))])
