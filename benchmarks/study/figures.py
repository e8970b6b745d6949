"""The figures of the study: gain against loss, gain against rows, and gain by kind of corruption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sita_workbench.report.chart_style import FAINT, GRID, INK, looks_of

from .networks import NETWORKS

_SHOWN = ("bn", "shift", "bold", "auto", "augbn", "augbn, λ = 0.8", "ops")


def _figure(*args: Any, **kwargs: Any) -> Any:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    return plt.subplots(*args, layout="constrained", **kwargs)


def gains(network: dict[str, Any], severity: int) -> dict[str, dict[str, float]]:
    """Return each recipe's gain over the source at a severity: on the most pictures that it was run on."""
    found: dict[str, dict[str, float]] = {}
    for part in ("corrupted", "costly", "mirrored"):
        for name, method in network.get(part, {"methods": {}})["methods"].items():
            facts = method["severities"].get(str(severity))
            if facts and facts["gain"] and name not in found:
                found[name] = {**facts["gain"], "rows": method["rows"]}
    return found


def draw_trade(results: dict[str, Any], path: Path) -> None:
    """Draw what each recipe gains on corrupted images (severity 5) against what it loses on clean ones, by network."""
    figure, panels = _figure(2, 4, figsize=(12, 6.4))
    looks = looks_of(_SHOWN)
    for axes, (name, network) in zip(panels.flat, results.items(), strict=False):
        clean = network["clean"]["methods"]
        axes.axhline(0, color=FAINT, linewidth=0.8)
        axes.axvline(0, color=FAINT, linewidth=0.8)
        for recipe, gain in gains(network, 5).items():
            if recipe not in _SHOWN or recipe not in clean:
                continue
            lost, look = clean[recipe]["gain_clean"], looks[recipe]
            axes.plot([lost["low"], lost["high"]], [gain["score"]] * 2, color=look.colour, linewidth=1, alpha=0.6)
            axes.plot([lost["score"]] * 2, [gain["low"], gain["high"]], color=look.colour, linewidth=1, alpha=0.6)
            axes.plot(lost["score"], gain["score"], look.marker, color=look.colour, markersize=look.size + 1)
        axes.set_title(NETWORKS[name].title, fontsize=10, color=INK)
        axes.grid(color=GRID)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in list(panels.flat)[len(results) :]:
        axes.set_axis_off()
    for axes in panels[1]:
        axes.set_xlabel("change on clean images, points", fontsize=9)
    for axes in panels[:, 0]:
        axes.set_ylabel("gain at severity 5, points", fontsize=9)
    _legend(figure, [name for name in _SHOWN if name != "ops"], looks)
    figure.savefig(path, dpi=110)


def _legend(figure: Any, names: list[str], looks: dict[str, Any]) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], linestyle="", marker=looks[name].marker, color=looks[name].colour, markersize=7)
        for name in names
    ]
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False, fontsize=9)


def draw_rows(results: dict[str, Any], path: Path) -> None:
    """Draw the gain at severities 3 and 5 against rows: each network faintly, the mean over networks in bold."""
    figure, panels = _figure(1, 2, figsize=(10, 4), sharex=True)
    looks = looks_of(_SHOWN)
    for axes, severity in zip(panels, (3, 5), strict=True):
        for recipe in _SHOWN:
            each = [gains(network, severity).get(recipe) for network in results.values()]
            found = [gain for gain in each if gain]
            if not found:
                continue
            look, rows = looks[recipe], [gain["rows"] for gain in found]
            axes.plot(rows, [gain["score"] for gain in found], look.marker, color=look.colour, alpha=0.3, markersize=5)
            mean = np.mean([gain["score"] for gain in found])
            axes.plot(np.mean(rows), mean, look.marker, color=look.colour, markersize=10)
        axes.set_xscale("log")
        axes.set_xticks([1, 2, 3, 10, 22], ["1", "2", "3", "10", "22"])
        axes.minorticks_off()
        axes.axhline(0, color=FAINT, linewidth=0.8)
        axes.grid(color=GRID)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(f"severity {severity}", fontsize=10, color=INK)
        axes.set_xlabel("rows per image")
    panels[0].set_ylabel("gain over the source, points")
    _legend(figure, list(_SHOWN), looks)
    figure.savefig(path, dpi=110)


def draw_kinds(results: dict[str, Any], path: Path, recipe: str = "auto") -> None:
    """Draw a table in colours: a recipe's gain at severity 5, kinds of corruption × networks."""
    from sita_workbench.corruptions import KINDS

    values = np.array(
        [
            [
                network["corrupted"]["methods"][recipe]["kinds"][f"{kind}/5"]
                - network["corrupted"]["methods"]["source"]["kinds"][f"{kind}/5"]
                for kind in KINDS
            ]
            for network in results.values()
        ]
    )
    figure, axes = _figure(figsize=(11, 0.5 * len(results) + 2))
    axes.imshow(values, cmap="RdBu", vmin=-40, vmax=40, aspect="auto")
    for row, line in enumerate(values):
        for column, value in enumerate(line):
            colour = "white" if abs(value) > 25 else INK
            axes.text(column, row, f"{value:+.0f}", ha="center", va="center", fontsize=9, color=colour)
    axes.set_xticks(range(len(KINDS)), [kind.replace("_", " ") for kind in KINDS], rotation=35, ha="right", fontsize=9)
    axes.set_yticks(range(len(results)), [NETWORKS[name].title for name in results], fontsize=9)
    axes.set_title(f"What {recipe} gains at severity 5, points", fontsize=10, color=INK)
    figure.savefig(path, dpi=110)
