"""observe: what the candidates decided."""

from __future__ import annotations

import pytest
import torch
from nets import images, small

import sita_adapters as sita


def test_unobserved_calls_compute_nothing_for_it() -> None:
    """The operators that run are the same before, and after, something was observed; none is there for watching."""
    adapted, x = sita.adapt(small(), "ops"), images(2, 3, 16, 16)

    def operators() -> list[str]:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            adapted(x)
        return [event.name for event in profile.events()]

    adapted(x)  # probed
    before = operators()
    with sita.observe(adapted):
        watched = operators()
    assert operators() == before
    assert len(watched) > len(before)


def test_a_compiled_model_cannot_be_observed() -> None:
    adapted = sita.adapt(small(), "ops")
    with pytest.raises(sita.SitaError, match=r"torch\.compile"), sita.observe(torch.compile(adapted)):
        pass


@pytest.mark.slow
def test_a_compiled_model_hears_or_says_that_it_cannot() -> None:
    """Compiled before it was observed, too: silence would look like no traffic."""
    torch._dynamo.reset()
    x = images(1, 3, 16, 16)
    adapted = sita.adapt(small(), "ops", example=x)
    compiled = torch.compile(adapted, backend="eager", fullgraph=True)
    compiled(x)
    with sita.observe(adapted), pytest.raises(Exception, match="observed during compilation"):
        compiled(x)
