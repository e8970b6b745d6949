"""observe and cascade: what was decided, and who needs deciding."""

from __future__ import annotations

import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
import torch
from nets import CLASSES, dense, images, small
from torch import nn

import sita_adapters as sita
from sita_adapters import observation
from sita_adapters.recipe import PAPER_PRIORS


def test_what_is_seen_is_what_the_candidates_said() -> None:
    model, x = small(), images(5, 3, 16, 16)
    adapted = sita.adapt(model, "ops")
    with sita.observe(adapted) as seen:
        first, second = adapted(x[:3]), adapted(x[3:])
    answer = torch.cat([first, second])
    candidates = (
        torch.stack([sita.adapt(model, "augbn", priors=p)(x) for p in PAPER_PRIORS], dim=1).detach().double().numpy()
    )
    assert len(seen) == 5
    assert seen.candidates == PAPER_PRIORS
    expected = np.array([[reference.entropy(list(z)) for z in each] for each in candidates])
    np.testing.assert_allclose(seen.entropies, expected, atol=1e-5)
    np.testing.assert_array_equal(seen.labels, candidates.argmax(2))
    np.testing.assert_array_equal(seen.answers, answer.argmax(1).numpy())
    np.testing.assert_array_equal(seen.priors, np.array(PAPER_PRIORS)[expected.argmin(1)])
    assert (seen.kept.sum(1) == 3).all()
    for image in range(5):
        kept = np.flatnonzero(seen.kept[image])
        assert set(kept) == set(np.argsort(expected[image])[:3])
        for p in range(8):
            assert seen.votes[image, p] == sum(seen.labels[image, q] == seen.labels[image, p] for q in kept)


def test_the_summary_counts() -> None:
    adapted = sita.adapt(small(), "ops")
    with sita.observe(adapted) as seen:
        adapted(images(6, 3, 16, 16))
    summary = seen.summary()
    assert summary.images == 6
    assert sum(summary.chosen.values()) == pytest.approx(1)
    assert summary.mean_prior == pytest.approx(seen.priors.mean())
    assert summary.changed == pytest.approx((seen.labels[:, -1] != seen.answers).mean())
    agree = [all(seen.labels[i, p] == seen.answers[i] for p in np.flatnonzero(seen.kept[i])) for i in range(6)]
    assert summary.unanimous == pytest.approx(np.mean(agree))
    text = str(summary)
    assert "images         6" in text
    assert "not the source model's" in text


def test_the_plot_is_written(tmp_path: Path) -> None:
    adapted = sita.adapt(small(), "ops")
    with sita.observe(adapted) as seen:
        adapted(images(6, 3, 16, 16))
    figure = seen.plot(tmp_path / "priors.png")
    assert (tmp_path / "priors.png").read_bytes()[:4] == b"\x89PNG"
    assert len(figure.axes[0].patches) == len(PAPER_PRIORS)


@pytest.mark.parametrize("recipe", ["source", "bn", "augbn"])
def test_one_candidate_has_an_entropy_too(recipe: str) -> None:
    adapted = sita.adapt(small(), recipe)
    with sita.observe(adapted) as seen:
        answer = adapted(images(3, 3, 16, 16))
    assert seen.entropies.shape == (3, 1)
    expected = [reference.entropy(z.tolist()) for z in answer]
    np.testing.assert_allclose(seen.entropies[:, 0], expected, atol=1e-5)
    np.testing.assert_array_equal(seen.answers, answer.argmax(1).numpy())


