"""What a PyTorch member has to hold: the promises of the library, each against something independent of it."""

from __future__ import annotations

import copy
import dataclasses
import math
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

import sita_adapters as sita
from sita_adapters.errors import OutputError

from .members import Member, Outcome, Wrong
from .torch_layers import Found
from .torch_reference import augbn, views_of
from .torch_weights import images_of, prepare

WARMING = 6
"""So many images give the source its statistics."""
PRIOR = 0.8
ALMOST_ONE = 1 - 1e-7
"""It blends, where λ = 1 itself runs no blending at all."""
NEARER_ONE = 1 - 1e-13
"""The same in float64. A network may well answer a 1e-7 of other statistics with a 1e-4 of other scores."""

_TIGHT = 1e-9
"""Of float64: what is left is the order of sums, through a hundred layers."""
_NEARLY = 1e-7
"""Of float64, for λ = 1 − 1e-13: six digits for what a network makes of so small a change."""
_SAME = 1e-6
"""Of float32, where the same is computed."""
_FLOOR = 1e-5
"""Of float32, where the source model itself is more exact than that."""
_ROUNDING = 20.0
"""A float32 answer may be so many times as far off as the source's own, by the sum of its rounding errors."""


def check(member: Member) -> Outcome:
    """Build a member and check it; crashes are the caller's to name."""
    torch.manual_seed(0)
    source = member.build().eval()
    outcome = Outcome(shape=smallest_shape(source, member))
    # The image and its views are among those that the statistics are from: far from them, what an untrained network
    # answers is chance, and grows without bounds.
    image, others = images_of(1, outcome.shape, seed=1), images_of(WARMING - 3, outcome.shape, seed=2)
    found = prepare(source, torch.cat([*views_of(image), others]))
    try:
        Checks(source, found, outcome).run()
    except sita.SitaError as error:
        overlooked = found.names and "has no BatchNorm layer" in str(error)
        verdict = f"WRONG: {len(found.names)} BatchNorm layers ran, but" if overlooked else "refused"
        outcome.verdict = f"{verdict}: {type(error).__name__}: {error}"
    except Wrong as error:
        outcome.verdict = f"WRONG: {error}"
    return outcome


def smallest_shape(source: nn.Module, member: Member) -> tuple[int, ...]:
    """Return the first of the member's shapes that the source model can run on, with a finite answer."""
    for shape in member.shapes[:-1]:
        try:
            with torch.no_grad():
                answer = source(images_of(2, shape, seed=1))
        except Exception:  # whatever a model does with images that are too small
            continue
        if all(bool(array.isfinite().all()) and array.numel() for array in arrays_of(answer)):
            return shape
    return member.shapes[-1]


