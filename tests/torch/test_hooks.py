"""The user's own hook functions: they run in calls of the adapted model, never in its probe, and change nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_reference
from torch import nn
from torch_reference import assert_answers

import sita_adapters as sita
from sita_adapters.errors import ModelError

STORE: dict[str, torch.Tensor] = {}


class Net(nn.Module):
    """Convolution, BatchNorm, pooling, and a linear layer; a hook may put the features into `store`."""

    def __init__(self, store: dict[str, torch.Tensor] | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        norm = nn.BatchNorm2d(8)
        norm.running_mean.uniform_(-0.3, 0.3)
        norm.running_var.uniform_(0.05, 0.3)
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head, self.store = nn.Linear(8, 5), {} if store is None else store
        self.returns_features = False
        self.eval()

    def forward(self, x: torch.Tensor) -> Any:
        logits = self.head(self.body(x))
        return {"logits": logits, "features": self.store["it"]} if self.returns_features else logits

    def keep(self, _: nn.Module, __: Any, output: torch.Tensor) -> None:
        self.store["it"] = output


def images(count: int = 3) -> torch.Tensor:
    return torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("before", [False, True])
def test_a_feature_bank_sees_every_row_of_a_call_and_nothing_of_the_probe(before: bool) -> None:
    model, bank = Net(), []
    if before:
        model.body[4].register_forward_pre_hook(lambda _, args: bank.append(args[0].flatten(1)))
    else:
        model.body[4].register_forward_hook(lambda _, __, output: bank.append(output))
    adapted = sita.adapt(model, example=images())
    assert bank == []
    expected = torch_reference.answers(Net(), images())
    assert_answers(adapted(images()), expected)
    assert [tuple(each.shape) for each in bank] == [(6, 8)]
    with torch.no_grad():
        assert_answers(adapted.head(bank[0])[::2], Net()(images()).double())  # the source's rows


def test_a_function_that_changes_a_value_is_refused_and_the_advice_works() -> None:
    class Half:
        def __call__(self, _: nn.Module, __: Any, output: torch.Tensor) -> torch.Tensor:
            return output / 2

    model = Net()
    model.body[0].register_forward_hook(lambda _, __, output: output / 2)
    with pytest.raises(ModelError, match=r"hook function of 'body\.0'.*Try: .*an object of a class with a __call__"):
        sita.adapt(model)(images())
    model = Net()
    model.body[0].register_forward_hook(Half())
    assert_answers(sita.adapt(model)(images()), torch_reference.answers(model, images()))


def make_hook(holder: Any) -> Any:
    def keep(_: Any, __: Any, output: torch.Tensor) -> None:
        (holder.store if isinstance(holder, Net) else holder)["it"] = output

    return keep


def test_a_function_that_holds_the_model_is_refused_and_a_method_works() -> None:
    """Its features would be the source's, and the source's store would hold the adapted model's rows."""
    for held in ("model", "store"):
        model = Net()
        holder = {"model": model, "store": model.store}[held]
        model.body[4].register_forward_hook(make_hook(holder))
        with pytest.raises(ModelError, match=r"refers to the model or one of its attributes.*Try: make it a method"):
            sita.adapt(model)
    model = Net()
    model.body[4].register_forward_hook(model.keep)
    model.returns_features = True
    with torch.no_grad():
        before = model(images(2))["features"].clone()
        found = sita.adapt(model, "shift")(images())
        assert_answers(sita.unwrap(sita.adapt(model)).head(found["features"]), found["logits"].double())
    assert found["features"].shape == (3, 8)
    assert torch.equal(model.store["it"], before)


def put(_: Any, __: Any, output: torch.Tensor) -> None:
    STORE["it"] = output


class ReadsGlobal(Net):
    def forward(self, x: torch.Tensor) -> Any:
        return {"logits": super().forward(x), "features": STORE["it"]}


def test_a_function_with_a_global_store_is_found_out() -> None:
    """The model reads it as an attribute, or as a global: a constant in the probe."""
    for model, words in ((Net(STORE), "refers to the model"), (ReadsGlobal(), "features was a constant in the probe")):
        model.returns_features = model.store is STORE
        model.body[4].register_forward_hook(put)
        with torch.no_grad():
            model(images(1))
            with pytest.raises(sita.SitaError, match=words):
                sita.adapt(model)(images())
