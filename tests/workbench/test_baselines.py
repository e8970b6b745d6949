"""TENT and MEMO against straightforward versions of both, and what they must leave alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nets import CLASSES, dense, images, small
from torch import nn

import sita_adapters as sita
from sita_adapters.errors import InputError, ModelError, OutputError
from sita_workbench.baselines import BASELINES, Memo, Tent, draw_views
from sita_workbench.models.loaded import LoadedModel
from sita_workbench.networks.cifar_resnet import encode, load_cifar_resnet

EVERY = pytest.mark.parametrize("name", list(BASELINES))


def entropy(scores: torch.Tensor) -> torch.Tensor:
    return torch.distributions.Categorical(logits=scores.movedim(1, -1)).entropy()


def direct_tent(model: nn.Module, image: torch.Tensor, steps: int = 5, lr: float = 1e-3) -> torch.Tensor:
    """TENT as one would write it down: a whole copy, its BatchNorms in training mode, the plain Adam."""
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


def direct_memo(model: nn.Module, image: torch.Tensor, views: torch.Tensor, lr: float = 5e-3) -> torch.Tensor:
    """MEMO as one would write it down: a whole copy, the mean of probabilities, the plain SGD."""
    model = copy.deepcopy(model).requires_grad_(True)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    mean = model(views).softmax(1).mean(0)
    (-(mean * mean.log()).sum()).backward()
    optimizer.step()
    return model(image).detach()


def state(model: nn.Module) -> list[Any]:
    """All that a call must leave as it is."""
    return [
        {name: tensor.clone() for name, tensor in model.state_dict().items()},
        [(name, id(p), p.data_ptr(), p.requires_grad, p.grad) for name, p in model.named_parameters()],
        [
            (name, id(m), m.training, list(m._forward_hooks), list(m._forward_pre_hooks))
            for name, m in model.named_modules()
        ],
    ]


def assert_same_state(model: nn.Module, before: list[Any]) -> None:
    tensors, *rest = state(model)
    assert rest == before[1:]
    assert tensors.keys() == before[0].keys()
    assert all(torch.equal(tensor, before[0][name]) for name, tensor in tensors.items())


@pytest.mark.parametrize(
    ("make", "steps", "lr"),
    [(small, 5, 1e-3), (lambda: small("TokenNet"), 2, 1e-2), (dense, 2, 1e-2)],
    ids=["classes", "tokens", "pixels"],
)
def test_tent_equals_the_direct_version(make: Callable[[], nn.Module], steps: int, lr: float) -> None:
    model, batch = make(), images(3, 3, 16, 16)
    expected = torch.cat([direct_tent(model, image[None], steps, lr) for image in batch])
    given = Tent(model, steps=steps, lr=lr)(batch)
    assert (expected - direct_tent(model, batch[:1], 0)).abs().max() > 1e-2  # the steps do something
    torch.testing.assert_close(given, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("lr", [5e-3, 0.1])
def test_memo_equals_the_direct_version(lr: float) -> None:
    model, batch = small(), images(3, 3, 16, 16)
    expected = torch.cat([direct_memo(model, image[None], draw_views(image[None], 4, 7), lr) for image in batch])
    given = Memo(model, views=4, lr=lr, seed=7)(batch)
    assert (expected - model(batch)).abs().max() > 1e-3
    torch.testing.assert_close(given, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [small, dense], ids=["classes", "pixels"])
def test_tent_starts_at_ptn_and_each_step_lowers_the_entropy(make: Callable[[], nn.Module]) -> None:
    model, batch = make(), images(3, 3, 16, 16)
    answers = [Tent(model, steps=steps)(batch) for steps in range(6)]
    torch.testing.assert_close(answers[0], sita.adapt(model, "ptn")(batch).detach(), rtol=1e-4, atol=1e-5)
    entropies = torch.stack([entropy(answer).reshape(3, -1).mean(1) for answer in answers])
    assert (entropies.diff(dim=0) < 0).all()


@EVERY
def test_images_of_a_batch_are_independent_and_nothing_is_kept(name: str) -> None:
    baseline, batch = BASELINES[name](small()), images(4, 3, 16, 16)
    together = baseline(batch)
    assert together.shape == (4, CLASSES)
    for index in (2, 0, 3, 1):
        assert torch.equal(baseline(batch[index : index + 1]), together[index : index + 1])
    assert torch.equal(BASELINES[name](small())(batch), together)


@EVERY
@pytest.mark.parametrize("outer", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
def test_runs_where_gradients_are_off(name: str, outer: Callable[[], Any]) -> None:
    model, batch = small(), images(2, 3, 16, 16)
    expected = BASELINES[name](model)(batch)
    assert not expected.requires_grad
    with outer():
        assert torch.equal(BASELINES[name](model)(batch.clone()), expected)
        assert not torch.is_grad_enabled()


@EVERY
@pytest.mark.parametrize("training", [False, True])
def test_the_model_stays_as_it_was(name: str, training: bool) -> None:
    model = small().train(training)
    model.stem.requires_grad_(False)
    model.bn1.register_forward_hook(lambda *_: None)
    before = state(model)
    BASELINES[name](model)(images(2, 3, 16, 16))
    assert_same_state(model, before)


def test_a_loaded_model_runs_them() -> None:
    model, batch = small(), images(2, 3, 16, 16)
    for make in BASELINES.values():
        baseline = make(model)
        scores = LoadedModel("small", model, None).run(baseline, batch.permute(0, 2, 3, 1).numpy())
        np.testing.assert_array_equal(scores, baseline(batch).double().numpy())


def test_views_are_drawn_from_the_image_and_the_seed() -> None:
    first = images(1, 3, 16, 24)
    views = draw_views(first, 8, 0)
    assert views.shape == (8, 3, 16, 24)
    torch.testing.assert_close(views, draw_views(first.contiguous(memory_format=torch.channels_last), 8, 0))
    assert len({view.numpy().tobytes() for view in (*views, first[0])}) == 9
    assert not torch.equal(views, draw_views(first, 8, 1))
    assert not torch.allclose(draw_views(-first, 8, 0), -views)  # other content, other draws
    assert (views.amin((0, 2, 3)) >= first.amin((0, 2, 3))).all()
    assert (views.amax((0, 2, 3)) <= first.amax((0, 2, 3))).all()
    assert draw_views(torch.ones(1, 3, 1, 1), 2, 0).eq(1).all()


def test_models_that_they_cannot_train_are_refused() -> None:
    with pytest.raises(ModelError, match="γ and β"):
        Tent(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, affine=False)))
    for make in BASELINES.values():
        with pytest.raises(ModelError, match="adapted"):
            make(sita.adapt(small()))
    with pytest.raises(OutputError, match=r"2 classes.*\(1, 1, 16, 16\)"):
        Tent(dense(classes=1))(images(1, 3, 16, 16))
    with pytest.raises(OutputError, match="segmentation"):
        Memo(dense())(images(1, 3, 16, 16))
    pooled = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(8), nn.Flatten())
    with pytest.raises(InputError, match="one value per channel"):
        Tent(pooled)(images(1, 3, 16, 16))


def test_memo_needs_no_batchnorm() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)
    )
    image = images(1, 3, 16, 16)
    expected = direct_memo(plain, image, draw_views(image, 8, 0))
    torch.testing.assert_close(Memo(plain)(image), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.real
def test_trained_network_on_corrupted_images(data: Path) -> None:
    """Both as their direct versions on real images; TENT is surer than PTN, whether right or wrong."""
    model = load_cifar_resnet(20, data / "weights" / "cifar10_resnet20.safetensors")
    fog = np.load(data / "cifar10c" / "fog.npy", mmap_mode="r")
    batch = encode(fog[-200::80].copy())
    tent, memo = Tent(model)(batch), Memo(model)(batch)
    for place, image in enumerate(batch.split(1)):
        torch.testing.assert_close(tent[place, None], direct_tent(model, image), rtol=1e-3, atol=1e-3)
        expected = direct_memo(model, image, draw_views(image, 8, 0))
        torch.testing.assert_close(memo[place, None], expected, rtol=1e-3, atol=1e-3)
    assert (entropy(tent) < entropy(Tent(model, steps=0)(batch))).all()
