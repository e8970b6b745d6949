"""The page's charts, as SVG that takes its colours from the page's style: light or dark, as the page is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from .look import Candidate, Depth

_WIDTH, _HEIGHT = 290.0, 166.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 30.0, 8.0, 8.0, 34.0
_FEW = 40
"""Layers up to which each has a dot."""


@dataclass(frozen=True)
class _Frame:
    """Where values from (x0, y0) to (x1, y1) are in the picture."""

    x0: float
    x1: float
    y1: float
    y0: float = 0.0

    def x(self, value: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (value - self.x0) / ((self.x1 - self.x0) or 1)

    def y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * (value - self.y0) / ((self.y1 - self.y0) or 1)


def draw_shifts(depth: Depth) -> str:
    """Return the shift over the depth of the network: before the corruption, and as the two models see it."""
    lines = [("clean", depth.clean_shifts), ("source", depth.source_shifts), ("adapted", depth.adapted_shifts)]
    shown = [(name, values) for name, values in lines if values is not None]
    frame = _Frame(1, len(depth.layers), _round_up(max(float(values.max()) for _, values in shown)))
    drawn = "".join(_line(frame, values, name, depth.layers) for name, values in shown)
    return _chart(_grid(frame) + _depth_axis(frame, depth.layers) + drawn, "The shift over the layers")


def draw_priors(depth: Depth) -> str:
    """Return λ over the depth of the network."""
    assert depth.priors is not None
    frame = _Frame(1, len(depth.layers), 1.0)
    drawn = _line(frame, depth.priors, "adapted", depth.layers)
    return _chart(_grid(frame) + _depth_axis(frame, depth.layers) + drawn, "λ over the layers")


def draw_entropies(candidates: Sequence[Candidate], names: Sequence[str]) -> str:
    """Return entropy over λ: the kept candidates filled, the most certain one named."""
    numbers = [candidate.number or 0.0 for candidate in candidates]
    margin = 0.06 * (max(numbers) - min(numbers))
    highest = _round_up(max(each.entropy for each in candidates))
    frame = _Frame(min(numbers) - margin, max(numbers) + margin, highest)
    best = min(candidates, key=lambda each: each.entropy)
    parts = [_grid(frame)]
    for number, candidate in zip(numbers, candidates, strict=True):
        x, y = frame.x(number), frame.y(candidate.entropy)
        style = "kept" if candidate.kept else "dropped"
        said = "" if candidate.label is None else f" says {names[candidate.label]},"
        hint = f"λ = {candidate.prior}:{said} entropy {candidate.entropy:.2f}"
        parts.append(f'<circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="5"><title>{escape(hint)}</title></circle>')
        if candidate is best:
            parts.append(f'<circle class="chosen" cx="{x:.1f}" cy="{y:.1f}" r="9"/>')
            anchor = "start" if x < _WIDTH / 3 else "end" if x > 2 * _WIDTH / 3 else "middle"
            parts.append(_text(x, max(y - 15, _TOP + 6), f"most certain: λ = {candidate.prior}", anchor, "chosen"))
        parts.append(_text(x, _HEIGHT - _BOTTOM + 14, f"{number:.2g}", "middle"))
    parts.append(_text(_WIDTH / 2, _HEIGHT - 4, "λ: share of the training statistics", "middle"))
    return _chart("".join(parts), "Entropy over λ")


def _line(frame: _Frame, values: np.ndarray, style: str, layers: Sequence[str]) -> str:
    places = [(frame.x(place), frame.y(float(value))) for place, value in enumerate(values, 1)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dots = ""
    if len(places) <= _FEW and style != "clean":
        dots = "".join(
            f'<circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="3">'
            f"<title>{escape(name)}: {value:.2f}</title></circle>"
            for (x, y), name, value in zip(places, layers, values, strict=True)
        )
    return f'<polyline class="{style}" points="{path}"/>{dots}'


def _grid(frame: _Frame) -> str:
    """Return three lines across, with their values."""
    lines = []
    for value in (frame.y0, (frame.y0 + frame.y1) / 2, frame.y1):
        y = frame.y(value)
        lines.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines.append(_text(_LEFT - 5, y + 4, f"{value:.3g}", "end"))
    return "".join(lines)


def _depth_axis(frame: _Frame, layers: Sequence[str]) -> str:
    base = _HEIGHT - _BOTTOM + 14
    count = len(layers)
    marks = sorted({1, count, *range(0, count, _round_step(count))} - {0})
    marks = [mark for mark in marks if mark == count or frame.x(count) - frame.x(mark) > 18]
    numbers = "".join(_text(frame.x(mark), base, str(mark), "middle") for mark in marks)
    return numbers + _text(_WIDTH / 2, _HEIGHT - 4, "layers, from the image to the answer", "middle")


def _text(x: float, y: float, text: str, anchor: str, style: str = "") -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _chart(inside: str, title: str) -> str:
    return f'<svg viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" aria-label="{escape(title)}">{inside}</svg>'


def _round_up(value: float) -> float:
    """Return the next round number, so that the axis has round numbers."""
    power = 10.0 ** np.floor(np.log10(max(value, 1e-6)))
    return float(next(step * power for step in (1, 2, 3, 4, 5, 6, 8, 10) if step * power >= value * 0.999))


def _round_step(count: int) -> int:
    return next(step for step in (1, 2, 5, 10, 20, 50, 100, 1000) if count / step <= 12)
