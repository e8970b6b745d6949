"""Models that the library was not designed for, and that it adapts right."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_reference
from around import Around, batch, count_forwards, net, rand_stats
from torch import nn
from torch_reference import RECIPES, assert_answers

import sita_adapters as sita


def test_what_is_moved_to_another_memory_format_or_precision_shares_all_or_nothing() -> None:
    for move in (
        lambda a: a.to(memory_format=torch.channels_last),
        lambda a: a.double(),
        lambda a: a.half().float(),
        lambda a: a.to("cpu"),
    ):
        source = net()
        before = {name: value.clone() for name, value in source.state_dict().items()}
        moved = move(sita.adapt(source, "shift"))
        dtype = next(moved.parameters()).dtype
        shared = [a.data_ptr() == b.data_ptr() for a, b in zip(tensors(moved), tensors(source), strict=True)]
        assert len(set(shared)) == 1
        assert all(torch.equal(value, before[name]) for name, value in source.state_dict().items())
        assert all(value.dtype == before[name].dtype for name, value in source.state_dict().items())
        old = torch_reference.answers(source, batch(), "shift")
        tolerance = 5e-3 if dtype == torch.float32 and not shared[0] else 1e-5  # weights that were halved stay so
        assert_answers(moved(batch().to(dtype)), old, tolerance)
        with torch.no_grad():
            for value in source.state_dict().values():
                value.mul_(1.3) if value.is_floating_point() else None
        new = torch_reference.answers(source, batch(), "shift")
        assert_answers(moved(batch().to(dtype)), new if shared[0] else old, tolerance)


def tensors(model: nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]


class ChannelsLastNorm(nn.BatchNorm2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


class ChannelsLast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 16, 3, padding=1), ChannelsLastNorm(16), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.conv(x).permute(0, 2, 3, 1)).relu().mean((1, 2)))


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_class_with_channels_last_is_right_where_the_height_is_the_number_of_channels(recipe: str) -> None:
    torch.manual_seed(0)
    model = rand_stats(ChannelsLast())
    adapted = sita.adapt(model, recipe, **RECIPES[recipe])
    for size in ((24, 24), (16, 24), (16, 16)):
        expected = torch_reference.answers(model, batch(3, size), recipe, channel_axis=3)
        assert_answers(adapted(batch(3, size)), expected)


@pytest.mark.parametrize("max_rows", [None, 2, 1])
def test_a_model_that_normalizes_its_input_in_place(max_rows: int | None) -> None:
    adapted = sita.adapt(Around(lambda self, x: self.net(x.sub_(0.45).div_(0.22))), max_rows=max_rows)
    assert_answers(adapted(batch()), torch_reference.answers(net(), (batch() - 0.45) / 0.22))


def test_outputs_that_are_no_logits_stay_what_they_were() -> None:
    """A non-negative embedding is selected; probabilities and an image of real values are mixed."""
    import timm

    torch.manual_seed(0)
    x = batch(2, (64, 64))
    embedder = rand_stats(timm.create_model("resnet10t", pretrained=False, num_classes=0).eval())
    with torch.no_grad():
        embedding = sita.adapt(embedder)(x)
    assert_answers(embedding, torch_reference.answers(embedder, x, kind=None), 1e-4)
    assert embedding.min() >= 0
    softmax = nn.Sequential(*net(), nn.Softmax(1)).eval()
    found = sita.adapt(softmax)(x)
    assert_answers(found, torch_reference.answers(softmax, x, kind="probabilities"))
    assert_answers(found.sum(1), torch.ones(2, dtype=torch.float64))
    painter = nn.Sequential(*net()[:3], nn.Conv2d(8, 3, 3, padding=1)).eval()
    assert_answers(sita.adapt(painter)(x), torch_reference.answers(painter, x))


def test_an_adapted_backbone_can_be_put_into_a_model() -> None:
    """The head sees the features of one row."""

    class Big(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone, self.head = net()[:6], net()[6:]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.backbone(x))

    big = Big().eval()
    features = torch_reference.answers(big.backbone, batch(), kind=None)
    expected = copy.deepcopy(big.head).double()(features).detach()
    big.backbone = sita.adapt(big.backbone)
    assert_answers(big(batch()), expected)
    assert_answers(big(batch()), expected)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.__setitem__(8, nn.Linear(16, 5)),
        lambda model: model.__setitem__(1, nn.BatchNorm2d(8).eval()),
        lambda model: setattr(model[1], "eps", 1.0),
    ],
    ids=["another head", "another layer", "another epsilon"],
)
def test_another_structure_of_the_source_changes_nothing(change: Callable[[Any], Any]) -> None:
    model = net()
    adapted = sita.adapt(model, "shift")
    before = adapted(batch())
    change(model)
    assert torch.equal(adapted(batch()), before)


def cached_grid(self: Any, x: torch.Tensor) -> torch.Tensor:
    if self.grid is None or self.grid.shape != x.shape[-1:]:
        self.grid = torch.linspace(0, 1, x.shape[-1], dtype=x.dtype)
    return self.net(x + self.grid)


@pytest.mark.parametrize("used_before", [False, True])
def test_a_cached_grid_is_allowed(used_before: bool) -> None:
    """Also one that was made in inference mode."""
    model = Around(cached_grid, grid=None)
    if used_before:
        with torch.inference_mode():
            model(batch(1))
    adapted = sita.adapt(model)
    for size in ((32, 32), (24, 24)):
        x = batch(2, size)
        assert_answers(adapted(x), torch_reference.answers(net(), x + torch.linspace(0, 1, size[1])))
    assert used_before or model.grid is None


def test_a_lightning_module_that_a_trainer_has_seen(tmp_path: Any) -> None:
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return self.net(batch[0]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.01)

    model = Module()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(batch()), batch_size=2)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lightning.Trainer(max_epochs=1, accelerator="cpu", default_root_dir=tmp_path, **quiet).fit(model, loader)
    model.eval()
    assert_answers(sita.adapt(model)(batch()), torch_reference.answers(model.net, batch()))


@pytest.mark.parametrize("name", [lambda i: "a.jpg", "image{}.jpg".format, lambda i: i, lambda i: 0.5 * i])
def test_strings_and_numbers_beside_the_images_are_not_probed_again(name: Callable[[int], Any]) -> None:
    model = Around(lambda self, given: self.net(given["image"]))
    adapted, x = sita.adapt(model), batch()
    adapted({"image": x, "id": name(0)})
    runs = count_forwards(adapted.net[0])
    for i in range(5):
        assert_answers(adapted({"image": x, "id": name(i)}), torch_reference.answers(net(), x))
    assert runs == [2 * len(x)] * 5


@pytest.mark.parametrize("counts", [(1, 2, 4, 3), (3, 1, 4)])
def test_an_argument_whose_length_happens_to_be_the_batchs(counts: tuple[int, ...]) -> None:
    """A mean for each of three channels, and three images."""
    adapted = sita.adapt(Around(lambda self, x, mean: self.net(x - mean.view(-1, 1, 1))))
    mean = torch.tensor([0.4, 0.5, 0.6])
    for count in counts:
        x = batch(count)
        assert_answers(adapted(x, mean), torch_reference.answers(net(), x - mean.view(-1, 1, 1)))


@pytest.mark.parametrize("recipe", ["shift", "auto"])
def test_outputs_may_hold_the_images_on_another_axis(recipe: str) -> None:
    adapted = sita.adapt(Around(lambda self, x: {"logits": (y := self.net(x)), "hidden": y.T.clone()}), recipe)
    expected = torch_reference.answers(net(), batch(), recipe)
    found = adapted(batch())
    assert_answers(found["logits"], expected)
    assert_answers(found["hidden"].T, expected)


def test_a_getstate_that_leaves_a_module_out() -> None:
    """As Lightning does with its trainer."""

    class Lean(Around):
        def __getstate__(self) -> dict[str, Any]:
            return {**vars(self), "tools": None}

    model = Lean(tools={"teacher": nn.Linear(2, 2)})
    assert_answers(sita.adapt(model)(batch()), torch_reference.answers(net(), batch()))


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_model_called_in_inference_mode(recipe: str) -> None:
    with torch.inference_mode():
        adapted = sita.adapt(net(), recipe, **RECIPES[recipe])
        found = adapted(batch())
    assert_answers(found.clone(), torch_reference.answers(net(), batch(), recipe))
    assert_answers(adapted(batch()), torch_reference.answers(net(), batch(), recipe))
