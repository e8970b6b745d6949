"""What models return, and what they take beside the image."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch_reference
from nets import CLASSES, SmallNet, dense, featured, images, small
from torch import nn
from torch_reference import assert_answers
from transformers.modeling_outputs import ImageClassifierOutputWithNoAttention

import sita_adapters as sita
from sita_adapters.errors import InputError, OutputError, RecipeError
from sita_adapters.shift import ByShift

Pair = namedtuple("Pair", "features logits")


@dataclass
class Record:
    logits: torch.Tensor
    hidden: list[torch.Tensor]
    note: str = "a note"
    later: Any = field(init=False, default=None)


@dataclass(frozen=True)
class FrozenRecord:
    out: torch.Tensor
    hidden: torch.Tensor


STRUCTURES = {
    "tuple": (lambda s, f: (s, f), {"output": 0}, lambda o: (o[0], o[1])),
    "list": (lambda s, f: [f, s], {"output": -1}, lambda o: (o[1], o[0])),
    "one in a tuple": (lambda s, f: (s,), {}, lambda o: (o[0], None)),
    "OrderedDict": (lambda s, f: OrderedDict(out=s, aux=f), {}, lambda o: (o["out"], o["aux"])),
    "named tuple": (lambda s, f: Pair(f, s), {}, lambda o: (o.logits, o.features)),
    "dataclass": (lambda s, f: Record(s, [f]), {}, lambda o: (o.logits, o.hidden[0])),
    "frozen dataclass": (FrozenRecord, {}, lambda o: (o.out, o.hidden)),
    "ModelOutput": (
        lambda s, f: ImageClassifierOutputWithNoAttention(logits=s, hidden_states=(f,)),
        {},
        lambda o: (o.logits, o.hidden_states[0]),
    ),
}


@pytest.mark.parametrize("recipe", ["augbn", "ops"])
@pytest.mark.parametrize("name", list(STRUCTURES))
def test_outputs_come_back_in_the_same_type(name: str, recipe: str) -> None:
    make, extra, read = STRUCTURES[name]
    x = images(3, 3, 16, 16)
    model = featured(make)
    given = model(x)
    answer = sita.adapt(model, recipe, **extra)(x)
    assert type(answer) is type(given)
    scores, features = read(answer)
    torch.testing.assert_close(scores, sita.adapt(small(), recipe)(x), atol=1e-6, rtol=1e-6)
    if features is not None:
        assert features.shape == read(given)[1].shape
    if name == "dataclass":
        assert (answer.note, answer.later) == ("a note", None)


def test_what_has_no_rows_passes_through() -> None:
    constant = torch.arange(5)
    model = featured(lambda s, f: {"logits": s, "anchors": constant, "size": (16, 16), "nothing": None})
    answer = sita.adapt(model, "ops")(images(2, 3, 16, 16))
    assert torch.equal(answer["anchors"], constant)
    assert (answer["size"], answer["nothing"]) == ((16, 16), None)


class Opaque:
    def __init__(self, scores: torch.Tensor) -> None:
        self.scores = scores


BAD = {
    "a loss": (lambda s, f: {"loss": s.sum(), "logits": s}, {}, r"loss.*whole batch.*without labels"),
    "opaque": (lambda s, f: Opaque(s), {}, "type Opaque.*Try"),
    "opaque within": (lambda s, f: {"logits": s, "extra": [Opaque(f)]}, {}, r"type Opaque at extra\[0\]"),
    "nothing at all": (lambda s, f: None, {}, "one entry per image"),
    "merged": (lambda s, f: {"logits": s.sum(0, keepdim=True), "f": f}, {}, "logits.*whole batch"),
    "folded": (lambda s, f: {"logits": s, "f": f.flatten(0, 1)}, {}, r"one entry.*f"),
    "labels in a list": (
        lambda s, f: {"logits": s, "labels": s.argmax(1).tolist()},
        {},
        "different non-tensor values",
    ),
    "similarities": (lambda s, f: (s, s @ s.t()), {}, r"one entry.*\[1\]"),
    "a selection": (lambda s, f: (s, s[s[:, 0] > s[:, 0].mean()]), {}, r"\[1\]|different parts"),
}


@pytest.mark.parametrize("case", list(BAD))
def test_outputs_that_cannot_be_voted_on(case: str) -> None:
    make, extra, words = BAD[case]
    with pytest.raises(OutputError, match=words):
        sita.adapt(featured(make), "ops", **extra)(images(2, 3, 16, 16))


AXES: dict[str, tuple[Any, Any]] = {
    "a constant": (lambda s, f: (s, torch.ones(3, 2)), lambda a, s: torch.equal(a[1], torch.ones(3, 2))),
    "a scale": (lambda s, f: {"logits": s, "scale": torch.tensor(2.0)}, lambda a, s: a["scale"] == 2),
    "stacked": (lambda s, f: torch.stack([s, 2 * s]), lambda a, s: torch.allclose(a, torch.stack([s, 2 * s]))),
    "time first": (lambda s, f: s.t()[:, :, None], lambda a, s: torch.allclose(a, s.t()[:, :, None])),
    "twice": (lambda s, f: {"out": s, "more": [s]}, lambda a, s: torch.equal(a["out"], a["more"][0])),
}


@pytest.mark.parametrize(("count", "max_rows"), [(1, None), (2, 3), (3, None), (3, 3)])
@pytest.mark.parametrize("case", AXES)
def test_the_axis_of_the_images_is_found(case: str, count: int, max_rows: int | None) -> None:
    make, check = AXES[case]
    x = images(count, 3, 16, 16)
    assert check(sita.adapt(featured(make), "augbn", max_rows=max_rows)(x), sita.adapt(small(), "augbn")(x))


HEADS: dict[str, tuple[Any, str | None, dict[str, Any]]] = {
    "logits": (lambda s: s, "logits", {}),
    "log_softmax": (lambda s: s.log_softmax(1), "log_probabilities", {}),
    "softmax": (lambda s: s.softmax(1), "probabilities", {}),
    "an embedding in the unit interval": (lambda s: s.sigmoid(), None, {}),
    "named sigmoids": (lambda s: s.sigmoid(), "sigmoid_probabilities", {"scores": "sigmoid_probabilities"}),
    "one number": (lambda s: s[:, :1], None, {}),
}


@pytest.mark.parametrize("head", HEADS)
def test_every_head_is_mixed_as_what_it_is(head: str) -> None:
    """Against the float64 reference."""
    activate, kind, settings = HEADS[head]
    model, x = featured(lambda s, f: activate(s)), images(3, 3, 16, 16)
    adapted = sita.adapt(model, **settings)
    assert_answers(adapted(x), torch_reference.answers(model, x, kind=kind))
    assert sita.describe(adapted).scores == kind


def test_a_mix_leaves_constants_and_mixes_auxiliary_heads() -> None:
    model = featured(lambda s, f: {"logits": s, "anchors": torch.arange(5.0), "size": 16, "half": s / 2})
    x = images(3, 3, 16, 16)
    answer = sita.adapt(model)(x)
    expected = torch_reference.answers(small(), x)
    assert_answers(answer["logits"], expected)
    assert_answers(answer["half"], expected / 2)
    assert torch.equal(answer["anchors"], torch.arange(5.0))
    assert answer["size"] == 16


def test_beside_other_outputs_one_row_supplies_everything() -> None:
    """The scores and the features of an image come from the same row, which the confidences decide."""
    model = featured(lambda s, f: {"logits": 4 * s, "features": f})
    x = torch.cat([images(4, 3, 16, 16), 3 + 2 * images(4, 3, 16, 16, seed=1)])
    answer = sita.adapt(model)(x)
    assert_answers(answer["logits"], torch_reference.answers(featured(lambda s, f: 4 * s), x, whole=True))
    rows = sita.adapt(model, "source")(x), sita.adapt(model, "shift", priors=ByShift(strength=1.0))(x)
    gaps = torch.stack([(answer["logits"] - row["logits"]).abs().amax(1) for row in rows])
    chosen = gaps.argmin(0)
    assert set(chosen.tolist()) == {0, 1}
    features = torch.stack([row["features"] for row in rows])[chosen, torch.arange(len(x))]
    torch.testing.assert_close(answer["features"], features, atol=1e-5, rtol=1e-5)


class Masked(SmallNet):
    """Takes a mask and a scale beside the image."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor, *, gain: Any = 1.0, bias: Any = None) -> torch.Tensor:
        assert mask.shape[0] == x.shape[0]
        scores = self.head((self.forward_features(x * mask[:, None])).mean((2, 3))) * gain
        return scores if bias is None else scores + bias


