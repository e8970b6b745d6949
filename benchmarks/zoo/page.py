"""docs/zoo.md: the verdicts as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version

from .members import LIBRARIES, Member, Outcome

_INTRODUCTION = """# The zoo

Every architecture family of timm, torchvision, segmentation_models_pytorch, transformers and keras.applications that
has BatchNorm: the smallest member of each, with seeded weights, statistics of seeded images, and a small input.

    make zoo

checks them all (half an hour on two cores; a run that is stopped continues, and only what changed runs again) and
writes this page. A model is **right** where

- `sita.adapt` takes it, and the default recipe's answer has the source model's shapes and is finite (what was voted is
  not checked here);
- λ = 1, and λ = 1 − 1e-7, which blends, give the source model's answer;
- λ = 0.8 is an independent AugBN in float64, to 1e-9 of the largest output: one forward pass for each view, in
  lockstep, that exchange means and variances at every normalisation (`benchmarks/zoo/torch_reference.py`; of Keras, the
  views as one batch, by another `call` of BatchNormalization);
- an image's answer is the same beside another image;
- the source model is afterwards what it was, to the last bit;
- every BatchNorm that ran is adapted, or named as left alone: `nn.BatchNorm`, `F.batch_norm`, frozen ones.

*Refused* is an error of the library that says why; nothing wrong is put out. A note in brackets says what did not
apply: no vote where a model returns no scores (a backbone's features), float32 where it does not run in float64.
"""

_LEFT_OUT = """
Left out, of transformers: models of sound (but for CLAP), text and time series; those that take keypoints or texts
beside the image (SuperGlue, GroupViT, Grounding DINO, OmDet-Turbo, SAM 3); and those that need a larger configuration
than their default or another package (Depth Pro, Sapiens2, Emu3, OneFormer, LayoutLMv2, the detectors of PP-OCRv5
server and PP-OCRv6). Of UVDoc and SLANet the backbone stands for the whole; DEIMv2 has PyTorch's RMSNorm instead of its
own, which rounds to float32 even in a float64 model. Of torchvision: whole detectors, which take lists of images.
"""


def write_page(members: Iterable[Member], outcomes: Mapping[str, Outcome]) -> str:
    """Return the page."""
    rows = [(member, outcomes[member.key]) for member in members if member.key in outcomes]
    lines = [_INTRODUCTION, *_counts(rows), _LEFT_OUT]
    lines += ["| library | family | member | input | layers | verdict |", "| --- | --- | --- | --- | ---: | --- |"]
    for member, outcome in rows:
        if outcome.verdict != "no BatchNorm":
            lines.append(_row(member, outcome))
    skipped = [member for member, outcome in rows if outcome.verdict == "no BatchNorm"]
    lines += ["", f"Without BatchNorm ({len(skipped)}): {', '.join(member.key for member in skipped)}."]
    return "\n".join(lines) + "\n"


def kind_of(verdict: str) -> str:
    """Return the first words of a verdict: what it is counted as."""
    return verdict.partition(":")[0]


def _counts(rows: list[tuple[Member, Outcome]]) -> list[str]:
    kinds = ("right", "refused", "WRONG", "crash", "no BatchNorm")
    lines = [f"| library | {' | '.join(kinds)} |", f"| --- |{' ---: |' * len(kinds)}"]
    for library in LIBRARIES:
        count = Counter(kind_of(outcome.verdict) for member, outcome in rows if member.library == library)
        lines.append(f"| {library} {_version(library)} | {' | '.join(str(count[kind]) for kind in kinds)} |")
    return lines


def _row(member: Member, outcome: Outcome) -> str:
    shape = "×".join(map(str, outcome.shape))
    verdict = outcome.verdict + (f" ({outcome.note})" if outcome.note else "")
    cells = (member.library, member.family, outcome.member, shape, str(outcome.layers or ""), verdict)
    return f"| {' | '.join(cell.replace('|', '/').replace(chr(10), ' ') for cell in cells)} |"


def _version(library: str) -> str:
    try:
        return version(library.partition(".")[0].replace("_", "-"))
    except PackageNotFoundError:
        return ""
