"""export_checked(): an exported file with metadata, kept only if it agrees with the adapted model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import sita_adapters as sita
from sita_adapters.backend import adaptation_of, backend_of
from sita_adapters.errors import ExportError
from sita_adapters.export import TITLES, Exported, name_outputs, replacing, resolve_format
from sita_adapters.observe import Observation
from sita_adapters.outputs import ScoresLayout, flatten
from sita_adapters.recipe import Recipe
from sita_adapters.state import Adaptation
from sita_adapters.voting import probabilities

from ..files import write_text
from .metadata import ExportMetadata, write_into_onnx
from .runtimes import OPENERS, first_line, require_runtime

TOLERANCE = 1e-4
"""How far a probability of the file may be from the adapted model's."""

_ROUNDING = 1e-5
"""How far rounding to float32 may move an entropy, in nats: three times the most that was measured between a network
and its file, 3e-6 (ResNet50, ResNet-20). Candidates that are closer than this may swap ranks."""

_STRAY_PIXELS = 1e-3
"""The share of a label map's pixels that may differ by more, because of rounding."""


@dataclass(frozen=True)
class CheckedExport(Exported):
    """An exported file, and the largest difference of a probability from the adapted model's."""

    difference: float

    def __str__(self) -> str:
        return f"{super().__str__()}; checked: within {self.difference:.0e} of the adapted model's answers"


def export_checked(
    adapted: Any,
    path: str | os.PathLike[str],
    example: Any = None,
    metadata_fields: Mapping[str, Any] | None = None,
    *,
    diagnostics: bool = False,
) -> CheckedExport:
    """Export an adapted model with metadata, and keep the file only if it agrees with the model.

    `path`, `example` and `diagnostics` are as in `sita.export`. The metadata is stored inside an ONNX file, or in
    `NAME.json` for other formats. `metadata_fields` sets fields of `ExportMetadata`, such as `inputs` and `names`.

    Raises:
        ExportError: The model cannot be exported, the runtime of the format is not installed, or the answers differ.
            An existing file stays unchanged.

    Example:
        >>> fields = {"inputs": sita.Inputs(), "names": ("cat", "dog")}
        >>> print(export_checked(sita.adapt(model), "model.onnx", torch.rand(2, 3, 64, 64), metadata_fields=fields))
        model.onnx: ONNX, images (N, 3, 64, 64); checked: within 1e-07 of the adapted model's answers
    """
    target = Path(path)
    chosen = resolve_format(target, backend_of(adapted))
    runtime = require_runtime(chosen, target)
    with replacing(target, chosen) as made:
        exported = sita.export(adapted, made, example=example, diagnostics=diagnostics)
        images = _images(example, exported)
        batches = (images, images[:1], np.concatenate([images, images[::-1]]))
        expected = [_answer(adapted, batch, diagnostics) for batch in batches]
        metadata = _describe_file(adaptation_of(adapted), exported, *expected[0])
        metadata = replace(metadata, **(metadata_fields or {}))
        if chosen == "onnx":
            write_into_onnx(made, metadata)
        try:
            run = OPENERS[chosen](made)
            answers = [run(batch) for batch in batches]
        except Exception as error:
            raise ExportError(
                f"{runtime} cannot run the exported {TITLES[chosen]}: {first_line(error)} Try: another format."
            ) from error
        compared = zip(expected, answers, strict=True)
        difference = max(_compare(*pair, answered, adaptation_of(adapted).recipe) for pair, answered in compared)
    if chosen != "onnx":
        write_text(target.with_name(f"{target.name}.json"), metadata.to_json())
    return CheckedExport(target, chosen, exported.input_shape, difference)


def _images(example: Any, exported: Exported) -> np.ndarray:
    """Return the images of the example, or random ones, as the file takes them."""
    if example is None:
        example = np.random.default_rng(0).normal(size=[size or 2 for size in exported.input_shape])
    images = np.asarray(example.detach().cpu() if hasattr(example, "detach") else example)
    return images.astype(np.float32) if images.dtype.kind == "f" else images


def _describe_file(
    adaptation: Adaptation, exported: Exported, named: Mapping[str, np.ndarray], seen: Observation
) -> ExportMetadata:
    """Return the metadata of a file with these outputs, as far as the adapted model defines it."""
    outputs, layout, plan = list(named), seen.layout, seen.plan
    return ExportMetadata(
        recipe=str(adaptation.recipe),
        scores=layout.scores.kind if layout.scores else None,
        class_axis=layout.scores.class_axis if layout.scores else -1,
        scores_name=outputs[layout.scores.index if layout.scores else 0],
        input_shape=exported.input_shape,
        inputs=adaptation.settings.inputs,
        diagnostics=tuple(outputs[len(layout.paths) :]),
        rows=plan.rows,
    )