class Checks:
    """The checks of one prepared source model. They run in order and share the answers they need."""

    def __init__(self, source: nn.Module, found: Found, outcome: Outcome) -> None:
        self.source, self.found, self.outcome = source, found, outcome
        self.image = images_of(1, outcome.shape, seed=1)
        self.mate = 10 * images_of(1, outcome.shape, seed=3) - 3
        self.aligned = self.positions_with_rows()

    def run(self) -> None:
        """Check everything; raise at the first promise that does not hold."""
        self.plain = self.call(self.source, self.image)
        if not self.plain or not all(bool(each.isfinite().all()) for each in self.plain):
            raise ValueError("the source model itself returns nothing, or values that are not finite.")
        state, facts = copy.deepcopy(self.source.state_dict()), facts_of(self.source)
        self.precise = self.double_source()
        exact = None if self.precise is None else self.call(self.precise, self.image.double())
        own = _FLOOR if exact is None else distance(self.plain, exact)
        self.tolerance = max(_FLOOR, _ROUNDING * own)
        self.outcome.errors["float32 of the source"] = own
        self.check_source_prior()
        self.check_blend()
        self.check_vote()
        if not same_bits(self.source.state_dict(), state):
            raise Wrong("the source's weights changed.")
        if facts_of(self.source) != facts:
            raise Wrong("a module of the source changed its mode, attributes or hooks.")
        if distance(self.call(self.source, self.image), self.plain) > 0:
            raise Wrong("the source model answers otherwise afterwards.")

    def call(self, model: nn.Module, images: torch.Tensor) -> list[torch.Tensor]:
        """Return the floating-point arrays of a model's answer that have an entry for each image."""
        with torch.no_grad():
            return self.with_rows(model(images))

    def with_rows(self, answer: Any) -> list[torch.Tensor]:
        """Return those arrays of an answer that have an entry for each image."""
        arrays = list(arrays_of(answer))
        return [arrays[position] for position in self.aligned]

    def positions_with_rows(self) -> list[int]:
        """Find the arrays that grow with the batch: a constant's first size may be 1 by chance."""
        with torch.no_grad():
            one, two = (list(arrays_of(self.source(self.image.repeat_interleave(n, 0)))) for n in (1, 2))
        pairs = enumerate(zip(one, two, strict=True))
        return [position for position, (a, b) in pairs if a.ndim and (a.shape[0], b.shape[0]) == (1, 2)]

    def adapt(self, recipe: str, **changes: Any) -> nn.Module:
        """Adapt the source. A warning of the library's names what it cannot do, and is kept as a note."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            adapted = sita.adapt(self.source, sita.RECIPES[recipe], **changes)
        for warning in caught:
            if issubclass(warning.category, sita.SitaWarning):
                self.add_note(str(warning.message))
        return adapted

    def add_note(self, text: str) -> None:
        """Say once what a reader of the verdict should know."""
        if text not in self.outcome.note:
            self.outcome.note = f"{self.outcome.note}; {text}" if self.outcome.note else text

    def double_source(self) -> nn.Module | None:
        """Return the source in float64, or None where it cannot run so."""
        precise = copy.deepcopy(self.source).double()
        try:
            self.call(precise, self.image.double())
        except RuntimeError as error:
            self.add_note(f"float32 only: the source does not run in float64 ({str(error).splitlines()[0]})")
            return None
        return precise

    def check_source_prior(self) -> None:
        """λ = 1 is the source model, with blending and without it."""
        self.compare("λ = 1", self.call(self.adapt("augbn", priors=1.0), self.image), self.plain, _SAME)
        effect = 0.0
        if self.precise is not None:
            adapted, image = self.adapt("augbn", priors=NEARER_ONE).double(), self.image.double()
            self.compare("λ = 1 − 1e-13", self.call(adapted, image), self.call(self.precise, image), _NEARLY)
            effect = self.outcome.errors["λ = 1 − 1e-13"] * (1 - ALMOST_ONE) / (1 - NEARER_ONE)
        adapted = self.adapt("augbn", priors=ALMOST_ONE)
        self.compare("λ = 1 − 1e-7", self.call(adapted, self.image), self.plain, self.tolerance + 2 * effect)

    def check_blend(self) -> None:
        """λ = 0.8 is the reference; batch mates make no difference; every normalization takes part."""
        adapted = self.adapt("augbn", priors=PRIOR)
        description = sita.describe(adapted)
        self.outcome.layers = len(description.adapted)
        loose = self.call(adapted, self.image)
        left = self.found.names - set(description.adapted)
        missing = {name for name in left - set(description.skipped) if name not in self.outcome.note}
        if missing:
            raise Wrong(f"{len(missing)} BatchNorm layers ran and are not adapted: {', '.join(sorted(missing)[:4])}")
        if left:
            self.add_note(f"{len(left)} BatchNorm layers are skipped, and named")
        source, image, mate, tight = self.source, self.image, self.mate, self.tolerance
        if self.precise is not None:
            source, image, mate, tight = self.precise, image.double(), mate.double(), _TIGHT
            adapted = adapted.double()
        reference = self.reference(source, left)
        exact = self.call(adapted, image)
        change = self.outcome.errors["what adaptation changes"] = distance(reference, self.plain)
        if change < 10 * tight:
            self.add_note(f"adaptation changes {change:.0e} of the largest output, too little to compare")
        if distance(exact, reference) > tight:
            tight = max(tight, _ROUNDING * self.sensitivity(source, left, reference))
        self.compare(f"λ = {PRIOR}", exact, reference, tight)
        self.compare(f"λ = {PRIOR}, float32", loose, reference, 10 * self.tolerance)
        together = [each[1:] for each in self.call(adapted, torch.cat([mate, image]))]
        self.compare("batch mates", together, exact, tight)

    def reference(self, source: nn.Module, skipped: set[str], scale: float = 1.0) -> list[torch.Tensor]:
        """Return the arrays of the reference's answer."""
        image = self.image.to(next(source.parameters()).dtype)
        return self.with_rows(augbn(source, image * scale, PRIOR, self.found, skipped))

    def sensitivity(self, source: nn.Module, skipped: set[str], reference: list[torch.Tensor]) -> float:
        """Return how far the reference itself moves when its image changes by a few roundings.

        Few networks need this: untrained ones that magnify whatever comes, or choose some of many candidates.
        """
        scale = 1 + 4 * torch.finfo(next(source.parameters()).dtype).eps
        moved = distance(self.reference(source, skipped, scale), reference)
        self.add_note(f"rounding of the image alone moves the reference by {moved:.0e} of the largest output")
        return moved

    def check_vote(self) -> None:
        """A vote has the shapes and types of the source's output; few priors, to save time."""
        try:
            voted = self.call(self.adapt("ops", priors=(0.5, 1.0)), self.image)
        except OutputError as error:
            self.add_note(f"no vote: {str(error).partition(' Try:')[0]}")
            return
        shapes = [[(tuple(a.shape), a.dtype) for a in each] for each in (voted, self.plain)]
        if shapes[0] != shapes[1]:
            raise Wrong(f"ops returns {shapes[0]}, the source model {shapes[1]}.")
        if not all(bool(array.isfinite().all()) for array in voted):
            raise Wrong("ops returns values that are not finite.")

    def compare(self, what: str, answer: list[torch.Tensor], expected: list[torch.Tensor], tolerance: float) -> None:
        """Raise where an answer differs, relative to the largest output, by more than the tolerance."""
        self.outcome.compare(what, distance(answer, expected), tolerance)


