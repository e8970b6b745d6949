"""Outputs whose values or sizes depend on the whole batch, which the random images do not show: refused in the call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import sita_adapters as sita
from sita_adapters.errors import OutputError


class Heads(nn.Module):
    """A network whose outputs a function makes from its features (N, 8, H, W) and logits (N, 5)."""

    def __init__(self, make: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        norm = nn.BatchNorm2d(8)
        norm.running_mean.uniform_(-0.3, 0.3)
        norm.running_var.uniform_(0.05, 0.3)
        self.body, self.head = nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.ReLU()), nn.Linear(8, 5)
        self.scale, self.make = nn.Parameter(torch.tensor(2.0)), make
        self.eval()

    def forward(self, x: torch.Tensor) -> Any:
        color = x[:, None].expand(-1, 3, -1, -1) if x.ndim == 3 else x
        f = self.body(color.reshape(-1, 3, *x.shape[-2:]))
        return self.make(x, f, self.head(f.mean((2, 3))))


DARK = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
BRIGHT = torch.cat([DARK, DARK[:1] + 4])


def found(x: torch.Tensor, f: torch.Tensor, z: torch.Tensor) -> dict[str, torch.Tensor]:
    """Bright positions of the whole batch in one array, with the number of their image: none on dark images."""
    bright = x.mean(1) > 3
    return {"logits": z, "positions": bright.nonzero().float()}


def counted(x: torch.Tensor, f: torch.Tensor, z: torch.Tensor) -> dict[str, Any]:
    return {"logits": z, "count": (x > 3).sum()}


def as_number(x: torch.Tensor, f: torch.Tensor, z: torch.Tensor) -> dict[str, Any]:
    return {"logits": z, "count": int((x > 3).sum())}


def as_text(x: torch.Tensor, f: torch.Tensor, z: torch.Tensor) -> dict[str, Any]:
    return {"logits": z, "kind": "bright" if (x > 3).any() else "dark"}


@pytest.mark.parametrize("make", [found, counted, as_number, as_text])
@pytest.mark.parametrize("recipe", ["auto", "shift", "ops"])
def test_what_is_computed_from_all_rows_is_refused(make: Any, recipe: str) -> None:
    adapted = sita.adapt(Heads(make), recipe, example=DARK)
    assert adapted(DARK)["logits"].shape == (2, 5)
    with pytest.raises(OutputError, match=r"a constant in the probe, and differs .*one entry per image"):
        adapted(BRIGHT)


def test_an_array_that_was_empty_may_not_fill_for_images_of_another_size() -> None:
    adapted = sita.adapt(Heads(found), example=DARK)
    with pytest.raises(OutputError, match="positions was a constant"):
        adapted(nn.functional.pad(BRIGHT, (0, 8)))


def test_constants_may_depend_on_the_size_and_follow_the_source_after_adapting_again() -> None:
    model = Heads(lambda x, f, z: {"logits": z, "anchors": torch.arange(f.shape[-1]), "scale": model.scale.exp()})
    adapted = sita.adapt(model, example=DARK)
    assert len(adapted(nn.functional.pad(DARK, (0, 8)))["anchors"]) == 22
    assert torch.equal(adapted(DARK)["scale"], model.scale.exp())
    model.scale.data += 1
    with pytest.raises(OutputError, match=r"scale .*adapt again, if the source's weights have changed"):
        adapted(DARK)
    assert torch.equal(sita.adapt(model)(DARK)["scale"], model.scale.exp())


def test_outputs_padded_to_the_largest_need_one_run() -> None:
    """How many positions are kept depends on the batch: the rounds of a call have different sizes."""

    def kept(x: torch.Tensor, f: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        count = 1 + int((x.mean(1) > 3).sum((1, 2)).max())
        return f.flatten(2).transpose(1, 2)[:, :count]

    adapted = sita.adapt(Heads(kept), "shift", example=DARK, max_rows=1)
    with pytest.raises(OutputError, match="a larger max_rows"):
        adapted(BRIGHT)
    assert sita.adapt(Heads(kept), "shift", example=DARK, max_rows=8)(BRIGHT).shape == (3, 196, 8)


@dataclass(slots=True)
class Slots:
    logits: torch.Tensor


def test_dicts_with_defaults_and_dataclasses_with_slots() -> None:
    model = Heads(lambda x, f, z: defaultdict(list, logits=z))
    wanted = sita.adapt(Heads(lambda x, f, z: z))(DARK)
    assert torch.equal(sita.adapt(model)(DARK)["logits"], wanted)
    assert torch.equal(sita.adapt(Heads(lambda x, f, z: Slots(z)))(DARK).logits, wanted)


@pytest.mark.parametrize("frames", [True, False], ids=["frames", "no channel axis"])
def test_keypoints_of_images_with_other_axes_are_no_logits(frames: bool) -> None:
    """Their rank is that of the images, of which no axis holds classes."""
    shape = (4, 4, 2) if frames else (4, 2)
    model = Heads(lambda x, f, z: f.mean((2, 3)).reshape(-1, *shape) - 1)
    x = torch.rand(3, 4, 3, 16, 16) if frames else torch.rand(3, 16, 16)
    with pytest.warns(sita.SitaWarning, match="class axis of scores .* is unclear"):
        adapted = sita.adapt(model, example=x)
    rows = model(x), sita.adapt(model, sita.Recipe(priors=sita.ByShift(strength=1.0), n_views=0))(x)
    for answer, *candidates in zip(adapted(x), *rows, strict=True):
        assert any(torch.allclose(answer, row, atol=1e-6) for row in candidates)


def test_other_heads_that_are_averaged_are_named() -> None:
    adapted = sita.adapt(Heads(lambda x, f, z: {"logits": z, "aux": z - 1, "size": torch.ones(2)}), example=DARK)
    assert "class logits in logits, classes on axis -1; averages aux, too" in str(sita.describe(adapted))


def test_large_class_ids_that_random_images_share_are_not_averaged() -> None:
    model = Heads(lambda x, f, z: torch.stack([z.amax(1) - 9, z.argmax(1) * 0 + 750.0], 1))
    with pytest.warns(sita.SitaWarning, match="holds whole numbers at index 1"):
        adapted = sita.adapt(model, example=DARK)
    assert adapted(DARK)[:, 1].tolist() == [750, 750]


def test_a_module_without_a_forward_names_the_network_inside() -> None:
    class Pipeline(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Heads(lambda x, f, z: z)

        def predict(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x).argmax(1)

    pipeline = Pipeline().eval()
    with pytest.raises(sita.SitaError, match=r"no forward.*Try: pipeline.net = sita.adapt\(pipeline.net\)"):
        sita.adapt(pipeline)
    pipeline.net = sita.adapt(pipeline.net)
    assert pipeline.predict(DARK).shape == (2,)