def test_companions_are_expanded_with_the_image() -> None:
    model = Masked()
    model.load_state_dict(small().state_dict())
    model.eval()
    x, mask, bias = images(3, 3, 16, 16), torch.ones(3, 16, 16), torch.randn(3, CLASSES)
    adapted, expected = sita.adapt(model), sita.adapt(small())(x)
    torch.testing.assert_close(adapted(x, mask), expected)
    torch.testing.assert_close(adapted(x, mask=mask, gain=torch.tensor(1.0)), expected)
    masks = torch.rand(3, 16, 16)
    whole = adapted(x, masks, bias=bias)
    alone = [adapted(x[[i]], masks[[i]], bias=bias[[i]]) for i in range(3)]
    torch.testing.assert_close(whole, torch.cat(alone), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(sita.adapt(model, max_rows=2)(x, masks, bias=bias), whole, atol=1e-5, rtol=1e-5)


class Scaled(SmallNet):
    """Takes things that are not the batch's beside the image."""

    def forward(
        self, x: torch.Tensor, weights: torch.Tensor, mask: torch.Tensor, more: Any = ()
    ) -> dict[str, torch.Tensor]:
        for extra in more:
            x = x * extra
        scores = self.head(self.forward_features(x * mask).mean((2, 3))) * weights
        return {"logits": scores, "weights": weights[None], "again": scores}


def test_only_what_is_the_batchs_goes_along_whatever_the_batch() -> None:
    """Class weights as many as images of a round; a mask that all share; masks in a list; one tensor named twice."""
    model = Scaled()
    model.load_state_dict(small().state_dict())
    model.eval()
    x, weights = images(14, 3, 16, 16), torch.linspace(0.5, 2, CLASSES)
    mask = (torch.rand(1, 1, 16, 16, generator=torch.Generator().manual_seed(0)) > 0.3).float()
    arguments = {"weights": weights, "mask": mask, "more": [mask]}
    whole = sita.adapt(model)(x, **arguments)
    bounded = sita.adapt(model, max_rows=CLASSES * 2)(x, **arguments)
    assert whole["weights"].shape == bounded["weights"].shape == (1, CLASSES)
    torch.testing.assert_close(bounded["logits"], whole["logits"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(whole["again"], whole["logits"])
    masked = sita.adapt(small())(x * mask)
    one = torch.ones(CLASSES)
    for batch in (slice(None), slice(0, 1)):
        alone = sita.adapt(model)(x[batch], one, mask, more=[mask])["logits"]
        torch.testing.assert_close(alone, masked[batch], atol=1e-5, rtol=1e-5)


def test_an_image_by_name_comes_before_other_tensors() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = small()

        def forward(self, mask: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
            return self.net(image * mask)

    x, mask = images(2, 3, 16, 16), torch.ones(2, 1, 16, 16)
    with pytest.raises(InputError, match="would not move with the pixels"):
        sita.adapt(Named().eval(), "augbn", augment="hflip")(mask, image=x)
    torch.testing.assert_close(sita.adapt(Named().eval())(mask, image=x), sita.adapt(small())(x))


def test_one_label_without_a_class_axis() -> None:
    model = featured(lambda s, f: {"logits": s[:, 0], "features": f})
    x = images(3, 3, 16, 16)
    answer = sita.adapt(model, "ops", scores="sigmoid")(x)
    with_axis = sita.adapt(featured(lambda s, f: s[:, :1]), "ops", scores="sigmoid")(x)
    torch.testing.assert_close(answer["logits"], with_axis[:, 0])


def test_a_part_can_be_named_by_its_path() -> None:
    model = featured(lambda s, f: {"heads": {"a": s, "b": 2 * s}})
    x = images(2, 3, 16, 16)
    torch.testing.assert_close(
        sita.adapt(model, "ops", output="heads.a")(x)["heads"]["a"], sita.adapt(small(), "ops")(x)
    )


def test_a_type_that_cannot_be_made_again_is_refused() -> None:
    class Odd(tuple):
        def __new__(cls, first: Any, second: Any) -> Any:
            return super().__new__(cls, (first, second))

    with pytest.raises(OutputError, match="Odd, which cannot be rebuilt"):
        sita.adapt(featured(Odd), "ops", output=0)(images(1, 3, 16, 16))


class TestMaxRows:
    """Fewer rows at once, the same answers."""

    def test_a_trace_would_keep_the_rounds_of_its_example(self) -> None:
        x = images(4, 3, 16, 16)
        adapted = sita.adapt(small(), "ops", max_rows=22, example=x)
        with pytest.raises(RecipeError, match="trace"):
            torch.jit.trace(adapted, x)

    @pytest.mark.parametrize("recipe", ["source", "augbn", "ops", "ops_shared", "ensemble"])
    def test_no_more_rows_run_at_once(self, recipe: str) -> None:
        model, x, rows = small(), images(3, 3, 16, 16), []
        adapted = sita.adapt(model, recipe, max_rows=4, example=x)
        adapted.stem.register_forward_pre_hook(lambda _, args: rows.append(args[0].shape[0]))
        torch.testing.assert_close(adapted(x), sita.adapt(model, recipe)(x), atol=1e-5, rtol=1e-5)
        assert 0 < max(rows) <= 4

    def test_segmentation(self) -> None:
        model, x = dense(), images(3, 3, 16, 16)
        whole, parts = (sita.adapt(model, "ops", task="segmentation", max_rows=rows)(x) for rows in (None, 5))
        assert (parts.argmax(1) == whole.argmax(1)).float().mean() > 0.995  # but for entropies that are all but equal

    @pytest.mark.slow
    def test_it_compiles(self) -> None:
        torch._dynamo.reset()
        x = images(2, 3, 16, 16)
        adapted = sita.adapt(small(), "ops", max_rows=8, example=x)
        torch.testing.assert_close(torch.compile(adapted, backend="eager")(x), adapted(x), atol=1e-5, rtol=1e-5)
