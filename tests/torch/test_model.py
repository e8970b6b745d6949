"""The adapted model as a PyTorch user handles it: promises 1, 2 and 6."""

from __future__ import annotations

import copy
import inspect
import pickle
import types
from collections.abc import Callable

import pytest
import torch
from nets import CLASSES, SmallNet, images, small
from torch import nn

import sita_adapters as sita
from sita_adapters.errors import InputError, ModelError, SharedWeightsError

LAYOUTS = (torch.contiguous_format, torch.channels_last)


def hooks_of(model: nn.Module) -> list[object]:
    kinds = (
        *("_forward_pre_hooks", "_forward_hooks", "_backward_hooks", "_forward_pre_hooks_with_kwargs"),
        "_load_state_dict_pre_hooks",
    )
    return [hook for module in model.modules() for kind in kinds for hook in getattr(module, kind).values()]


def test_same_type_same_call_same_output() -> None:
    model, batch = small(), images(2, 3, 16, 16)
    adapted = sita.adapt(model, "ops")
    assert type(adapted) is SmallNet
    assert list(dict(adapted.named_modules())) == list(dict(model.named_modules()))
    assert list(adapted.state_dict()) == list(model.state_dict())
    assert all(a is not b for a, b in zip(adapted.parameters(), model.parameters(), strict=True))
    with torch.inference_mode():
        answer = adapted(batch)
        assert torch.equal(answer, adapted(x=batch))
        assert answer.shape == (2, CLASSES)
        assert answer.dtype == model(batch).dtype
        assert sita.adapt(model, "augbn")(batch).is_contiguous()
    assert not adapted.training
    assert adapted.eval() is adapted
    assert list(inspect.signature(adapted.forward).parameters) == ["x"]


@pytest.mark.parametrize("keyword", ["x", "input", "pixel_values", "anything"])
def test_the_image_is_found_by_keyword(keyword: str) -> None:
    class Keyword(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = small()

        def forward(self, flag: bool = False, **kwargs: torch.Tensor) -> torch.Tensor:
            return self.net(kwargs[keyword]) * (2 if flag else 1)

    model, batch = Keyword().eval(), images(2, 3, 16, 16)
    with torch.inference_mode():
        expected = sita.adapt(model.net, "augbn")(batch) * 2
        answer = sita.adapt(model, "augbn")(True, **{keyword: batch})
    torch.testing.assert_close(answer, expected)


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, type("MyNorm", (nn.BatchNorm2d,), {})])
@pytest.mark.parametrize("layers", [None, "bn1"])
def test_unwrap_gives_back_every_entry_point(norm: type[nn.Module], layers: str | None) -> None:
    """Of a known class and of one that is adapted by a hook, and where some layers were left alone."""
    model, batch = SmallNet(norm).eval(), images(2, 3, 16, 16)
    adapted = sita.adapt(model, "ops", layers=layers)
    before = adapted(batch)
    plain = sita.unwrap(adapted)
    assert torch.equal(plain(batch), model(batch))
    assert torch.equal(plain.forward_features(batch), model.forward_features(batch))
    assert plain.bn1.running_var.data_ptr() == model.bn1.running_var.data_ptr()
    assert hooks_of(plain) == []
    assert sorted(vars(plain)) == sorted(vars(model))
    assert torch.equal(adapted(batch), before)
    plain.load_state_dict(model.state_dict())
    sita.adapt(plain, "ops")
    plain.train()


def test_a_training_model_stays_in_training_and_its_copy_is_in_eval() -> None:
    model = small().train()
    model.bn2.eval()
    adapted = sita.adapt(model, "ops")
    assert (model.training, model.bn1.training, model.bn2.training) == (True, True, False)
    assert not any(module.training for module in adapted.modules())


def test_unwrap_is_on_the_adapted_ones_device() -> None:
    adapted = sita.adapt(small(), "ops").to("meta")
    assert sita.unwrap(adapted).stem.weight.device.type == "meta"


def test_what_is_no_batchnorm_is_left_out() -> None:
    model = nn.Sequential(nn.InstanceNorm2d(3, track_running_stats=True), nn.BatchNorm2d(3)).eval()
    assert sita.describe(sita.adapt(model, "ops")).adapted == ("1",)
    scripted, batch = small(), images(1, 3, 16, 16)
    scripted.block[2] = torch.jit.script(nn.ReLU())  # which has no weights
    assert torch.equal(sita.adapt(scripted, "ops")(batch), sita.adapt(small(), "ops")(batch))


