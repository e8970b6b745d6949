"""Rows that only serve statistics end after the last adapted layer, and nobody sees it but the clock."""

from __future__ import annotations

import copy
import importlib
import inspect
import io
import pickle
from collections.abc import Callable, Iterator

import pytest
import torch
from nets import CLASSES, SmallNet, images, small, warm
from torch import nn
from torch.nn import functional as F

import sita_adapters as sita
from sita_workbench.networks.cifar_resnet import CifarResNet

EARLY = ["bn1", "bn2"]
RECIPES = {"augbn": (3, 1), "ops": (22, 8), "ops_shared": (10, 8)}
"""How many rows an image costs, and how many of them answer."""


@pytest.fixture
def to_the_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., nn.Module]]:
    """`sita.adapt`, with all rows running to the end."""
    backend = importlib.import_module("sita_torch.backend")

    def adapt(*args: object, **kwargs: object) -> nn.Module:
        with monkeypatch.context() as patch:
            patch.setattr(backend, "find_ending", lambda *_: None)
            return sita.adapt(*args, **kwargs)

    return adapt


def rows_of(module: nn.Module) -> list[int]:
    """Return the list that the module's leading entries will be noted in, call by call."""
    seen: list[int] = []
    module.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    return seen


def same(answer: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(answer, expected, rtol=1e-5, atol=2e-6 * float(expected.abs().max()))


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("recipe", RECIPES)
def test_the_answer_is_the_same_and_fewer_rows_run(
    recipe: str, count: int, to_the_end: Callable[..., nn.Module]
) -> None:
    rows, answers = RECIPES[recipe]
    batch = images(count, 3, 16, 16)
    cut, whole = sita.adapt(small(), recipe, layers=EARLY), to_the_end(small(), recipe, layers=EARLY)
    assert sita.describe(cut).views_end_after == "bn2"
    assert "views end after bn2" in str(sita.describe(cut))
    assert sita.describe(whole).views_end_after is None
    assert "views end" not in str(sita.describe(whole))
    before, after, uncut = rows_of(cut.conv2), rows_of(cut.block[0]), rows_of(whole.block[0])
    with torch.inference_mode():
        same(cut(batch), whole(batch))
        same(cut(x=batch), whole(batch))
    assert (before[0], after[0], uncut[0]) == (count * rows, count * answers, count * rows)
    assert after == after[:1] * 2


@pytest.mark.parametrize("options", [{"recipe": "ensemble"}, {"recipe": "bn"}, {"recipe": "augbn", "layers": None}])
def test_where_all_rows_answer_or_all_layers_adapt_nothing_ends(options: dict[str, object]) -> None:
    adapted = sita.adapt(small(), **{"layers": "bn1", **options})
    assert sita.describe(adapted).views_end_after is None


def test_layers_at_the_end_leave_nothing_to_save() -> None:
    assert sita.describe(sita.adapt(small(), "augbn", layers="block")).views_end_after is None


FIRST_STAGE = {
    "timm-resnet18": (["bn1", "layer1.*"], "layer1.1.bn2"),
    "torchvision-resnet18": (["bn1", "layer1.*"], "layer1.1.bn2"),
    "torchvision-resnet50": (["bn1", "layer1.*"], "layer1.2.bn3"),
    "torchvision-densenet121": (["features.norm0", "features.denseblock1"], "features.denseblock1.denselayer6.norm2"),
    "cifar": (["bn1", "layer1.*"], "layer1.2.bn2"),
}


def network(name: str) -> nn.Module:
    """Return a network whose statistics are anything but the identity's; warming it would take longer than the test."""
    torch.manual_seed(0)
    library, _, architecture = name.partition("-")
    modules = {"timm": "timm.models", "torchvision": "torchvision.models"}
    model = CifarResNet(20) if name == "cifar" else getattr(importlib.import_module(modules[library]), architecture)()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.1, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    return model.eval()


@pytest.mark.parametrize("name", FIRST_STAGE)
def test_covered_networks(name: str, to_the_end: Callable[..., nn.Module]) -> None:
    layers, last = FIRST_STAGE[name]
    model, batch = network(name), images(2, 3, 40, 40)
    cut, whole = (adapt(model, "augbn", priors=0.5, layers=layers) for adapt in (sita.adapt, to_the_end))
    assert sita.describe(cut).views_end_after == last
    seen = rows_of(next(module for module in cut.modules() if isinstance(module, nn.Linear)))
    with torch.inference_mode():
        same(cut(batch), whole(batch))
    assert seen == [2]


class Around(SmallNet):
    """Like SmallNet, with what a subclass does between the second BatchNorm and the rest."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skip = self.stem(x)
        return self.head(self.ending(skip, self.bn2(self.conv2(torch.relu(self.bn1(skip))))).mean((2, 3)))

    def ending(self, skip: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.block(torch.relu(x + skip))


class InPlace(Around):
    """What is changed in place is used again, under two names."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.stem(x)
        z = y.mul_(2)
        x = self.bn2(self.conv2(y))
        z.add_(1)
        return self.head(self.block(x + y + z).mean((2, 3)))


class Twice(Around):
    """The layer that is adapted runs a second time, later."""

    def ending(self, skip: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.block(self.bn2(torch.relu(x + skip)))


class HarmlessSizes(Around):
    """Height, width and dtype are used later, none of which is the batch's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size, (_, _, height, _), kind = x.shape[-2:], x.shape, x.dtype
        x = F.interpolate(self.bn2(self.conv2(self.bn1(self.stem(x)))), size=size)
        return self.head(self.block(x).sum((2, 3)).to(kind) / height)


class Named(Around):
    """Several values, by name."""

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> dict[str, torch.Tensor]:
        features = {"a": self.stem(x)}
        features["b"] = self.bn2(self.conv2(self.bn1(features["a"])))
        return {"logits": scale * self.head(self.block(sum(features.values())).mean((2, 3))), **features}


class Uncertain(nn.Module):
    """Decides by values, inside a block that can be one call."""

    def __init__(self) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.bn(x) if x.mean() < 1e9 else x


class Closed(Around):
    def __init__(self) -> None:
        super().__init__()
        self.bn2 = Uncertain()


SAFE = {Around: "bn2", InPlace: "bn2", Twice: "bn2", HarmlessSizes: "bn2", Named: "bn2", Closed: "bn2"}


@pytest.mark.parametrize("kind", SAFE)
@pytest.mark.parametrize("recipe", RECIPES)
def test_what_crosses_the_end_keeps_the_rows_that_answer(
    kind: type[nn.Module], recipe: str, to_the_end: Callable[..., nn.Module]
) -> None:
    model, batch = warm(kind(), 3, 16, 16), images(3, 3, 16, 16)
    cut, whole = sita.adapt(model, recipe, layers=EARLY), to_the_end(model, recipe, layers=EARLY)
    assert sita.describe(cut).views_end_after == SAFE[kind]
    seen = rows_of(cut.head)
    with torch.inference_mode():
        answer, expected = cut(batch), whole(batch)
    assert seen == [3 * RECIPES[recipe][1]]
    if kind is Named:
        assert list(answer) == ["logits", "a", "b"]
        for name, value in answer.items():
            same(value, expected[name])
        same(cut(batch, scale=2.0)["logits"], whole(batch, scale=2.0)["logits"])
        assert seen[1] == 3 * RECIPES[recipe][0]  # with other arguments than were recorded, all rows run on
    else:
        same(answer, expected)


class BatchSize(Around):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = x.shape[0]
        return self.head(self.block(self.bn2(self.stem(x))).reshape(count, 16, -1).mean(2))


class Decides(Around):
    def ending(self, skip: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.block(x + skip if x.mean() < 1e9 else x)


class Counts(Around):
    calls = 0

    def ending(self, skip: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.block(x + skip)


class Keeps(Around):
    def __init__(self) -> None:
        super().__init__()
        self.kept: list[torch.Tensor] = []

    def ending(self, skip: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        self.kept.append(x.detach())
        return self.block(x + skip)


class RowsElsewhere(Around):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skip = self.stem(x).transpose(0, 1)
        return self.head(self.block(self.bn2(self.conv2(skip.transpose(0, 1))) + skip.transpose(0, 1)).mean((2, 3)))


class Folds(Around):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        halves = self.bn2(self.stem(x).unflatten(2, (2, -1)).transpose(1, 2).flatten(0, 1))
        return self.head(self.block(halves.unflatten(0, (-1, 2)).mean(1)).mean((2, 3)))


class MakesTensors(Around):
    def ending(self, skip: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.block(x + skip * torch.full((8, 1, 1), 2.0))


class OwnPrecision(Around):
    def ending(self, skip: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return self.block(x + skip)


class LooksAtTypes(Around):
    def ending(self, skip: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.block(x + skip if isinstance(x, torch.Tensor) else x)


class Overlapping(Around):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.stem(x)
        z = y[:, :8]
        x = self.bn2(y)
        y.add_(1)
        return self.head(self.block(x + y + z).mean((2, 3)))


class Hidden(Around):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = [nn.ReLU()]

    def ending(self, skip: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.block(self.hidden[0](x + skip))


UNSAFE = (
    *(BatchSize, Decides, Counts, Keeps, RowsElsewhere, Folds),
    *(MakesTensors, OwnPrecision, LooksAtTypes, Overlapping, Hidden),
)


@pytest.mark.parametrize("kind", UNSAFE)
def test_where_it_is_not_safe_all_rows_run_on(kind: type[nn.Module], to_the_end: Callable[..., nn.Module]) -> None:
    model, batch = warm(kind(), 3, 16, 16), images(2, 3, 16, 16)
    adapted = sita.adapt(model, "augbn", layers="bn2")
    assert sita.describe(adapted).views_end_after is None
    with torch.inference_mode():
        assert torch.equal(adapted(batch), to_the_end(model, "augbn", layers="bn2")(batch))


def test_a_forward_of_the_instance_is_left_to_itself() -> None:
    model, batch = small(), images(1, 3, 16, 16)
    model.forward = SmallNet.forward.__get__(model)
    adapted = sita.adapt(model, "augbn", layers=EARLY)
    assert sita.describe(adapted).views_end_after is None
    same(adapted(batch), sita.adapt(small(), "augbn", layers=EARLY)(batch))


class Staged(nn.Module):
    """The last adapted layer is inside a block."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3))
        self.rest = nn.Sequential(nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES))
        self.gain = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rest(self.stage(x)) * self.gain


def test_hooks_that_come_later_are_called_as_ever() -> None:
    model, batch = warm(Staged(), 3, 16, 16), images(2, 3, 16, 16)
    adapted = sita.adapt(model, "augbn", layers="stage")
    assert sita.describe(adapted).views_end_after == "stage.1"
    seen, stage = rows_of(adapted.stage[3]), []
    answer = adapted(batch)
    handle = adapted.stage.register_forward_hook(lambda *_: stage.append(1))
    same(adapted(batch), answer)
    handle.remove()
    adapted(batch)
    assert (seen, stage) == ([2, 6, 2], [1])
    model.stage.register_forward_hook(lambda *_: stage.append(1))
    assert sita.describe(sita.adapt(model, "augbn", layers="stage")).views_end_after == "stage"
    assert stage == [1]  # trial runs call no one


def test_settings_and_children_that_change_later_count() -> None:
    model, batch = warm(Staged(), 3, 16, 16), images(2, 3, 16, 16)
    adapted = sita.adapt(model, "augbn", layers="stage")
    answer = adapted(batch)
    adapted.gain = 2.0
    same(adapted(batch), 2 * answer)
    adapted.gain = 1.0
    adapted.stage.append(nn.ReLU())
    changed = adapted(batch)
    assert not torch.allclose(changed, answer)
    adapted.rest[3] = nn.Identity()
    assert adapted(batch).shape == (2, 8)


def test_adapt_leaves_no_trace(to_the_end: Callable[..., nn.Module]) -> None:
    model = small()
    held = [sorted(vars(module)) for module in model.modules()]
    seed, precision = torch.get_rng_state(), torch.is_autocast_enabled("cpu")
    cut, whole = sita.adapt(model, "augbn", layers=EARLY), to_the_end(model, "augbn", layers=EARLY)
    assert [sorted(vars(module)) for module in model.modules()] == held
    assert [sorted(vars(module)) for module in cut.modules()] == [sorted(vars(module)) for module in whole.modules()]
    assert torch.equal(torch.get_rng_state(), seed)
    assert (torch.is_autocast_enabled("cpu"), torch.is_grad_enabled()) == (precision, True)
    assert list(inspect.signature(cut.forward).parameters) == ["x"]
    plain = sita.unwrap(cut)
    assert sorted(vars(plain)) == sorted(vars(model))
    assert torch.equal(plain(images(1, 3, 16, 16)), model(images(1, 3, 16, 16)))


@pytest.mark.parametrize("max_rows", [3, 7, 24])
def test_parts_end_too(max_rows: int) -> None:
    batch = images(5, 3, 16, 16)
    whole, parts = (sita.adapt(small(), layers=EARLY, max_rows=rows) for rows in (None, max_rows))
    seen = rows_of(parts.head)
    with torch.inference_mode():
        same(parts(batch), whole(batch))
    assert sum(seen) == 5 * 8


@pytest.mark.parametrize("share", ["image", "batch"])
def test_lambda_one_is_the_source_model(share: str) -> None:
    model, batch = small().double(), images(3, 3, 16, 16).double()
    adapted = sita.adapt(model, "augbn", priors=1 - 1e-16, layers=EARLY, share=share)
    assert sita.describe(adapted).views_end_after == "bn2"
    with torch.inference_mode():
        torch.testing.assert_close(adapted(batch), model(batch), rtol=1e-9, atol=1e-9)


def test_channels_last_and_half_precision_stay(to_the_end: Callable[..., nn.Module]) -> None:
    batch = images(2, 3, 16, 16).contiguous(memory_format=torch.channels_last)
    model = small().to(memory_format=torch.channels_last)
    cut, layouts = sita.adapt(model, "ops", layers=EARLY), []
    cut.block[0].register_forward_pre_hook(
        lambda _, args: layouts.append(args[0].is_contiguous(memory_format=torch.channels_last))
    )
    with torch.inference_mode():
        same(cut(batch), to_the_end(model, "ops", layers=EARLY)(batch))
        halved = cut.to(torch.bfloat16)(batch.to(torch.bfloat16))
    assert layouts == [True, True]
    assert halved.dtype == torch.bfloat16


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "torch.save", "twice"])
def test_adapted_models_can_be_copied_and_stored(way: str) -> None:
    adapted, batch = sita.adapt(small(), layers=EARLY), images(2, 3, 16, 16)
    if way == "deepcopy":
        again = copy.deepcopy(adapted)
    elif way == "torch.save":
        buffer = io.BytesIO()
        torch.save(adapted, buffer)
        again = torch.load(io.BytesIO(buffer.getvalue()), weights_only=False)
    else:
        again = pickle.loads(pickle.dumps(adapted))
        again = copy.deepcopy(pickle.loads(pickle.dumps(again))) if way == "twice" else again
    with torch.inference_mode():
        assert torch.equal(again(batch), adapted(batch))
        adapted.head.bias.add_(1)  # the copy runs on weights of its own
        assert not torch.equal(again(batch), adapted(batch))
    seen = rows_of(again.head)
    again(batch)
    assert seen == [16]
    assert sita.describe(again).views_end_after == "bn2"


