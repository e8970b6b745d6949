"""observe and cascade: what was decided, and who needs deciding."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from nets import CLASSES, dense, featured, images, small
from torch import nn

import sita_adapters as sita


def test_unobserved_calls_compute_nothing_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operators that run are the same before, and after, something was observed; none is there for watching."""
    adapted, x = sita.adapt(small(), "ops"), images(2, 3, 16, 16)

    def operators() -> list[str]:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            adapted(x)
        return [event.name for event in profile.events()]

    adapted(x)  # the trial is over
    before = operators()
    with sita.observe(adapted):
        watched = operators()
    assert operators() == before
    assert len(watched) > len(before)
    monkeypatch.setattr("sita_adapters.candidates.record_vote", None)
    adapted(x)


def test_only_the_observed_model_is_heard() -> None:
    model, x = small(), images(1, 3, 16, 16)
    one, other = sita.adapt(model, "ops"), sita.adapt(model, "ops")
    with sita.observe(one) as seen:
        other(x)
        copy.deepcopy(one)(x)
        one(x)
    one(x)
    assert len(seen) == 1


def test_a_compiled_model_cannot_be_observed() -> None:
    adapted = sita.adapt(small(), "ops")
    with pytest.raises(sita.NotObservedError, match=r"torch\.compile"), sita.observe(torch.compile(adapted)):
        pass


@pytest.mark.slow
def test_a_compiled_model_hears_or_says_that_it_cannot() -> None:
    """Compiled before it was observed, too: silence would look like no traffic."""
    torch._dynamo.reset()
    adapted, x = sita.adapt(small(), "ops"), images(1, 3, 16, 16)
    compiled = torch.compile(adapted, backend="eager", fullgraph=True)
    compiled(x)
    with sita.observe(adapted), pytest.raises(Exception, match="observed while it is compiled"):
        compiled(x)


def entropies(logits: torch.Tensor) -> torch.Tensor:
    log_p = logits.double().log_softmax(1)
    found = -(log_p.exp() * log_p).sum(1)
    return found if found.ndim == 1 else found.flatten(1).mean(1)


class TestCascade:
    """Adapt only what the source model is unsure of."""

    def test_structures_pixels_and_nan(self) -> None:
        model, x = featured(lambda s, f: {"logits": s, "features": f, "note": "n"}), images(4, 3, 16, 16)
        x[2] = float("nan")
        adapted = sita.adapt(model, "ops")
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
        pixels = sita.cascade(dense(), sita.adapt(dense(), "ops", task="segmentation"), entropy=0.5)
        assert pixels(images(3, 3, 16, 16)).shape == (3, CLASSES, 16, 16)

    def test_it_is_pickled_and_counts_in_threads(self) -> None:
        model, x = small(), images(2, 3, 16, 16)
        fast = sita.cascade(model, sita.adapt(model, "ops"), entropy=0.0)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: fast(x), range(12)))
        assert fast.tally.images == fast.tally.adapted == 24
        again = pickle.loads(pickle.dumps(fast))
        torch.testing.assert_close(again(x), fast(x))
        assert again.tally.images == 26

    def test_a_pipeline_finds_the_models_attributes(self) -> None:
        model = small()
        model.config = {"a": 1}
        fast = sita.cascade(model, sita.adapt(model, "ops"), entropy=0.1)
        assert fast.config == {"a": 1}
        assert fast.bn1 is model.bn1
        with pytest.raises(AttributeError, match="nothing"):
            _ = fast.nothing
        with pytest.raises(AttributeError, match=r"source model alone.*cascade\.model\.forward_features"):
            fast.forward_features(images(1, 3, 16, 16))
        with sita.observe(fast) as seen:
            sita.cascade(model, fast.adapted, entropy=0.0)(images(2, 3, 16, 16))
        assert len(seen) == 2

    def test_what_is_refused(self) -> None:
        model = small()
        adapted = sita.adapt(model, "ops")
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
