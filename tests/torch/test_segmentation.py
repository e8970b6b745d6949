"""Dense prediction: every place votes for itself; views for segmentation."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import torch
from nets import CLASSES, DenseNet, dense, images, small, warm
from sita_torch.arrays import TORCH
from torch import nn

import sita_adapters as sita
from sita_adapters.plan import make_plan
from sita_adapters.recipe import PAPER_PRIORS, read_recipe
from sita_adapters.view_steps import Canvas
from sita_adapters.views import SYMMETRIES

SHAPES = {2: (3, 16, 16), 3: (3, 6, 16, 16)}


def pictures(dimensions: int, count: int = 2) -> torch.Tensor:
    if dimensions == 1:
        return images(count, 3, 10, 20).flatten(2)
    return images(count, *SHAPES[dimensions])


def view(name: str, dimensions: int):
    """A lossless view, by torch's own functions."""
    return {
        "rot90": lambda x: torch.rot90(x, 1, (-2, -1)),
        "rot270": lambda x: torch.rot90(x, 3, (-2, -1)),
        "hflip": lambda x: x.flip(-1),
    }[name]


@pytest.mark.parametrize("recipe", ["augbn", "ops", "ops_shared"])
@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_every_place_votes_as_a_loop_in_float64(dimensions: int, recipe: str) -> None:
    model, x = dense(dimensions), pictures(dimensions)
    names = ["hflip"] if dimensions == 1 else ["rot90", "rot270"]
    said = sita.adapt(model, recipe, **({} if recipe == "augbn" else {"top_k": 3}))(x)
    assert said.shape == model(x).shape
    views = [lambda x: x, *(view(name, dimensions) for name in names)]
    if recipe == "augbn":
        rows, answers = reference.augbn_rows(0.8, len(names)), [0]
    else:
        make = reference.ops_rows if recipe == "ops" else reference.shared_rows
        rows, answers = make(PAPER_PRIORS, len(names))
    close_calls = 0
    for image, found in zip(x, said, strict=True):
        outputs = reference.run_rows(model, image, views, rows)
        candidates = np.stack([outputs[row].numpy() for row in answers])
        for place in np.ndindex(*candidates.shape[2:]):
            each = candidates[(slice(None), slice(None), *place)]
            if recipe != "augbn" and _is_close_call(each):
                close_calls += 1
                continue
            expected = each[0] if recipe == "augbn" else reference.vote(each, top_k=3)
            np.testing.assert_allclose(found[(slice(None), *place)].numpy(), expected, atol=2e-5)
    assert close_calls < 0.02 * said[:, 0].numel()


def _is_close_call(candidates: np.ndarray) -> bool:
    """Whether rounding may decide: which candidates are kept, which of them leads a tie, or what one of them says."""
    entropies = np.array([reference.entropy(list(z)) for z in candidates])
    order = np.argsort(entropies)
    gaps = np.diff(entropies[order])
    margins = np.diff(np.sort(candidates[order[:3]], axis=1)[:, -2:], axis=1)
    all_differ = len(set(candidates[order[:3]].argmax(1).tolist())) == 3
    return bool(gaps[2] < 1e-6 or margins.min() < 1e-5 or (all_differ and gaps[:2].min() < 1e-6))


def test_places_vote_independently() -> None:
    """A dense model without any exchange between places equals a classifier of each place."""
    model, x = dense(), pictures(2, 1)
    adapted = sita.adapt(model, "ops_shared")
    with sita.observe(adapted) as seen:
        adapted(x)
    assert seen.entropies.shape == (1, 8, 16, 16)
    assert seen.priors.shape == (1, 16, 16)
    assert len(set(seen.priors.ravel().tolist())) > 1


@pytest.mark.parametrize("recipe", sita.RECIPES)
def test_every_recipe_runs_on_segmentation(recipe: str) -> None:
    model, x = dense(), pictures(2)
    adapted = sita.adapt(model, recipe, task="segmentation")
    said = adapted(x)
    assert said.shape == model(x).shape
    torch.testing.assert_close(adapted(x[1:])[0], said[1], atol=1e-5, rtol=0)


def test_the_tasks_views() -> None:
    """One mirrored view, unless others are asked for; "paper" is its blur and rotation of at most 10°."""

    def views(changes: dict[str, object], recipe: object = "augbn") -> list[str]:
        return [v.name for v in make_plan(read_recipe(recipe, changes, "segmentation")).views[1:]]

    assert views({}) == ["hflip"]
    assert views({"n_views": 3}) == ["hflip", "vflip", "rot180"]
    assert views({"augment": "lossless"}) == ["rot90", "rot270"]
    assert views({"augment": "transpose"}) == ["transpose"]
    assert views({}, sita.Recipe(augment=["rot90", "hflip"])) == ["rot90", "hflip"]
    assert read_recipe("bn", {}, "segmentation") == sita.RECIPES["bn"]
    (_, drawn) = make_plan(read_recipe("augbn", {"augment": "paper"}, "segmentation")).views
    assert sorted(type(step).__name__ for step in drawn.steps) == ["Blur", "Rotate"]
    assert all(-10 <= step.degrees <= 10 for step in drawn.steps if hasattr(step, "degrees"))
    with pytest.raises(sita.RecipeError, match=r"task.*'segmentation'; received 'detection'"):
        sita.adapt(dense(), task="detection")