@pytest.mark.parametrize("recipe", ["ops"])
def test_compile_export_and_trace_follow(recipe: str) -> None:
    adapted, batch, five = sita.adapt(small(), recipe, layers=EARLY), images(2, 3, 16, 16), images(5, 3, 16, 16)
    with torch.no_grad():
        expected = adapted(batch)
        torch._dynamo.reset()
        compiled = torch.compile(adapted, fullgraph=True, backend="eager")(batch)
        traced = torch.jit.trace(adapted, batch, check_trace=False)
        sizes = {"x": {0: torch.export.Dim("batch", min=1, max=64)}}
        program = torch.export.export(adapted, (batch,), dynamic_shapes=sizes)
        exported = program.module()
        for answer in (compiled, traced(batch), exported(batch)):
            same(answer, expected)
        for answer in (traced(five), exported(five)):
            same(answer, adapted(five))
    (head,) = (node for node in program.graph.nodes if "linear" in str(node.target))
    (image,) = (node for node in program.graph.nodes if node.name == "x")
    assert head.meta["val"].shape[0] == RECIPES[recipe][1] * image.meta["val"].shape[0]


def test_graph_modules_end_too(to_the_end: Callable[..., nn.Module]) -> None:
    model, batch = torch.fx.symbolic_trace(small()), images(2, 3, 16, 16)
    cut = sita.adapt(model, "augbn", layers=EARLY)
    assert sita.describe(cut).views_end_after == "bn2"
    same(cut(batch), to_the_end(model, "augbn", layers=EARLY)(batch))
    same(copy.deepcopy(cut)(batch), cut(batch))


def test_votes_are_told_of_as_ever(to_the_end: Callable[..., nn.Module]) -> None:
    batch, told = images(3, 3, 16, 16), []
    for adapted in (sita.adapt(small(), layers=EARLY), to_the_end(small(), layers=EARLY)):
        with sita.observe(adapted) as seen, torch.inference_mode():
            adapted(batch)
        told.append(torch.as_tensor(seen.entropies))
    same(*told)
