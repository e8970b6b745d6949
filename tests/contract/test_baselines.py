"""TENT, MEMO and MixNorm on the small network: in every framework the outputs of a direct computation in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from small_network import CONVOLUTIONS, EPSILONS, images, make_weights

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

from sita_adapters.inputs import ENCODINGS  # noqa: E402
from sita_workbench.baselines import BASELINES  # noqa: E402
from sita_workbench.baselines.settings import MemoSettings, MixNormSettings, TentSettings  # noqa: E402
from sita_workbench.baselines.views import augmix_views, decode, encode, spatial_views  # noqa: E402
from sita_workbench.models.loaded import LoadedModel  # noqa: E402

INPUTS = ENCODINGS["imagenet"]
METHODS = ("tent", "memo", "mixnorm")
Normalize = Callable[[str, Any], tuple[Any, Any]]


def prepare(backend: Any, name: str, settings: Any = None, **options: Any) -> Any:
    prepared = BASELINES[name].prepare(LoadedModel("small", backend.model(**options), INPUTS))
    prepared.settings = settings
    return prepared


def weights() -> dict[str, Any]:
    return {name: torch.from_numpy(value.astype(np.float64)) for name, value in make_weights().items()}


def logits(values: dict[str, Any], x: Any, statistics: Normalize) -> Any:
    """The small network in torch, its layers as functions."""

    def norm(name: str, x: Any) -> Any:
        mean, variance = (each.reshape(1, -1, 1, 1) for each in statistics(name, x))
        gamma, beta = (values[f"{name}/{part}"].reshape(1, -1, 1, 1) for part in ("gamma", "beta"))
        return gamma * (x - mean) / (variance + EPSILONS[name]).sqrt() + beta

    def convolve(name: str, x: Any) -> Any:
        return functional.conv2d(x, values[f"{name}/kernel"].permute(3, 2, 0, 1), padding=CONVOLUTIONS[name][0] // 2)

    x = torch.relu(norm("bn1", convolve("conv1", x)))
    x = torch.relu(norm("bn2", convolve("conv2", x)) + x)
    x = torch.relu(norm("bn3", convolve("conv3", x)))
    return x.mean((2, 3)) @ values["head/kernel"] + values["head/bias"]


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


DIRECT: dict[str, Any] = {"tent": direct_tent, "memo": direct_memo, "mixnorm": direct_mixnorm}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("tent", TentSettings(steps=1, lr=1e-2)),
        ("tent", TentSettings(steps=3, lr=1e-2, betas=(0.8, 0.9))),
        ("memo", MemoSettings(views=4, optimizer="sgd", lr=0.02)),
        ("memo", MemoSettings(views=4, optimizer="sgd", lr=0.02, prior=None)),
        ("memo", MemoSettings(views=4, optimizer="adamw", lr=1e-3, weight_decay=0.1, steps=2)),
        ("mixnorm", MixNormSettings(views=2, m=0.4, tau=0.1, scale=(0.3, 1.0))),
    ],
    ids=["tent", "tent, 3 steps", "memo", "memo, source statistics", "memo, AdamW", "mixnorm"],
)
def test_a_method_equals_its_direct_computation(backend: Any, name: str, settings: Any) -> None:
    batch = images(2)
    expected = torch.cat([DIRECT[name](image, settings) for image in batch]).detach().numpy()
    plain = backend.run(backend.model(), batch)
    assert np.abs(expected - plain).max() > 0.05  # it does something
    given = backend.run(prepare(backend, name, settings), batch)
    np.testing.assert_allclose(given, expected, rtol=0, atol=3e-5)


@pytest.mark.parametrize("name", METHODS)
def test_images_are_independent_and_the_source_is_not_touched(backend: Any, name: str) -> None:
    model, batch = backend.model(), images(3)
    plain, before, values = backend.run(model, batch), backend.fingerprint(model), backend.values(model)
    prepared = BASELINES[name].prepare(LoadedModel("small", model, INPUTS))
    together = backend.run(prepared, batch)
    for index in (2, 0, 1):
        np.testing.assert_array_equal(backend.run(prepared, batch[index : index + 1]), together[index : index + 1])
    assert backend.fingerprint(model) == before
    for value, was in zip(backend.values(model), values, strict=True):
        np.testing.assert_array_equal(value, was)
    np.testing.assert_array_equal(backend.run(model, batch), plain)


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("name", METHODS)
def test_later_changes_to_the_source_are_not_seen(backend: Any, name: str) -> None:
    model, batch = backend.model(), images(1)
    prepared = BASELINES[name].prepare(LoadedModel("small", model, INPUTS))
    backend.change_weights(model)
    given = backend.run(prepared, batch)
    np.testing.assert_array_equal(backend.run(prepare(backend, name), batch), given)
    assert np.abs(given - backend.run(model, batch)).max() > 1e-2