def test_an_ensemble_takes_only_views_that_keep_pixels_in_place() -> None:
    model, x = dense(), pictures(2)
    with pytest.raises(sita.RecipeError, match=r"move the pixels: rot90, rot270.*augment='blur'"):
        sita.adapt(model, "ensemble", task="segmentation", augment="lossless")
    with pytest.raises(sita.OutputError, match=r"place by place.*task='segmentation'"):
        sita.adapt(model, "ensemble")(x)
    adapted = sita.adapt(model, "ensemble", task="segmentation")
    views = make_plan(read_recipe("ensemble", {}, "segmentation")).views
    canvas = Canvas(TORCH, -3, (-2, -1))
    expected = torch.stack([model(v.apply(x, canvas)).double().softmax(1) for v in views]).mean(0).log()
    torch.testing.assert_close(adapted(x).double(), expected, atol=1e-5, rtol=1e-5)


def test_lossless_views_of_an_oblong_image() -> None:
    model = dense()
    x = images(2, 3, 12, 20)
    assert sita.adapt(model, task="segmentation")(x).shape == (2, CLASSES, 12, 20)
    assert set(SYMMETRIES) >= {v.name for v in make_plan(sita.RECIPES["ops"], "oblong").views[1:]}


class TestSigmoid:
    """One logit, or several labels each true or not by itself."""

    @pytest.mark.parametrize("labels", [1, 4])
    @pytest.mark.parametrize("combine", ["vote", "mean"])
    def test_each_label_is_decided_as_two_classes(self, labels: int, combine: str) -> None:
        model = warm(_with_labels(labels), 3, 16, 16)
        x = images(3, 3, 16, 16)
        said = sita.adapt(model, scores="sigmoid", combine=combine)(x)
        assert said.shape == (3, labels)
        for label in range(labels):
            alone = _two_classes(model, label)
            two = sita.adapt(alone, combine=combine)(x)
            torch.testing.assert_close(said[:, label], two[:, 1] - two[:, 0], atol=1e-5, rtol=1e-5)

    def test_probabilities_agree_with_logits(self) -> None:
        model = warm(_with_labels(4), 3, 16, 16)
        x = images(3, 3, 16, 16)
        with_sigmoid = nn.Sequential(model, nn.Sigmoid()).eval()
        said = sita.adapt(with_sigmoid, scores="sigmoid_probabilities")(x)
        torch.testing.assert_close(said, sita.adapt(model, scores="sigmoid")(x).sigmoid(), atol=1e-6, rtol=1e-5)

    def test_pixels_with_a_sigmoid_each(self) -> None:
        model, x = dense(classes=1), pictures(2)
        adapted = sita.adapt(model, scores="sigmoid", task="segmentation")
        with sita.observe(adapted) as seen:
            assert adapted(x).shape == (2, 1, 16, 16)
        assert seen.priors.shape == (2, 1, 16, 16)
        assert set(np.unique(seen.answers)) <= {0, 1}

    def test_one_class_needs_it(self) -> None:
        with pytest.raises(sita.OutputError, match=r"two classes or more.*scores='sigmoid'"):
            sita.adapt(dense(classes=1))(pictures(2))


def _with_labels(labels: int) -> nn.Module:
    model = small()
    torch.manual_seed(3)
    model.head = nn.Linear(model.head.in_features, labels)
    model.head.weight.data.mul_(5)
    return model


def _two_classes(model: nn.Module, label: int) -> nn.Module:
    import copy

    alone = copy.deepcopy(model)
    alone.head = nn.Linear(model.head.in_features, 2)
    alone.head.weight.data = torch.stack(
        [torch.zeros_like(model.head.weight[label]), model.head.weight[label]]
    ).detach()
    alone.head.bias.data = torch.stack([torch.zeros(()), model.head.bias[label]]).detach()
    return alone.eval()


def test_dense_networks_can_be_compiled() -> None:
    torch._dynamo.reset()
    model, x = DenseNet().eval(), pictures(2)
    adapted = sita.adapt(warm(model, 3, 16, 16), "ops_shared")
    compiled = torch.compile(adapted, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), adapted(x), atol=1e-5, rtol=1e-5)
