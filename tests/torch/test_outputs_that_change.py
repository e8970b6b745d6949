"""Outputs and arguments that are not what they were in the probe, or hide tensors: a right answer, or an error."""

from __future__ import annotations

import enum
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch_reference
from torch import nn
from torch.nn import functional
from torch_reference import assert_answers

import sita_adapters as sita
from sita_adapters.errors import InputError, ModelError, OutputError


class Net(nn.Module):
    """Convolution, BatchNorm, and a linear layer on pooled features."""

    def __init__(self, maps: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        norm = nn.BatchNorm2d(8)
        norm.running_mean.uniform_(-0.3, 0.3)
        norm.running_var.uniform_(0.05, 0.3)
        pool = [] if maps else [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.ReLU(), *pool)
        self.head = nn.Conv2d(8, 5, 1) if maps else nn.Linear(8, 5)
        self.eval()

    def forward(self, x: torch.Tensor, *_: Any) -> Any:
        return self.head(self.body(x))


def images(count: int = 3) -> torch.Tensor:
    return torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(1))


class Mode(enum.Enum):
    SCORES, LABELS = 1, 2


class Switching(Net):
    def forward(self, x: torch.Tensor, mode: Any = "scores") -> torch.Tensor:
        y = super().forward(x)
        return y if mode in ("scores", Mode.SCORES) else y.argmax(1, keepdim=True)


@pytest.mark.parametrize("modes", [("scores", "labels"), (Mode.SCORES, Mode.LABELS)])
def test_scores_that_become_labels_are_refused(modes: tuple[Any, Any]) -> None:
    adapted = sita.adapt(Switching(maps=True))
    assert adapted(images(), modes[0]).shape[1] == 5
    with pytest.raises(OutputError, match=r"in floating point, as in the probe.*torch\.int64"):
        adapted(images(), modes[1])


