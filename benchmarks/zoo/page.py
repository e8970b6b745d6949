"""docs/zoo.md: the verdicts as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version

from .members import Member, Outcome

LIBRARIES = ("timm", "torchvision", "segmentation_models_pytorch", "transformers", "keras.applications")

_INTRODUCTION = """# The zoo

Every architecture family of timm, torchvision, segmentation_models_pytorch, transformers and keras.applications that
has BatchNorm: the smallest model of each, with seeded weights, statistics of seeded images, and a small input.

    make zoo

checks them all (half an hour on two cores; rerun it to resume) and writes this page. A model is **right** if

- `sita.adapt` takes it, and the vote of `ops` has the source model's shapes and is finite (its values are not checked
  here);
- λ = 1, and λ = 1 − 1e-7, which blends, give the source model's answer;
- λ = 0.8 is an independent AugBN in float64, to 1e-9 of the largest output: one forward pass for each view, in
  lockstep, that exchange means and variances at every normalization (`benchmarks/zoo/torch_reference.py`; of Keras, the
  views as one batch, with another `call` of BatchNormalization);
- an image's answer is the same next to another image;
- the source model is unchanged afterwards, to the last bit;
- every BatchNorm that ran is adapted, or named as skipped: `nn.BatchNorm`, `F.batch_norm`, frozen ones.

*Refused* is an error of the library that says why; no wrong answer is returned. A note in brackets says what did not
apply: no vote if a model returns no scores (a backbone's features), float32 if it does not run in float64.
"""

_LEFT_OUT = """
Left out, of transformers: models of sound (but for CLAP), text and time series; those that take keypoints or texts
beside the image (SuperGlue, GroupViT, Grounding DINO, OmDet-Turbo, SAM 3); and those that need a larger configuration
than their default or another package (Depth Pro, Sapiens2, Emu3, OneFormer, LayoutLMv2, the detectors of PP-OCRv5
server and PP-OCRv6). Of UVDoc and SLANet the backbone stands for the whole; DEIMv2 has PyTorch's RMSNorm instead of its
own, which rounds to float32 even in a float64 model. Of torchvision: whole detectors, which take lists of images.
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