def facts_of(model: nn.Module) -> list[Any]:
    """Return the training flag, the attributes and the hooks of every module."""
    return [
        (name, module.training, sorted(vars(module)), len(module._forward_hooks), len(module._forward_pre_hooks))
        for name, module in model.named_modules()
    ]


def same_bits(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> bool:
    """Return whether two states have the same tensors, to the last bit."""
    return a.keys() == b.keys() and all(
        a[name].dtype == b[name].dtype and torch.equal(a[name].nan_to_num(), b[name].nan_to_num()) for name in a
    )


def arrays_of(output: Any) -> Iterator[torch.Tensor]:
    """Yield the floating-point tensors of an output, in order."""
    if isinstance(output, torch.Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, Mapping):
        for part in output.values():
            yield from arrays_of(part)
    elif isinstance(output, list | tuple):
        for part in output:
            yield from arrays_of(part)
    elif dataclasses.is_dataclass(output):
        for part in dataclasses.fields(output):
            yield from arrays_of(getattr(output, part.name))


def distance(answer: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """Return the largest difference of two answers, each array's relative to its largest value; inf for others."""
    if [each.shape for each in answer] != [each.shape for each in expected]:
        return float("inf")
    worst = 0.0
    for a, b in zip(answer, expected, strict=True):
        if b.numel():
            size, gap = float(b.double().abs().max()), float((a.double() - b.double()).abs().max())
            if math.isnan(gap):
                return gap
            worst = max(worst, gap / size if size else gap)
    return worst