def test_tied_and_cached_tensors_survive_the_copy() -> None:
    class Tied(SmallNet):
        def __init__(self) -> None:
            super().__init__()
            self.tied = self.head.weight
            self.cache = (self.head.weight * 2).sum()  # a non-leaf, which deepcopy alone refuses

    model = Tied().eval()
    adapted = sita.adapt(model, "ops")
    assert adapted.tied is adapted.head.weight
    assert adapted.tied is not model.tied
    adapted(images(1, 3, 16, 16))


def test_hooks_of_the_source_run_on_the_copy_too() -> None:
    model, seen = small(), []
    model.register_forward_hook(lambda module, args, output: seen.append((tuple(args[0].shape), tuple(output.shape))))
    sita.adapt(model, "ops")(images(2, 3, 16, 16))
    assert seen == [((2, 3, 16, 16), (2, CLASSES))]


def doubled(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return 2 * SmallNet.forward(model, x)


def test_a_forward_patched_onto_the_instance_is_kept() -> None:
    model, batch = small(), images(2, 3, 16, 16)
    model.forward = types.MethodType(doubled, model)
    adapted = sita.adapt(model, "augbn")
    torch.testing.assert_close(adapted(batch), 2 * sita.adapt(small(), "augbn")(batch))
    assert torch.equal(sita.unwrap(adapted)(batch), model(batch))


def test_fx_graph_modules_are_adapted() -> None:
    model, batch = small(), images(2, 3, 16, 16)
    traced = torch.fx.symbolic_trace(model)
    adapted = sita.adapt(traced, "ops")
    torch.testing.assert_close(adapted(batch), sita.adapt(model, "ops")(batch))
    with pytest.raises(ModelError, match="outside a call"):  # torch.fx's copies are of the graph alone
        copy.deepcopy(adapted)(batch)
    torch.testing.assert_close(sita.unwrap(adapted)(batch), model(batch))
    assert sita.describe(adapted).rows == 22


@pytest.mark.parametrize("again", [copy.deepcopy, lambda adapted: pickle.loads(pickle.dumps(adapted))])
def test_adapted_models_can_be_copied(again: Callable[[nn.Module], nn.Module]) -> None:
    """The contract has torch.save."""
    adapted, batch = sita.adapt(small(), "ops"), images(2, 3, 16, 16)
    other = again(adapted)
    assert torch.equal(other(batch), adapted(batch))
    assert other.stem.weight.data_ptr() != adapted.stem.weight.data_ptr()
    assert other.forward.args[0] is other


def test_a_forward_that_raises_leaves_both_models_usable() -> None:
    model, batch = small(), images(1, 3, 16, 16)
    adapted = sita.adapt(model, "ops")
    with torch.inference_mode():
        plain, answer = model(batch), adapted(batch)
        with pytest.raises(RuntimeError, match="channels"):
            adapted(batch[:, :2])
        assert torch.equal(model(batch), plain)
        assert torch.equal(adapted(batch), answer)
    with pytest.raises(ModelError):  # no call is left open
        adapted.forward_features(batch)


def test_autocast_is_respected_and_statistics_stay_in_float32() -> None:
    model, batch = small(), images(2, 3, 16, 16) + 30  # a large mean is what bfloat16 statistics would lose
    with torch.inference_mode():
        expected = sita.adapt(model, "augbn", priors=0.5)(batch)
        with torch.autocast("cpu", torch.bfloat16):
            plain, answer = model(batch), sita.adapt(model, "augbn", priors=0.5)(batch)
    assert answer.dtype == plain.dtype == torch.bfloat16
    assert torch.isfinite(answer).all()
    torch.testing.assert_close(answer.float(), expected, rtol=0.25, atol=0.25)


def test_channels_last_stays_channels_last_and_gives_the_same_answer() -> None:
    model, batch = small(), images(2, 3, 16, 16)
    layouts = []
    with torch.inference_mode():
        expected = sita.adapt(model, "ops")(batch)
        last = sita.adapt(model.to(memory_format=torch.channels_last), "ops", example=batch)
        last.block[0].register_forward_pre_hook(
            lambda _, args: layouts.append(args[0].is_contiguous(memory_format=torch.channels_last))
        )
        answer = last(batch.contiguous(memory_format=torch.channels_last))
    assert layouts == [True]
    torch.testing.assert_close(answer, expected, rtol=1e-4, atol=1e-5)


def test_gradients_flow_where_they_are_asked_for() -> None:
    model, batch = small().double(), images(1, 3, 16, 16).double().requires_grad_()
    adapted = sita.adapt(model, "augbn", priors=0.5)
    assert torch.autograd.gradcheck(lambda x: adapted(x)[:, :2], batch, fast_mode=True)
    single = images(1, 3, 16, 16)
    first, last = (single.contiguous(memory_format=layout).clone().requires_grad_() for layout in LAYOUTS)
    for x in (first, last):
        sita.adapt(small(), "augbn")(x).sum().backward()
    torch.testing.assert_close(first.grad, last.grad, rtol=1e-3, atol=1e-5)


def test_a_view_that_works_in_place_leaves_the_image_alone() -> None:
    batch = images(2, 3, 16, 16)
    kept = batch.clone()
    inside = sita.adapt(small(), "augbn", augment=[lambda x: x.mul_(0.5)])(batch)
    assert torch.equal(batch, kept)
    assert torch.equal(inside, sita.adapt(small(), "augbn", augment=[lambda x: 0.5 * x])(batch))


def test_wrappers_are_unwrapped_with_a_warning() -> None:
    model, batch = small(), images(1, 3, 16, 16)
    expected = sita.adapt(model, "ops")(batch)
    for wrapped in (nn.DataParallel(model), torch.compile(model, backend="eager")):
        with pytest.warns(sita.SitaWarning, match="inner module was adapted"):
            adapted = sita.adapt(wrapped, "ops")
        assert type(adapted) is SmallNet
        assert torch.equal(adapted(batch), expected)
    wrapped = torch.compile(sita.adapt(model, "ops"), backend="eager")
    assert sita.describe(wrapped).rows == 22
    assert torch.equal(sita.unwrap(wrapped)(batch), model(batch))


@pytest.mark.parametrize("way", ["trace", "export"])
def test_an_unprobed_model_is_not_traced(way: str) -> None:
    """What it advises works."""
    model, batch = small(), images(2, 3, 16, 16)

    def run(adapted: nn.Module) -> torch.Tensor:
        if way == "trace":
            return torch.jit.trace(adapted, batch, check_trace=False)(batch)
        return torch.export.export(adapted, (batch,)).module()(batch)

    with pytest.raises(ModelError, match=r"before it was probed. Try: call it once, or sita.adapt\(model, example="):
        run(sita.adapt(model))
    adapted = sita.adapt(model, example=batch)
    torch.testing.assert_close(run(adapted), adapted(batch), rtol=1e-4, atol=1e-5)
    if way == "trace":  # which is for one size
        with pytest.raises(RuntimeError, match="shape"):
            torch.jit.trace(adapted, batch, check_trace=False)(images(1, 3, 18, 18))


def test_an_optimizer_of_an_adapted_model_has_nothing_to_do() -> None:
    model, x = small(), images(2, 3, 16, 16)
    before, adapted = copy.deepcopy(model.state_dict()), sita.adapt(model, "augbn")
    optimizer = torch.optim.SGD(adapted.parameters(), 1.0, weight_decay=0.1)
    with pytest.raises(RuntimeError, match="does not require grad"):
        adapted(x).sum().backward()
    with pytest.raises(SharedWeightsError, match="Try"):
        adapted.requires_grad_()
    x.requires_grad_()
    adapted(x).sum().backward()
    optimizer.step()
    assert x.grad is not None
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.requires_grad for p in model.parameters())
    assert all(p.requires_grad for p in sita.unwrap(adapted).parameters())