def _answer(adapted: Any, images: np.ndarray, diagnostics: bool) -> tuple[dict[str, np.ndarray], Observation]:
    """Return the adapted model's outputs by their names in a file, and what was observed."""
    backend, found = backend_of(adapted), {}
    with sita.observe(adapted) as seen:
        output = backend.run(adapted, images).rebuild(backend.ops)
    if diagnostics:
        found = {"prior": seen.priors, "entropy": seen.entropies.min(axis=1)}
        found |= {} if seen.plan.source_candidate is None else {"source": seen.source}
    own = [(path, backend.ops.to_numpy(array)) for path, array in flatten(output, backend.ops.is_array)]
    return name_outputs(own, found), seen


def _compare(
    expected: dict[str, np.ndarray], seen: Observation, answered: dict[str, np.ndarray], recipe: Recipe
) -> float:
    """Return the largest difference between the answers of a file and the adapted model; raise if it is too large."""
    wanted = {name: array.shape for name, array in expected.items()}
    given = {name: array.shape for name, array in answered.items() if name in wanted}
    if wanted != given:
        raise ExportError(
            f"Expected outputs {wanted}, like the adapted model's; the exported file returned {given}. The model's "
            "graph depends on its example. Try: another format, or an example with the batch size that you will run."
        )
    layout, largest = seen.layout, 0.0
    for index, (name, output) in enumerate(expected.items()):
        is_scores, is_diagnostic = layout.scores and index == layout.scores.index, index >= len(layout.paths)
        if is_diagnostic and name == "prior":
            gaps = prior_gaps(answered[name], seen)
        else:
            as_scores = is_scores or (is_diagnostic and name == "source")
            gaps = _differences(output, answered[name], layout.scores if as_scores else None)
        if is_scores and recipe.candidate_count > 1 and recipe.combine != "mix":
            ties = near_ties(seen, recipe.combine)
            gaps = np.where(ties, 0.0, gaps) if ties.shape == gaps.shape and not ties.all() else gaps
        largest = max(largest, float(gaps.max(initial=0.0)))
        stray = _STRAY_PIXELS if gaps.ndim > 1 and (is_scores or is_diagnostic) else 0.0
        if not np.mean(~(gaps <= TOLERANCE)) <= stray:
            raise ExportError(
                f"Expected the exported file to agree with the adapted model within {TOLERANCE:.0e}; it differs "
                f"by up to {largest:.1e}. No file was written. Try: another format, or another example if two "
                "candidates of this one are equally confident."
            )
    return largest


def near_ties(seen: Observation, combine: str) -> np.ndarray:
    """Return where rounding could change which candidates are kept, or which of the labels wins a tied vote: (N, …)."""
    entropies, kept = seen.entropies, seen.kept

    def lowest(among: np.ndarray) -> np.ndarray:
        return np.asarray(np.where(among, entropies, np.inf).min(axis=1))

    with np.errstate(invalid="ignore"):
        ties = lowest(~kept) - np.where(kept, entropies, -np.inf).max(axis=1) < _ROUNDING
        if combine == "vote":
            leads = kept & (seen.votes == np.where(kept, seen.votes, 0).max(axis=1, keepdims=True))
            wins = seen.labels == seen.answers[:, None]
            ties |= lowest(leads & ~wins) - lowest(leads & wins) < _ROUNDING
    return np.asarray(ties)


def prior_gaps(answered: np.ndarray, seen: Observation) -> np.ndarray:
    """Return how far a file's λ is from the nearest candidate's that rounding could make the most confident."""
    near = seen.entropies - seen.entropies.min(axis=1, keepdims=True) < _ROUNDING
    priors = seen.candidate_priors.reshape(*near.shape[:2], *[1] * (near.ndim - 2))
    return np.asarray(np.where(near, np.abs(answered[:, None] - priors), np.inf).min(axis=1))


def _differences(expected: np.ndarray, answered: np.ndarray, scores: ScoresLayout | None) -> np.ndarray:
    """Return how far apart answers are: for scores, the largest difference of a probability at every position.

    For other outputs, the difference of every number, relative to the largest of them or to 1, whichever is larger.
    """
    wanted, given = (array.astype(np.float64) for array in (expected, answered))
    if scores is None:
        return np.asarray(np.abs(wanted - given) / max(1.0, float(np.abs(wanted).max(initial=0.0))))
    p, q = (probabilities(array, scores.kind, scores.class_axis) for array in (wanted, given))
    gaps = np.abs(p - q)
    return np.asarray(gaps.max(axis=scores.class_axis) if gaps.ndim > 1 else gaps)
