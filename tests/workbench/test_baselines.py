"""TENT, MEMO and MixNorm against straightforward versions of all three, and what they must leave alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from nets import CLASSES, dense, images, small
from torch import nn

import sita_adapters as sita
from sita_adapters.errors import InputError, ModelError, OutputError
from sita_adapters.inputs import ENCODINGS
from sita_workbench.baselines import BASELINES, Memo, MixNorm, Tent
from sita_workbench.baselines.settings import MemoSettings, MixNormSettings, TentSettings
from sita_workbench.baselines.views import augmix_views, decode, encode, spatial_views
from sita_workbench.models.loaded import LoadedModel

EVERY = pytest.mark.parametrize("name", ["tent", "memo", "mixnorm"])
INPUTS = ENCODINGS["imagenet"]


def prepare(name: str, model: nn.Module) -> Any:
    return BASELINES[name].prepare(LoadedModel("small", model, INPUTS))


def pictures(count: int, size: int = 16) -> tuple[np.ndarray, torch.Tensor]:
    """Random RGB bytes, and the same encoded."""
    pixels = np.random.default_rng(3).integers(256, size=(count, size, size, 3), dtype=np.uint8)
    return pixels, torch.from_numpy(encode(pixels, INPUTS)).movedim(-1, 1).contiguous()


def encoded(views: np.ndarray) -> torch.Tensor:
    mean, std = np.array(INPUTS.mean), np.array(INPUTS.std)
    return torch.from_numpy(((views - mean) / std).astype(np.float32)).movedim(-1, 1)


def entropy(scores: torch.Tensor) -> torch.Tensor:
    return torch.distributions.Categorical(logits=scores.movedim(1, -1)).entropy()


class DirectNorm(nn.Module):
    """(1 − share) of the source's statistics, and `share` of those of everything that comes in."""

    def __init__(self, layer: Any, share: float, biased: bool) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.source, self.eps = (layer.running_mean.clone(), layer.running_var.clone()), layer.eps
        self.share, self.biased = share, biased

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values = x.detach().transpose(0, 1).reshape(x.shape[1], -1)
        count = values.shape[1]
        mean = values.sum(1) / count
        variance = ((values - mean[:, None]) ** 2).sum(1) / (count if self.biased else count - 1)
        mean = (1 - self.share) * self.source[0] + self.share * mean
        variance = (1 - self.share) * self.source[1] + self.share * variance
        shape = (-1, *[1] * (x.ndim - 2))
        normal = (x - mean.view(shape)) / (variance.view(shape) + self.eps).sqrt()
        return normal * self.weight.view(shape) + self.bias.view(shape)


def with_direct_norms(model: nn.Module, share: float, *, biased: bool) -> nn.Module:
    model = copy.deepcopy(model).requires_grad_(True)
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.modules.batchnorm._BatchNorm):
                setattr(parent, name, DirectNorm(child, share, biased))
    return model


def direct_tent(model: nn.Module, image: torch.Tensor, steps: int = 5, lr: float = 1e-3) -> torch.Tensor:
    model = copy.deepcopy(model).requires_grad_(False)
    affine = []
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.train()
            module.track_running_stats, module.running_mean, module.running_var = False, None, None
            affine += [module.weight.requires_grad_(), module.bias.requires_grad_()]
    optimizer = torch.optim.Adam(affine, lr=lr, fused=False)
    for _ in range(steps):
        optimizer.zero_grad()
        entropy(model(image)).mean().backward()
        optimizer.step()
    return model(image).detach()