def weight_norm(model: nn.Module) -> None:
    nn.utils.parametrizations.weight_norm(model.stem)
    nn.utils.parametrizations.spectral_norm(model.conv2)


def old_weight_norm(model: nn.Module) -> None:
    with pytest.warns(FutureWarning):
        nn.utils.weight_norm(model.conv2)


@pytest.mark.parametrize("change", [weight_norm, old_weight_norm])
def test_parametrized_weights_stay_shared(change: Callable[[nn.Module], None]) -> None:
    model, x = small(), images(2, 3, 16, 16)
    change(model)
    adapted = sita.adapt(model.eval(), "augbn")
    torch.testing.assert_close(sita.adapt(model, "source")(x), model(x))
    adapted(x)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    torch.testing.assert_close(adapted(x), sita.adapt(model, "augbn")(x))


def test_fusing_an_adapted_model_does_not_give_the_source_back() -> None:
    from torch.fx.experimental.optimization import fuse

    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Flatten()).eval()
    with pytest.raises(ModelError):
        fuse(sita.adapt(model, "augbn"))(images(2, 3, 16, 16))


@pytest.mark.parametrize("transform", ["vmap", "jvp"])
def test_function_transforms_are_refused(transform: str) -> None:
    adapted, x = sita.adapt(small(), "ops"), images(2, 3, 16, 16)
    run = {"vmap": lambda: torch.func.vmap(adapted)(x[:, None]), "jvp": lambda: torch.func.jvp(adapted, (x,), (x,))}
    with pytest.raises(InputError, match=r"torch\.func"):
        run[transform]()
