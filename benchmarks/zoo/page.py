"""docs/zoo.md: the verdicts as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version

from .members import Member, Outcome

LIBRARIES = ("timm", "torchvision", "segmentation_models_pytorch", "transformers", "keras.applications")

_INTRODUCTION = """# The zoo

The zoo tests every architecture family with BatchNorm in timm, torchvision, segmentation_models_pytorch, transformers
and keras.applications. It takes the smallest model of each family, with seeded random weights, statistics measured on
seeded random images, and a small input.

    make zoo

checks all models and writes this page. It takes half an hour on two cores. Rerun it to resume. A model is **right** if
it passes all of these checks:

- `sita.adapt` accepts it. With `ops`, the output has the source model's shapes and is finite. (The values of the vote
  are not checked here.)
- λ = 1 gives the source model's output. So does λ = 1 − 1e-7, which runs the blending code.
- λ = 0.8 agrees with an independent AugBN in float64, within 1e-9 of the largest output. For PyTorch, the reference
  runs one forward pass per view in lockstep, and the passes exchange means and variances at every normalization
  (`benchmarks/zoo/torch_reference.py`). For Keras, it runs the views as one batch with a replaced `call` of
  BatchNormalization.
- An image gets the same output when another image is in the batch.
- The source model is bitwise unchanged afterwards.
- Every BatchNorm that ran is adapted or reported as skipped. This includes `nn.BatchNorm*d`, `F.batch_norm` and frozen
  layers.

A model is *refused* if the library raises an error that gives the reason. It then returns no output. A note in
parentheses says which check does not apply: there is no vote if a model returns no scores (for example a backbone's
features), and a model that does not run in float64 is checked in float32.
"""

_LEFT_OUT = """
The zoo leaves out these models from transformers:

- models for audio (except CLAP), text and time series
- models that take keypoints or text in addition to the image: SuperGlue, GroupViT, Grounding DINO, OmDet-Turbo, SAM 3
- models that need another package or a larger configuration than their default: Depth Pro, Sapiens2, Emu3, OneFormer,
  LayoutLMv2, and the detectors of PP-OCRv5 server and PP-OCRv6

It tests only the backbone of UVDoc and SLANet. DEIMv2 runs with PyTorch's RMSNorm, because its own RMSNorm rounds to
float32 even in a float64 model. The zoo also leaves out torchvision's detectors, which take lists of images.
"""


def write_page(outcomes: Sequence[tuple[Member, Outcome]]) -> str:
    """Return the page."""
    kinds = ("right", "refused", "WRONG", "crash")
    lines = [_INTRODUCTION, f"| library | {' | '.join(kinds)} |", f"| --- |{' ---: |' * len(kinds)}"]
    for library in LIBRARIES:
        count = Counter(outcome.kind for member, outcome in outcomes if member.library == library)
        lines.append(
            f"| {library} {version(library.partition('.')[0])} | {' | '.join(str(count[kind]) for kind in kinds)} |"
        )
    lines += [_LEFT_OUT, "| library | model | input | layers | verdict |", "| --- | --- | --- | ---: | --- |"]
    for member, outcome in outcomes:
        shape = "×".join(map(str, outcome.shape))
        verdict = outcome.verdict + (f" ({outcome.note})" if outcome.note else "")
        cells = (member.library, member.name, shape, str(outcome.layers or ""), verdict)
        lines.append(f"| {' | '.join(cell.replace('|', '/').replace(chr(10), ' ') for cell in cells)} |")
    return "\n".join(lines) + "\n"
