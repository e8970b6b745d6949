"""An independent reference of a whole call, in float64: rows, blend and vote, and how much rounding may change them.

It knows the method, and nothing of the library: every BatchNorm layer of a network of its own computes the blend
directly from all the rows of one image. Rounding is judged by running the reference again with its inputs shaken by
the precision of the network that is tested.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import random_networks
import reference
import torch
from random_networks import Spec
from torch import nn

ROOM = 12
"""Differences up to so many times what a shake makes are rounding: E[x²] − E[x]² alone costs up to 60."""

SQUARE = (
    lambda x: x,
    *(functools.partial(torch.rot90, k=k, dims=(-2, -1)) for k in (1, 3)),
    lambda x: x.transpose(-2, -1),
    lambda x: x.flip(-2),
    lambda x: x.flip(-1),
    lambda x: x.flip((-2, -1)),
    lambda x: torch.rot90(x, 2, (-2, -1)).transpose(-2, -1),
)
RECTANGLE = (SQUARE[0], *SQUARE[4:7])


@dataclass(frozen=True)
class Method:
    """A recipe, by its numbers."""

    recipe: str
    priors: tuple[float, ...]
    views: int
    top_k: int = 3

    def rows(self, count: int) -> tuple[list[reference.Row], list[int]]:
        """Return the rows of an image that has so many views, and those that answer."""
        return reference.rows_of("augbn" if self.recipe == "bn" else self.recipe, count, self.priors)


def flatten(output: Any, path: str = "") -> dict[str, Any]:
    """Return everything that is in an output, by its place."""
    if isinstance(output, dict):
        return {k: v for key, part in output.items() for k, v in flatten(part, f"{path}.{key}").items()}
    if isinstance(output, list | tuple):
        return {k: v for place, part in enumerate(output) for k, v in flatten(part, f"{path}[{place}]").items()}
    return {path: output}


@dataclass
class Rows:
    """The outputs of an image's candidates by their place, (P, …), and the largest number on the way to them."""

    outputs: dict[str, Any]
    largest: float
    calls: list[reference.LayerCall]
    """What the row that follows a rule measured."""
    offset: float

    def weight(self) -> float:
        """The weight of the adapted row of a mix."""
        scores = next(iter(self.outputs.values())).movedim(1, -1).numpy()
        return reference.mix_weights(scores, [None, reference.image_shift(self.calls)], "logits")[1]


@dataclass
class _Blend:
    """Stands for the forward of a BatchNorm layer."""

    layer: nn.Module
    rows: list[reference.Row]
    shake: _Shake
    epsilon: float
    frozen: bool

    def __call__(self, input: torch.Tensor) -> torch.Tensor:
        x = self.shake(input)
        count = len(self.rows)
        weights = x.new_zeros(count, count)
        for r, row in enumerate(self.rows):
            for q, weight in row.weights.items():
                weights[r, q] = weight
        parts = x.unflatten(0, (count, -1)).movedim(2, 1).flatten(2)  # row, channel, everything else
        means = parts.mean(2)
        variances = (parts - means[:, :, None]).square().mean(2)
        m_t = weights @ means
        v_t = (weights[:, :, None] * (variances[None] + (means[None] - m_t[:, None]).square())).sum(1)
        m_s, v_s = (getattr(self.layer, name).reshape(-1) for name in ("running_mean", "running_var"))
        self.shake.see(variances * parts.shape[2])  # a sum of squares that overflows is answered by NaN
        listed = [self.prior(row, m_t[r], v_t[r], m_s, v_s, parts.shape[2]) for r, row in enumerate(self.rows)]
        priors = x.new_tensor(listed)[:, None]
        m, v = (torch.where(priors == 1, s, priors * s + (1 - priors) * t) for s, t in ((m_s, m_t), (v_s, v_t)))
        m = m * (1 + self.shake.relative * torch.randn_like(m))
        z = (parts - m[:, :, None]) / (v + self.epsilon).sqrt()[:, :, None]
        self.shake.offset = max(self.shake.offset, float((m.abs() / (v + self.epsilon).sqrt()).max()))
        if (
            self.frozen and self.shake.relative
        ):  # a layer that stays as it is rounds its input, of which the source's mean is a part
            z = z + self.shake.relative * torch.randn_like(z) * (m_s / (v_s + self.epsilon).sqrt())[None, :, None]
        if self.layer.weight is not None:
            gamma, beta = (each.reshape(1, -1, 1) for each in (self.layer.weight, self.layer.bias))
            z = z * gamma + beta
        out = z.unflatten(2, (-1, *x.shape[2:])).movedim(1, 2).flatten(0, 1)
        return self.shake.see(out)

    def prior(  # noqa: PLR0917
        self, row: reference.Row, m: torch.Tensor, v: torch.Tensor, m_s: torch.Tensor, v_s: torch.Tensor, count: int
    ) -> float:
        if not isinstance(row.prior, reference.Rule):
            return row.prior
        ratio = (v + self.epsilon) / (v_s + self.epsilon)
        d = float((ratio + (m - m_s).square() / (v_s + self.epsilon) - ratio.log() - 1).mean() / 2)
        self.shake.see(torch.tensor([d * d, float(ratio.max())]))
        area = reference.first_area([self.shake.calls], count)
        self.shake.calls.append(reference.LayerCall(d, area, row.prior.priors(d, area)[0]))
        return self.shake.calls[-1].prior