def direct_memo(model: nn.Module, views: torch.Tensor, settings: MemoSettings) -> nn.Module:
    """The model after one step, written out: SGD, and the first step of AdamW."""
    model = with_direct_norms(model, 0.0 if settings.prior is None else 1 / (settings.prior + 1), biased=False)
    mean = model(views).softmax(1).mean(0)
    loss = -(mean * mean.log()).sum()
    named = dict(model.named_parameters())
    for parameter, gradient in zip(named.values(), torch.autograd.grad(loss, list(named.values())), strict=True):
        if settings.optimizer == "sgd":
            parameter.data -= settings.lr * (gradient + settings.weight_decay * parameter.data)
        else:
            parameter.data *= 1 - settings.lr * settings.weight_decay
            parameter.data -= settings.lr * gradient / (gradient.abs() + 1e-8)
    return model


@pytest.mark.parametrize(
    ("make", "steps", "lr"),
    [(small, 5, 1e-3), (lambda: small("TokenNet"), 2, 1e-2), (dense, 2, 1e-2)],
    ids=["classes", "tokens", "pixels"],
)
def test_tent_equals_the_direct_version(make: Callable[[], nn.Module], steps: int, lr: float) -> None:
    model, batch = make(), images(3, 3, 16, 16)
    expected = torch.cat([direct_tent(model, image[None], steps, lr) for image in batch])
    given = Tent(model, settings=TentSettings(steps, lr))(batch)
    assert (expected - direct_tent(model, batch[:1], 0)).abs().max() > 1e-2  # the steps do something
    torch.testing.assert_close(given, expected, rtol=1e-4, atol=2e-5)


def without_batchnorm() -> nn.Module:
    torch.manual_seed(0)
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), *head)


@pytest.mark.parametrize("make", [small, lambda: small("TokenNet"), without_batchnorm])
@pytest.mark.parametrize(
    "settings",
    [
        MemoSettings(views=6, optimizer="sgd", lr=0.1),
        MemoSettings(views=6, optimizer="sgd", lr=0.1, weight_decay=0.1, prior=3),
        MemoSettings(views=6, optimizer="sgd", lr=0.1, prior=None),
        MemoSettings(views=6, optimizer="adamw", lr=0.01, weight_decay=0.5),
    ],
    ids=["sgd", "sgd, decay, N=3", "sgd, source statistics", "adamw"],
)
def test_memo_makes_the_direct_versions_update(make: Callable[[], nn.Module], settings: MemoSettings) -> None:
    model, (pixels, batch) = make().double(), pictures(2)
    memo = Memo(model, INPUTS, settings=settings, seed=7)
    for picture, image in zip(pixels, batch.double()[:, None], strict=True):
        views = encoded(augmix_views(picture, settings.views, 7)).double()
        expected = direct_memo(model, views, settings)
        given = memo(image)
        for (name, updated), trained in zip(expected.named_parameters(), memo.trained, strict=True):
            torch.testing.assert_close(trained, updated, rtol=1e-6, atol=1e-9, msg=name)
        assert max((new - old).abs().max() for new, old in zip(memo.trained, memo.start, strict=True)) > 1e-3
        torch.testing.assert_close(given, expected(image), rtol=1e-6, atol=1e-8)


def test_mixnorms_statistics_equal_those_of_numpy() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm2d(3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 4)).eval()
    norm, head = model[0], model[3]
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    (picture,), image = pictures(1, 24)
    settings = MixNormSettings(views=2, m=0.3, tau=0.1, scale=(0.3, 0.9))
    given = MixNorm(model, INPUTS, settings=settings, seed=5)(image)

    views = spatial_views(picture, 2, 5, settings.scale, settings.ratio)
    x = (np.concatenate([picture[None], views]) / 255 - INPUTS.mean) / INPUTS.std
    source = norm.running_mean.numpy().astype(float), norm.running_var.numpy().astype(float)
    local = x.mean((0, 1, 2)), x.var((0, 1, 2))
    overall = [(1 - 0.1) * s + 0.1 * t for s, t in zip(source, local, strict=True)]
    mean, variance = (0.3 * t + (1 - 0.3) * g for t, g in zip(local, overall, strict=True))
    pooled = ((x[0] - mean) / np.sqrt(variance + norm.eps)).mean((0, 1))
    expected = pooled @ head.weight.detach().numpy().T + head.bias.detach().numpy()
    np.testing.assert_allclose(given.numpy()[0], expected, rtol=1e-5, atol=1e-6)
    assert np.abs(given.numpy() - model(image).detach().numpy()).max() > 1e-2


