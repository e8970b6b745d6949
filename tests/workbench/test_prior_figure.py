"""The figure of what `sita.observe` recorded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from nets import images, small

import sita_adapters as sita
from sita_workbench.report.prior_figure import draw_observation


def test_every_prior_has_a_bar_of_its_share(tmp_path: Path) -> None:
    adapted = sita.adapt(small(), "ops", priors=(0.5, 0.75, 1.0))
    with sita.observe(adapted) as seen:
        adapted(images(6, 3, 16, 16))
    figure = draw_observation(seen)
    shares = list(seen.summary().chosen.values())
    np.testing.assert_allclose([bar.get_height() for bar in figure.axes[0].patches], [100 * each for each in shares])
    figure.savefig(tmp_path / "priors.png")
    assert (tmp_path / "priors.png").read_bytes()[:4] == b"\x89PNG"


def test_a_rule_beside_the_source_is_one_of_the_bars() -> None:
    adapted = sita.adapt(small(), sita.Recipe(priors=(1.0, sita.ByShift(strength=0.9)), n_views=0))
    with sita.observe(adapted) as seen:
        adapted(images(3, 3, 16, 16))
    assert len(draw_observation(seen).axes[0].patches) == 2


def test_a_single_rule_is_drawn_over_depth() -> None:
    adapted = sita.adapt(small(), "shift")
    with sita.observe(adapted) as seen:
        adapted(images(3, 3, 16, 16))
    (axes,) = draw_observation(seen).axes
    np.testing.assert_allclose(axes.lines[0].get_ydata(), np.median(seen.layer_priors[:, 0], axis=0))


def test_nothing_observed_is_an_error() -> None:
    with sita.observe(sita.adapt(small(), "ops")) as seen:
        pass
    with pytest.raises(sita.SitaError):
        draw_observation(seen)
