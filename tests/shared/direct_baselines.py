"""TENT, MEMO, MixNorm and TTT on the small network, from their definitions: torch in float64, layer by layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from small_network import CONVOLUTIONS, EPSILONS, make_weights
from torch.nn import functional

from sita_adapters.inputs import ENCODINGS
from sita_workbench.baselines.settings import MemoSettings, MixNormSettings, TentSettings, TTTSettings
from sita_workbench.baselines.views import augmix_views, decode, encode, random_of, rotated_views, spatial_views

INPUTS = ENCODINGS["imagenet"]
Normalize = Callable[[str, Any], tuple[Any, Any]]


def weights() -> dict[str, Any]:
    return {name: torch.from_numpy(value.astype(np.float64)) for name, value in make_weights().items()}


def features(values: dict[str, Any], x: Any, statistics: Normalize) -> Any:
    """What bn3 returns."""

    def norm(name: str, x: Any) -> Any:
        mean, variance = (each.reshape(1, -1, 1, 1) for each in statistics(name, x))
        gamma, beta = (values[f"{name}/{part}"].reshape(1, -1, 1, 1) for part in ("gamma", "beta"))
        return gamma * (x - mean) / (variance + EPSILONS[name]).sqrt() + beta

    def convolve(name: str, x: Any) -> Any:
        return functional.conv2d(x, values[f"{name}/kernel"].permute(3, 2, 0, 1), padding=CONVOLUTIONS[name][0] // 2)

    x = torch.relu(norm("bn1", convolve("conv1", x)))
    x = torch.relu(norm("bn2", convolve("conv2", x)) + x)
    return norm("bn3", convolve("conv3", x))


def logits(values: dict[str, Any], x: Any, statistics: Normalize) -> Any:
    pooled = torch.relu(features(values, x, statistics)).mean((2, 3))
    return pooled @ values["head/kernel"] + values["head/bias"]


def blended(values: dict[str, Any], share: float, correction: int) -> Normalize:
    """Statistics of all rows, without a gradient, mixed with the source's."""

    def statistics(name: str, x: Any) -> tuple[Any, Any]:
        own = x.detach().mean((0, 2, 3)), x.detach().var((0, 2, 3), correction=correction)
        source = values[f"{name}/mean"], values[f"{name}/variance"]
        return tuple((1 - share) * s + share * t for s, t in zip(source, own, strict=True))

    return statistics


def trainable(values: dict[str, Any], *parts: str) -> list[Any]:
    return [each.requires_grad_() for name, each in values.items() if name.endswith(parts)]


def channels_first(x: np.ndarray) -> Any:
    return torch.from_numpy(x).double().movedim(-1, 1)


def direct_tent(image: np.ndarray, settings: TentSettings) -> Any:
    values, x = weights(), channels_first(image[None])

    def own(name: str, x: Any) -> tuple[Any, Any]:
        return x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)

    optimizer = torch.optim.Adam(trainable(values, "gamma", "beta"), lr=settings.lr, betas=settings.betas)
    for _ in range(settings.steps):
        optimizer.zero_grad()
        torch.distributions.Categorical(logits=logits(values, x, own)).entropy().mean().backward()
        optimizer.step()
    return logits(values, x, own)


def direct_memo(image: np.ndarray, settings: MemoSettings) -> Any:
    values = weights()
    kinds = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}
    trained = trainable(values, "kernel", "bias", "gamma", "beta")
    optimizer = kinds[settings.optimizer](trained, lr=settings.lr, weight_decay=settings.weight_decay)
    statistics = blended(values, 0 if settings.prior is None else 1 / (settings.prior + 1), 1)
    for step in range(settings.steps):
        views = encode(augmix_views(decode(image, INPUTS), settings.views, step), INPUTS)
        mean = logits(values, channels_first(views), statistics).softmax(1).mean(0)
        optimizer.zero_grad()
        (-(mean * mean.log()).sum()).backward()
        optimizer.step()
    return logits(values, channels_first(image[None]), statistics)


def direct_mixnorm(image: np.ndarray, settings: MixNormSettings) -> Any:
    values, (m, tau) = weights(), (settings.m, settings.tau)
    views = spatial_views(decode(image, INPUTS), settings.views, 0, settings.scale, settings.ratio)
    rows = np.concatenate([image[None], encode(views, INPUTS)])
    return logits(values, channels_first(rows), blended(values, m + (1 - m) * tau, 0))[:1]


def direct_ttt(image: np.ndarray, settings: TTTSettings, head: tuple[np.ndarray, np.ndarray], momentum: float) -> Any:
    """The head takes the mean over positions of what bn3 returns; all before is shared."""
    values, pixels = weights(), decode(image, INPUTS)
    kernel, bias = (torch.from_numpy(each.astype(np.float64)).requires_grad_() for each in head)
    trained = trainable(values, "conv1/kernel", "conv2/kernel", "conv3/kernel", "gamma", "beta")
    optimizer, random = torch.optim.SGD([*trained, kernel, bias], lr=settings.lr), random_of(pixels, 0)

    def batch_statistics(name: str, x: Any) -> tuple[Any, Any]:
        moments = x.detach().mean((0, 2, 3)), x.detach().var((0, 2, 3), correction=1)
        for key, own in zip(("mean", "variance"), moments, strict=True):
            values[f"{name}/{key}"] = (1 - momentum) * values[f"{name}/{key}"] + momentum * own
        return x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)

    for _ in range(settings.steps):
        views, turns = rotated_views(pixels, settings.batch, random)
        pooled = features(values, channels_first(encode(views, INPUTS)), batch_statistics).mean((2, 3))
        optimizer.zero_grad()
        functional.cross_entropy(pooled @ kernel + bias, torch.from_numpy(turns)).backward()
        optimizer.step()
    return logits(values, channels_first(image[None]), blended(values, 0.0, 0))


DIRECT: dict[str, Any] = {"tent": direct_tent, "memo": direct_memo, "mixnorm": direct_mixnorm}