def test_mixnorm_in_every_layer() -> None:
    model, (pixels, batch) = small(), pictures(2)
    settings = MixNormSettings(views=3, m=0.4, tau=0.2, scale=(0.3, 0.9))
    direct = with_direct_norms(model, 0.4 + 0.6 * 0.2, biased=True)
    for picture, image in zip(pixels, batch[:, None], strict=True):
        views = encoded(spatial_views(picture, 3, 0, settings.scale, settings.ratio) / 255)
        expected = direct(torch.cat([image, views]))[:1]
        torch.testing.assert_close(MixNorm(model, INPUTS, settings=settings)(image), expected, rtol=1e-4, atol=1e-5)


@EVERY
def test_images_of_a_batch_are_independent_and_nothing_is_kept(name: str) -> None:
    baseline, (_, batch) = prepare(name, small()), pictures(4)
    together = baseline(batch)
    assert together.shape == (4, CLASSES)
    for index in (2, 0, 3, 1):
        assert torch.equal(baseline(batch[index : index + 1]), together[index : index + 1])
    assert torch.equal(prepare(name, small())(batch), together)


@EVERY
@pytest.mark.parametrize("outer", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
def test_runs_where_gradients_are_off(name: str, outer: Callable[[], Any]) -> None:
    model, (_, batch) = small(), pictures(2)
    expected = prepare(name, model)(batch)
    assert not expected.requires_grad
    with outer():
        assert torch.equal(prepare(name, model)(batch.clone()), expected)
        assert not torch.is_grad_enabled()


@EVERY
@pytest.mark.parametrize("training", [False, True])
def test_the_model_stays_as_it_was(name: str, training: bool) -> None:
    model = small().train(training)
    model.stem.requires_grad_(False)
    model.bn1.register_forward_hook(lambda *_: None)
    tensors = copy.deepcopy(model.state_dict())

    def state() -> list[Any]:
        parameters = [(id(p), p.data_ptr(), p.requires_grad, p.grad) for p in model.parameters()]
        return parameters + [(m.training, len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]

    before = state()
    prepare(name, model)(pictures(2)[1])
    assert state() == before
    torch.testing.assert_close(dict(model.state_dict()), dict(tensors), rtol=0, atol=0)


def test_the_same_pixels_get_the_same_answer_in_every_encoding() -> None:
    """Views are drawn from the pixels, which are read back from the encoded image."""
    pixels, _ = pictures(1)
    for inputs in ENCODINGS.values():
        x = encode(pixels, inputs)
        np.testing.assert_array_equal(decode(x.astype(float), inputs), pixels)


def test_models_that_they_cannot_run_are_refused() -> None:
    with pytest.raises(ModelError, match="γ and β"):
        Tent(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, affine=False)))
    with pytest.raises(ModelError, match="BatchNorm"):
        MixNorm(without_batchnorm(), INPUTS)
    for name in ("tent", "memo", "mixnorm"):
        with pytest.raises(ModelError, match="adapted"):
            prepare(name, sita.adapt(small()))
    with pytest.raises(OutputError, match=r"2 classes.*\(1, 1, 16, 16\)"):
        Tent(dense(classes=1))(images(1, 3, 16, 16))
    with pytest.raises(OutputError, match="segmentation"):
        Memo(dense(), INPUTS)(images(1, 3, 16, 16))
    pooled = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(8), nn.Flatten())
    for name in ("tent", "memo"):
        with pytest.raises(InputError, match="one value per channel"):
            prepare(name, pooled)(images(1, 3, 16, 16))
    gray = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(InputError, match="RGB"):
        prepare("memo", gray)(images(1, 1, 16, 16))