def test_unobserved_calls_compute_nothing_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operators that run are the same before, and after, something was observed; none is there for watching."""
    adapted, x = sita.adapt(small(), "ops"), images(2, 3, 16, 16)

    def operators() -> list[str]:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            adapted(x)
        return [event.name for event in profile.events()]

    before = operators()
    with sita.observe(adapted):
        watched = operators()
    assert operators() == before
    assert len(watched) > len(before)
    monkeypatch.setattr(observation, "tell", None)
    monkeypatch.setattr("sita_torch.answers.tell", None)
    adapted(x)


def test_threads_see_their_own_calls_or_all() -> None:
    adapted, x = sita.adapt(small(), "ops_shared"), images(8, 3, 16, 16)
    alone = [adapted(x[i : i + 1]).argmax(1).item() for i in range(8)]
    ready = threading.Barrier(8)

    def run(image: int) -> tuple[int, list[int]]:
        ready.wait()
        with sita.observe(adapted) as seen:
            for _ in range(3):
                adapted(x[image : image + 1])
        return len(seen), seen.answers.tolist()

    with sita.observe(adapted, all_threads=True) as everything, sita.observe(adapted) as mine:
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(run, range(8)))
        adapted(x[:1])
    assert found == [(3, [label] * 3) for label in alone]
    assert (len(everything), len(mine)) == (25, 1)


def test_only_the_observed_model_is_heard() -> None:
    model, x = small(), images(1, 3, 16, 16)
    one, other = sita.adapt(model), sita.adapt(model)
    with sita.observe(one) as seen:
        other(x)
        copy.deepcopy(one)(x)
        one(x)
    one(x)
    assert len(seen) == 1


def test_what_cannot_be_observed() -> None:
    adapted = sita.adapt(small())
    with pytest.raises(sita.NotAdaptedError), sita.observe(small()):
        pass
    with sita.observe(adapted) as seen:
        pass
    with pytest.raises(sita.NotObservedError, match="Nothing was observed"):
        _ = seen.priors
    with pytest.raises(sita.NotObservedError, match=r"torch\.compile"), sita.observe(torch.compile(adapted)):
        pass
    model = sita.adapt(dense(), "ops_shared", task="segmentation")
    with sita.observe(model) as seen:
        model(images(1, 3, 16, 16))
        model(images(1, 3, 16, 20))
    with pytest.raises(sita.InputError, match="different sizes"):
        _ = seen.entropies
    assert len(seen) == 2


def test_a_compiled_model_hears_or_says_that_it_cannot() -> None:
    """Compiled before it was observed, too: silence would look like no traffic."""
    torch._dynamo.reset()
    adapted, x = sita.adapt(small()), images(1, 3, 16, 16)
    compiled = torch.compile(adapted, backend="eager", fullgraph=True)
    compiled(x)
    with sita.observe(adapted), pytest.raises(Exception, match="observed while it is compiled"):
        compiled(x)


def test_a_candidate_that_is_nan_is_the_least_certain() -> None:
    from sita_adapters.arrays import NUMPY

    from sita_adapters.voting import decide, entropy

    candidates = np.array([[[1.0, 2.0], [np.nan, 0.0], [3.0, 0.0]]])
    verdict = decide(candidates, top_k=2, combine="vote", scores="logits", class_axis=-1, arrays=NUMPY)
    assert verdict.entropies[0, 1, 0] == np.inf
    np.testing.assert_array_equal(verdict.kept[0, :, 0], [True, False, True])
    np.testing.assert_array_equal(verdict.scores, [[3.0, 0.0]])
    assert entropy(candidates[0], scores="sigmoid", class_axis=-1, xp=np)[1, 0] == np.inf


def entropies(logits: torch.Tensor) -> torch.Tensor:
    log_p = logits.double().log_softmax(1)
    found = -(log_p.exp() * log_p).sum(1)
    return found if found.ndim == 1 else found.flatten(1).mean(1)


class TestCascade:
    """Adapt only what the source model is unsure of."""

    def test_unsure_images_go_on(self) -> None:
        model, x = small(), images(9, 3, 16, 16)
        adapted = sita.adapt(model)
        plain, better = model(x), adapted(x)
        threshold = entropies(plain).sort().values[4].item() + 1e-4
        fast = sita.cascade(model, adapted, entropy=threshold)
        said = fast(x)
        unsure = entropies(plain) > threshold
        assert 0 < unsure.sum() < 9
        torch.testing.assert_close(said[unsure], better[unsure], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(said[~unsure], plain[~unsure])
        assert (fast.tally.images, fast.tally.adapted) == (9, int(unsure.sum()))
        assert str(fast.tally) == f"{int(unsure.sum())} of 9 images adapted ({100 * unsure.sum() / 9:.1f} %)"
        assert "images adapted" in repr(fast)
        fast.tally.reset()
        assert fast.tally.share == 0

    def test_the_ends_are_the_two_models(self) -> None:
        model, x = small(), images(3, 3, 16, 16)
        adapted = sita.adapt(model)
        torch.testing.assert_close(sita.cascade(model, adapted, entropy=100)(x), model(x))
        torch.testing.assert_close(sita.cascade(model, adapted, entropy=0)(x), adapted(x))

    def test_structures_pixels_and_nan(self) -> None:
        from test_outputs import featured

        model, x = featured(lambda s, f: {"logits": s, "features": f, "note": "n"}), images(4, 3, 16, 16)
        x[2] = float("nan")
        adapted = sita.adapt(model)
        threshold = entropies(model(x)["logits"])[[0, 1, 3]].median().item() + 1e-4
        fast = sita.cascade(model, adapted, entropy=threshold)
        said = fast(x)
        assert said["note"] == "n"
        unsure = ~(entropies(model(x)["logits"]) <= threshold)
        assert unsure[2]
        assert fast.tally.adapted == int(unsure.sum())
        for key in ("logits", "features"):
            expected = torch.where(unsure.reshape(-1, *[1] * (said[key].ndim - 1)), adapted(x)[key], model(x)[key])
            torch.testing.assert_close(said[key], expected, equal_nan=True, atol=1e-5, rtol=1e-5)
        pixels = sita.cascade(dense(), sita.adapt(dense(), task="segmentation"), entropy=0.5)
        assert pixels(images(3, 3, 16, 16)).shape == (3, CLASSES, 16, 16)

    def test_it_is_pickled_and_counts_in_threads(self) -> None:
        model, x = small(), images(2, 3, 16, 16)
        fast = sita.cascade(model, sita.adapt(model), entropy=0.0)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: fast(x), range(12)))
        assert fast.tally.images == fast.tally.adapted == 24
        again = pickle.loads(pickle.dumps(fast))
        torch.testing.assert_close(again(x), fast(x))
        assert again.tally.images == 26

    def test_a_pipeline_finds_the_models_attributes(self) -> None:
        model = small()
        model.config = {"a": 1}
        fast = sita.cascade(model, sita.adapt(model), entropy=0.1)
        assert fast.config == {"a": 1}
        assert fast.bn1 is model.bn1
        with pytest.raises(AttributeError, match="nothing"):
            _ = fast.nothing
        with pytest.raises(AttributeError, match=r"source model alone.*cascade\.model\.forward_features"):
            fast.forward_features(images(1, 3, 16, 16))
        with sita.observe(fast) as seen:
            sita.cascade(model, fast.adapted, entropy=0.0)(images(2, 3, 16, 16))
        assert len(seen) == 2

    @pytest.mark.parametrize("entropy", [-1, float("nan"), "0.1", True])
    def test_a_threshold_is_a_number(self, entropy: Any) -> None:
        with pytest.raises(sita.RecipeError, match="entropy: expected a number"):
            sita.cascade(small(), sita.adapt(small()), entropy=entropy)

    def test_what_is_refused(self) -> None:
        model = small()
        adapted = sita.adapt(model)
        with pytest.raises(sita.NotAdaptedError):
            sita.cascade(adapted, model, entropy=0.1)
        with pytest.raises(sita.AlreadyAdaptedError, match="plain source model"):
            sita.cascade(adapted, adapted, entropy=0.1)
        fast = sita.cascade(model, adapted, entropy=0.1)
        with pytest.raises(sita.SharedWeightsError):
            fast.train()
        with pytest.raises(sita.InputError, match="training mode"):
            sita.cascade(small().train(), adapted, entropy=0.1)(images(1, 3, 16, 16))
        half = small()
        half.bn1.train()
        with pytest.raises(sita.InputError, match="training mode"):
            sita.cascade(half, adapted, entropy=0.1)(images(2, 3, 16, 16))
        single = dense(classes=1)
        with pytest.raises(sita.OutputError, match=r"two classes or more.*sigmoid"):
            sita.cascade(single, sita.adapt(single, "augbn"), entropy=0.1)(images(2, 3, 16, 16))
        one = nn.Sequential(model, nn.Flatten(0)).eval()
        with pytest.raises(sita.OutputError, match=r"Expected scores \(N, classes"):
            sita.cascade(one, adapted, entropy=0.1)(images(2, 3, 16, 16))
