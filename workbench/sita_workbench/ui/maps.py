"""Label maps side by side: the source model's, the adapted one's, where they differ, and what the colours mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

import numpy as np

from ..label_maps import palette
from .look import Look

_LONGEST = 12


def show_maps(look: Look, names: Sequence[str], show_picture: Callable[[np.ndarray, str], str]) -> str:
    """Return the maps with their legend, the commonest labels first."""
    adapted = look.adapted.labels
    height, width = look.pixels.shape[:2]
    figures = [show_picture(look.pixels, f"What the model sees: {width} × {height} pixels")]
    if look.source is None:
        figures.append(show_picture(_colour(adapted), "Adapted, as the file says"))
        shown = [adapted]
    else:
        source = look.source.labels
        figures.append(show_picture(_colour(source), "Source model, as trained"))
        figures.append(show_picture(_colour(adapted), "Adapted to this image"))
        figures.append(show_picture(_mark_changes(adapted, source), "Where they differ, in the adapted one’s colours"))
        shown = [source, adapted]
    return f'<div class="maps">{"".join(figures)}</div>{_legend(shown, names)}'


def _colour(labels: np.ndarray) -> np.ndarray:
    return np.asarray(palette()[labels % 256])


def _mark_changes(adapted: np.ndarray, source: np.ndarray) -> np.ndarray:
    """Return the adapted labels where they are not the source model's, on grey."""
    return np.where((adapted != source)[..., None], _colour(adapted), np.uint8(225)).astype(np.uint8)


def _legend(maps: Sequence[np.ndarray], names: Sequence[str]) -> str:
    """Return the labels' colours, and their shares of the pixels in each map."""
    shares = np.stack([np.bincount(each.ravel(), minlength=len(names)) / each.size for each in maps])
    common = [int(label) for label in np.argsort(-shares.max(axis=0), kind="stable") if shares[:, label].max() > 0]
    entries = []
    for label in common[:_LONGEST]:
        red, green, blue = palette()[label % 256]
        text = " → ".join(f"{100 * share:.0f}" for share in shares[:, label])
        entries.append(
            f'<span><i style="background:rgb({red},{green},{blue})"></i>{escape(names[label])} '
            f"<small>{text} %</small></span>"
        )
    rest = f"<span>and {len(common) - _LONGEST} more</span>" if len(common) > _LONGEST else ""
    return f'<div class="labels">{"".join(entries)}{rest}</div>'
