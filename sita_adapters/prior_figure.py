"""A picture of how often each prior was chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .observe import Summary

_INK, _FAINT, _BAR, _SOURCE = "#222222", "#6E6E6E", "#0072B2", "#9A9A9A"


def draw_priors(summary: Summary) -> Any:
    """Return a matplotlib Figure: a bar for every prior, from the lowest to the source model."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("A plot needs matplotlib. Remedy: pip install 'sita-adapters[bench]'.") from error
    figure = Figure(figsize=(7, 3.8), dpi=130, facecolor="white")
    axes = figure.subplots()
    figure.subplots_adjust(left=0.11, right=0.97, top=0.8, bottom=0.16)
    priors = list(summary.chosen)
    shares = [100 * share for share in summary.chosen.values()]
    colours = [_SOURCE if prior == 1.0 else _BAR for prior in priors]
    bars = axes.bar([f"{prior:.2f}" for prior in priors], shares, color=colours, width=0.75)
    axes.bar_label(bars, [f"{share:.0f}" for share in shares], padding=2, fontsize=9, color=_FAINT)
    axes.set_ylim(0, max(shares) * 1.15 + 1)
    axes.set_xlabel("λ of the most certain candidate (1.00 is the source model)", color=_INK)
    axes.set_ylabel("% chosen", color=_INK)
    axes.tick_params(length=0, labelcolor=_INK)
    axes.yaxis.grid(color="#E3E3E3")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    title = f"Chosen priors of {summary.images} {'image' if summary.images == 1 else 'images'}"
    figure.text(0.11, 0.92, title, fontsize=13, weight="bold", color=_INK)
    note = f"mean λ {summary.mean_prior:.2f}, mean entropy {summary.mean_entropy:.2f} nats"
    figure.text(0.11, 0.85, note, color=_FAINT)
    return figure