@dataclass
class _Shake:
    relative: float
    absolute: float
    largest: float = field(default=0.0)
    offset: float = field(default=0.0)
    """The largest distance of a row's mean from 0, in its standard deviations."""
    calls: list[reference.LayerCall] = field(default_factory=list)

    def see(self, x: torch.Tensor) -> torch.Tensor:
        self.largest = max(self.largest, float(x.abs().max()))
        return x

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.see(x)
        if not self.relative:
            return x
        return x * (1 + self.relative * torch.randn_like(x)) + self.absolute * torch.randn_like(x)


def run_rows(  # noqa: PLR0917
    spec: Spec, dtype: torch.dtype, method: Method, sample: Sequence[torch.Tensor], shaken: bool, seed: int
) -> Rows:
    """Return the candidates of one image (1, …), which other arguments may go along with."""
    images = sample[0]
    square = images.shape[-1] == images.shape[-2]
    views = (SQUARE if square else RECTANGLE)[: 1 + method.views]
    rows, answers = method.rows(len(views) - 1)
    model, made = random_networks.build(spec, dtype)
    kind = torch.finfo(dtype)
    shake = _Shake(kind.eps if shaken else 0.0, kind.smallest_normal * kind.eps)
    for part in made:
        part.double()
        for module in part.modules():
            if hasattr(module, "running_mean"):
                frozen = isinstance(module, random_networks.Frozen)
                module.forward = _Blend(module, rows, shake, float(getattr(module, "eps", 1e-4)), frozen)  # type: ignore[assignment]
            elif isinstance(module, nn.Conv2d | nn.Linear):
                module.register_forward_pre_hook(lambda _, args: (shake(args[0]),))

    def expand(argument: torch.Tensor) -> torch.Tensor:
        moves = argument.ndim > 2 and argument.shape[-2:] == images.shape[-2:]
        precise = argument.double() if argument.is_floating_point() else argument
        return torch.cat([views[row.view](precise) if moves else precise for row in rows])

    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        outputs = flatten(model(*map(expand, sample)))
    kept = {}
    for path, value in outputs.items():
        if not isinstance(value, torch.Tensor) or (spec.output, path) in random_networks.CONSTANT:
            kept[path] = value
        elif (spec.output, path) in random_networks.TURNED:
            kept[path] = value.movedim(1, 0)[answers]
        else:
            kept[path] = value[answers]
    return Rows(kept, shake.largest, shake.calls, shake.offset)


@dataclass
class Expected:
    """What one image's answer must be at a place of the output, where it is certain; else what it is between."""

    value: torch.Tensor
    certain: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor
    tolerance: float

    def differs(self, answer: torch.Tensor) -> float:
        """Return the largest difference, in tolerances."""
        answer = answer.double()
        far = torch.where(
            self.certain, (answer - self.value).abs(), torch.maximum(self.low - answer, answer - self.high)
        )
        if answer.isnan().any() and not self.value.isnan().any():
            return math.inf
        return float(far.clamp(min=0).nan_to_num(nan=0.0, posinf=math.inf).max()) / self.tolerance