def test_a_masked_class_stays_masked_whatever_its_weight() -> None:
    """If every layer has a single position, D is 0, and 0 · −∞ would be NaN."""

    class Masked(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mask = torch.tensor([False, True, False, False, True])
            return self.head(self.norm(self.body(x))).masked_fill(mask, -torch.inf)

    model = Masked()
    model.body[1], model.norm = nn.Identity(), nn.BatchNorm1d(8).eval()
    found = sita.adapt(model)(images())
    assert torch.equal(found.isneginf(), model(images()).isneginf())
    assert_answers(found[:, [0, 2, 3]], model(images())[:, [0, 2, 3]].double())


@dataclass
class Derived:
    logits: torch.Tensor

    def __post_init__(self) -> None:
        self.labels = self.logits.argmax(1)


class Record(OrderedDict):  # type: ignore[type-arg]
    """A dict that may have other attributes."""


def with_labels(logits: torch.Tensor) -> Record:
    record = Record(logits=logits)
    record.labels = logits.argmax(1)
    return record


@pytest.mark.parametrize(
    ("wrap", "words"),
    [
        (Derived, "tensors that are no fields of it: labels"),
        (with_labels, "tensors that are no fields of it: labels"),
    ],
)
def test_tensors_that_cannot_be_replaced_are_refused(wrap: Any, words: str) -> None:
    class Wrapping(Net):
        def forward(self, x: torch.Tensor) -> Any:
            return wrap(super().forward(x))

    with pytest.raises(OutputError, match=words):
        sita.adapt(Wrapping())(images())


@pytest.mark.parametrize("recipe", ["auto", "ops", "shift"])
def test_an_output_with_an_empty_axis(recipe: str) -> None:
    class Empty(Net):
        def forward(self, x: torch.Tensor) -> Any:
            return {"none": x.new_zeros(len(x), 0, 3), "logits": super().forward(x)}

    found = sita.adapt(Empty(), recipe)(images())
    assert found["none"].shape == (3, 0, 3)
    assert found["logits"].shape == (3, 5)


def test_one_hot_maps_and_label_columns_are_not_averaged() -> None:
    class Labels(Net):
        def forward(self, x: torch.Tensor) -> Any:
            p = super().forward(9 * x).softmax(1)
            return {"out": p, "hard": functional.one_hot(p.argmax(1), 5).movedim(-1, 1).float()}

    found = sita.adapt(Labels(maps=True))(images(8))
    assert {*np.unique(found["hard"].detach())} <= {0.0, 1.0}
    assert torch.equal(found["hard"].argmax(1), found["out"].argmax(1))


def test_complex_outputs_are_compared_in_both_parts() -> None:
    class Complex(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            z = super().forward(x)
            return torch.complex(z, z - z.mean(0))

    with pytest.raises(ModelError, match="influence each other"):
        sita.adapt(Complex(), "shift")(images())


@dataclass
class Meta:
    scale: torch.Tensor


def test_tensors_inside_of_objects_are_refused_and_a_dict_works() -> None:
    class Scaled(Net):
        def forward(self, x: torch.Tensor, meta: Any) -> torch.Tensor:
            return super().forward(x * (meta["scale"] if isinstance(meta, dict) else meta.scale))

    scale = torch.tensor([0.5, 1.0, 2.0]).view(3, 1, 1, 1)
    with pytest.raises(InputError, match=r"a Meta that holds tensors. Try: pass these in a dict"):
        sita.adapt(Scaled())(images(), Meta(scale))
    found = sita.adapt(Scaled())(images(), {"scale": scale})
    assert_answers(found, torch_reference.answers(Net(), images() * scale))
    sita.adapt(Net())(images(), images().shape[-2:])  # sizes are a tuple of their own kind


class Loop(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([super(Loop, self).forward(image[None])[0] for image in x])


def test_a_loop_over_images_is_named() -> None:
    with pytest.raises(ModelError, match=r"calls 'body.1' 2 times for two images, but 1 times for 1.*without a loop"):
        sita.adapt(Loop())(images())


def test_if_no_other_layer_is_left_none_is_advised() -> None:
    class TimeFirst(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            n, t = x.shape[:2]
            return super().forward(x.transpose(0, 1).reshape(n * t, *x.shape[2:])).view(t, n, -1).mean(0)

    with pytest.raises(ModelError, match="another model, because this one has no other BatchNorm layers"):
        sita.adapt(TimeFirst())(torch.stack([images(), images() + 0.3], 1))


class Photos(Net):
    """Its own `__call__` takes photographs in bytes, and runs the forward."""

    def __call__(self, photos: torch.Tensor) -> torch.Tensor:
        return super().__call__(photos.permute(0, 3, 1, 2).float() / 255)


def test_an_example_for_a_call_of_its_own_reaches_the_forward() -> None:
    photos = (255 * images().permute(0, 2, 3, 1)).to(torch.uint8)
    expected = torch_reference.answers(Net(), photos.permute(0, 3, 1, 2) / 255)
    for example in (None, photos):
        assert_answers(sita.adapt(Photos(), example=example)(photos), expected)


def test_compare_reads_what_a_call_returns() -> None:
    """The model's own `__call__` runs; a hook on the model itself that changes the scores is named."""
    photos = (255 * images().permute(0, 2, 3, 1)).to(torch.uint8)

    class Scaling(Net):
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return super().__call__(x / 255)

    compared = sita.compare({"scaling": Scaling()}, photos.float().numpy())["scaling"]
    with torch.no_grad():
        expected = Net()(photos.permute(0, 3, 1, 2) / 255).softmax(1)
    np.testing.assert_allclose(compared.probabilities, expected, atol=1e-6)
    for change, words in (
        (lambda _, __, output: output.softmax(1), "were logits in the probe but not in this call.*hook on the model"),
        (lambda _, __, output: (output, "and more", output), "a call returns .*hook on the model itself"),
    ):
        model = Net()
        model.register_forward_hook(change)
        with pytest.raises(OutputError, match=words):
            sita.compare({"hooked": model}, images().permute(0, 2, 3, 1).numpy())


def test_a_module_that_copies_share_is_refused_and_stays_whole() -> None:
    class Kept(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean = nn.Parameter(torch.zeros(3, 1, 1), False)

        def __deepcopy__(self, _: Any) -> nn.Module:
            return self

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x - self.mean

    model = nn.Sequential(Kept(), Net()).eval()
    with pytest.raises(ModelError, match="Kept of Sequential stays the same object in a copy"):
        sita.adapt(model)
    assert len([*model.parameters()]) == 7
    del Kept.__deepcopy__
    assert_answers(sita.adapt(model)(images()), torch_reference.answers(model, images()))


def test_hooks_of_a_model_with_a_call_of_its_own_see_no_random_image() -> None:
    model, seen = Photos(), []
    model.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape))
    sita.adapt(model)
    assert seen == []
