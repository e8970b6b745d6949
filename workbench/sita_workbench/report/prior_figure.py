"""A figure of what `sita.observe` recorded: how often each prior was chosen, or λ over the depth of the network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sita_adapters.errors import install

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sita_adapters.observe import Observation, Summary

_INK, _FAINT, _BAR, _SOURCE = "#222222", "#6E6E6E", "#0072B2", "#9A9A9A"


def draw_observation(observation: Observation) -> Figure:
    """Draw how often each prior was chosen; if a rule sets the only one, λ over the layers.

    Args:
        observation: What `sita.observe` recorded.

    Returns:
        A matplotlib figure.

    Raises:
        ImportError: matplotlib is not installed.
        SitaError: No image was observed.

    Example:
        >>> with sita.observe(adapted) as observation:
        ...     adapted(images)
        >>> draw_observation(observation).savefig("priors.png")
    """
    if len(observation.candidates) == 1 and observation.layers:
        return _draw_layer_priors(observation.layers, observation.layer_priors[:, 0])
    return _draw_priors(observation.summary())


def _draw_priors(summary: Summary) -> Figure:
    """Draw a bar for every prior, from the lowest to the source model."""
    figure, axes = _figure()
    priors = list(summary.chosen)
    shares = [100 * share for share in summary.chosen.values()]
    colors = [_SOURCE if prior == 1.0 else _BAR for prior in priors]
    bars = axes.bar(
        [f"{prior:.2f}" if isinstance(prior, float) else str(prior) for prior in priors],
        shares,
        color=colors,
        width=0.75,
    )
    axes.bar_label(bars, [f"{share:.0f}" for share in shares], padding=2, fontsize=9, color=_FAINT)
    axes.set_ylim(0, max(shares) * 1.15 + 1)
    axes.set_xlabel("λ of the most confident candidate (1.00 is the source model)", color=_INK)
    axes.set_ylabel("% chosen", color=_INK)
    title = f"Chosen priors of {summary.images} {'image' if summary.images == 1 else 'images'}"
    _title(figure, title, f"mean λ {summary.mean_prior:.2f}, mean entropy {summary.mean_entropy:.2f} nats")
    return figure


def _draw_layer_priors(layers: tuple[str, ...], priors: np.ndarray) -> Figure:
    """Draw λ (N, L) over the depth of the network: its median, and the range of 80 % of the images."""
    figure, axes = _figure()
    low, middle, high = np.quantile(priors, (0.1, 0.5, 0.9), axis=0)
    depth = np.arange(1, len(layers) + 1)
    axes.fill_between(depth, low, high, color=_BAR, alpha=0.2, linewidth=0, label="80 % of the images")
    axes.plot(depth, middle, color=_BAR, marker="o", markersize=3, label="median")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylim(min(0.5, float(low.min()) - 0.02), 1.02)
    axes.set_xlabel(f"layer, from {layers[0]} to {layers[-1]}", color=_INK)
    axes.set_ylabel("λ (1 keeps the source's statistics)", color=_INK)
    axes.legend(frameon=False, fontsize=9, labelcolor=_INK)
    _title(
        figure,
        f"λ over depth, {len(priors)} {'image' if len(priors) == 1 else 'images'}",
        f"mean λ {priors.mean():.2f}",
    )
    return figure


def _figure() -> tuple[Figure, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"A figure needs matplotlib, which is not installed. Try: {install('bench')}.") from error
    figure = Figure(figsize=(7, 3.8), dpi=130, facecolor="white")
    axes = figure.subplots()
    figure.subplots_adjust(left=0.11, right=0.97, top=0.8, bottom=0.16)
    axes.tick_params(length=0, labelcolor=_INK)
    axes.yaxis.grid(color="#E3E3E3")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    return figure, axes


def _title(figure: Figure, title: str, note: str) -> None:
    figure.text(0.11, 0.92, title, fontsize=13, weight="bold", color=_INK)
    figure.text(0.11, 0.85, note, color=_FAINT)