def expect(spec: Spec, dtype: torch.dtype, method: Method, sample: Sequence[torch.Tensor]) -> dict[str, Any] | None:
    """Return what must be at every place of one image's answer; None where that overflows or cancels."""
    exact = run_rows(spec, dtype, method, sample, False, 0)
    precision = torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    if not exact.largest < torch.finfo(dtype).max / 64 or exact.offset * precision > 1e-2:  # x · scale − m · scale
        return None
    moved_rows = [run_rows(spec, dtype, method, sample, True, seed) for seed in (1, 2)]
    if method.recipe == "auto":
        return _expect_mix(spec, dtype, exact, moved_rows)
    shaken = [each.outputs for each in moved_rows]
    epsilon = torch.finfo(dtype).eps
    scores_at = next(iter(exact.outputs))  # every output here has its scores first
    scores = exact.outputs[scores_at]
    votes = _Votes(scores, [each[scores_at] for each in shaken], method.top_k, epsilon)
    expected: dict[str, Any] = {}
    for path, value in exact.outputs.items():
        if not isinstance(value, torch.Tensor) or (spec.output, path) in random_networks.CONSTANT:
            expected[path] = value
            continue
        precise = value.double()
        moved = max(float((each[path].double() - precise).abs().max()) for each in shaken)
        tolerance = ROOM * moved + 4 * epsilon * float(precise.abs().max()) + torch.finfo(dtype).smallest_normal
        if not value.is_floating_point():
            answer, certain = precise[votes.first], votes.first_is_clear & votes.labels_are_clear[votes.first]
            tolerance = 1e-3
        elif path in (scores_at, ".more[0].same"):  # the scores, once more
            answer, certain = votes.decide()
        else:
            answer, certain = precise[votes.first], torch.tensor(votes.first_is_clear)
        expected[path] = Expected(answer, certain, precise.amin(0), precise.amax(0), tolerance)
    return expected


def _expect_mix(spec: Spec, dtype: torch.dtype, exact: Rows, shaken: Sequence[Rows]) -> dict[str, Any]:
    """A convex combination of the two rows; next to integers, the row with the larger weight."""
    weight, others = exact.weight(), [each.weight() for each in shaken]
    room = ROOM * max(abs(weight - other) for other in others) + 8 * torch.finfo(dtype).eps
    arrays = [value for value in exact.outputs.values() if isinstance(value, torch.Tensor)]
    selects = any(not value.is_floating_point() for value in arrays)
    expected: dict[str, Any] = {}
    for path, value in exact.outputs.items():
        if not isinstance(value, torch.Tensor) or (spec.output, path) in random_networks.CONSTANT:
            expected[path] = value
            continue
        source, adapted = value.double()
        answer = (adapted if weight > 0.5 else source) if selects else (1 - weight) * source + weight * adapted
        moved = max(float((each.outputs[path].double() - value.double()).abs().max()) for each in shaken)
        tolerance = ROOM * moved + room * float((adapted - source).abs().max())
        tolerance += 4 * torch.finfo(dtype).eps * float(value.abs().max()) + torch.finfo(dtype).smallest_normal
        certain = torch.tensor(not selects or abs(weight - 0.5) > room)
        if not value.is_floating_point():  # labels, which rounding may change
            certain, tolerance = torch.tensor(False), 1e-3
        expected[path] = Expected(answer, certain, value.double().amin(0), value.double().amax(0), tolerance)
    return expected


class _Votes:
    """The vote on scores (P, K, …), and where it hangs on no more than rounding."""

    def __init__(self, scores: torch.Tensor, shaken: list[torch.Tensor], top_k: int, epsilon: float) -> None:
        self.scores, self.top_k = scores, top_k
        self.entropies = _entropies(scores)  # (P, …)
        room = ROOM * max(float((_entropies(each) - self.entropies).abs().max()) for each in shaken) + 64 * epsilon
        moved = ROOM * max(float((each - scores).abs().max()) for each in shaken) + epsilon * float(scores.abs().max())
        best, second = scores.topk(2, dim=1).values.unbind(1)
        self.labels_are_clear = best - second > moved  # (P, …)
        gaps = self.entropies.sort(0).values.diff(dim=0)
        self.order_is_clear = (gaps > room).all(0)
        means = self.entropies.reshape(len(scores), -1).mean(1)
        self.first = int(means.argmin())
        self.first_is_clear = len(means) == 1 or bool(means.sort().values.diff()[0] > room)

    def decide(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the answer (K, …), and at which positions it is certain."""
        if len(self.scores) == 1:
            return self.scores[0], torch.tensor(True)
        pixels = self.scores.flatten(2) if self.scores.ndim > 2 else self.scores[:, :, None]
        votes = [reference.vote(pixel, self.top_k) for pixel in pixels.numpy().transpose(2, 0, 1)]
        answer = torch.from_numpy(np.stack(votes, axis=1)).reshape(self.scores.shape[1:])
        return answer, (self.order_is_clear & self.labels_are_clear.all(0)).expand(self.scores.shape[1:])


def _entropies(scores: torch.Tensor) -> torch.Tensor:
    logarithms = scores.log_softmax(1)
    return -(logarithms.exp() * logarithms.clamp(min=-1e4)).sum(1)
