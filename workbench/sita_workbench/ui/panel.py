"""What the page shows of a look, as HTML: the verdict, both answers, and how the adapted one came about."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape

import numpy as np

from sita_adapters.description import IN_WORDS

from ..methods import Prediction
from .charts import draw_entropies, draw_priors, draw_shifts
from .look import Candidate, Look
from .maps import show_maps

_TOP = 5
_VIEWS = {
    "rot90": "turned by 90°",
    "rot180": "turned by 180°",
    "rot270": "turned by 270°",
    "hflip": "mirrored",
    "vflip": "upside down",
    "transpose": "transposed",
    "antitranspose": "transposed the other way",
}
_SMALL = 100
"""Pixels below which a picture is enlarged without smoothing, so that one sees what the model sees."""


def show_look(look: Look, names: Sequence[str], label: int | None) -> str:
    """Return the page's right side. `label` is what the image is, where that is known."""
    said = _Names(names, look.adapted.probabilities.shape[-1])
    if look.adapted.labels.ndim:
        verdict, answers = _say_changed(look), show_maps(look, said, show_picture)
    else:
        verdict, answers = _say_verdict(look, said, label), _show_answers(look, said, label)
    return (
        f'<div class="sita"><p class="verdict">{verdict}</p>{answers}'
        f'<div class="reasons">{_show_reasons(look, said)}</div>{_show_cost(look)}</div>'
    )


def show_error(message: str) -> str:
    """Return the page's right side where there is nothing to show but a sentence."""
    return f'<div class="sita"><p class="verdict error">{escape(message)}</p></div>'


class _Names(Sequence[str]):
    """A name for every class: as given, or its number."""

    def __init__(self, names: Sequence[str], count: int) -> None:
        self._names = list(names) if len(names) == count else [f"class {label}" for label in range(count)]

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, label: int) -> str:  # type: ignore[override]
        return self._names[label]


def _say_verdict(look: Look, names: Sequence[str], label: int | None) -> str:
    """Return what happened, in one sentence."""
    adapted = int(look.adapted.labels)
    after = _strong(names[adapted])
    if look.source is None:
        return f"The file says {after}."
    source = int(look.source.labels)
    before = _strong(names[source])
    if label is None:
        return f"Both say {after}." if source == adapted else f"Adaptation changes {before} to {after}."
    if source == adapted:
        return f"Both are right: {after}." if adapted == label else f"Both say {after}. It is {_strong(names[label])}."
    if adapted == label:
        return f"Adaptation puts it right: {after}, where the source model says {before}."
    if source == label:
        return f"Adaptation spoils it: {after}, where the source model rightly says {before}."
    return f"The source model says {before}, adapted it says {after}. It is {_strong(names[label])}."


def _say_changed(look: Look) -> str:
    if look.source is None:
        return "What the file says of every pixel."
    share = 100 * float((look.adapted.labels != look.source.labels).mean())
    return f"Adaptation changes the label of <b>{share:.1f} %</b> of the pixels."


def _strong(name: str) -> str:
    return f"<b>{escape(name)}</b>"


def _show_answers(look: Look, names: Sequence[str], label: int | None) -> str:
    height, width = look.pixels.shape[:2]
    picture = show_picture(look.pixels, f"What it sees: {width} × {height} pixels")
    cards = _show_answer(look.adapted, "adapted", "Adapted to this image", names, label)
    if look.source is None:
        cards += '<p class="absent">This file does not return the answer of the source model. '
        cards += "<code>sita export --diagnostics</code> writes one that does.</p>"
    else:
        cards = _show_answer(look.source, "source", "Source model, as trained", names, label) + cards
    return f'<div class="answers">{picture}{cards}</div>'


def _show_answer(answer: Prediction, side: str, title: str, names: Sequence[str], label: int | None) -> str:
    """Return a card: what is answered, whether it is right, and bars of the likeliest classes."""
    said = int(answer.labels)
    mark = ""
    if label is not None:
        mark = '<span class="mark right">✓ right</span>' if said == label else '<span class="mark wrong">✗ wrong</span>'
    likeliest = np.argsort(-answer.probabilities, kind="stable")[:_TOP]
    bars = "".join(
        f'<div class="name{" truth" if place == label else ""}">{escape(names[place])}</div>'
        f'<div class="bar"><i style="width:{100 * answer.probabilities[place]:.1f}%"></i></div>'
        f'<div class="percent">{100 * answer.probabilities[place]:.0f} %</div>'
        for place in likeliest
    )
    probability = f"{float(answer.confidences):.4f}"
    return (
        f'<section id="{side}-answer" class="card {side}" data-label="{said}" data-probability="{probability}">'
        f'<h3>{title}</h3><div class="said">{escape(names[said])}{mark}</div><div class="bars">{bars}</div></section>'
    )


def _show_reasons(look: Look, names: Sequence[str]) -> str:
    """Return the charts, the candidates and the views; of a file, why they are not there."""
    if look.depth is None:
        priors = look.adapted.priors
        said = "its answer alone" if priors is None else f"its answers and λ, which is {np.mean(priors):.2f}"
        note = f"An exported file puts out {said}. Layers, candidates and views are seen of the model it was made from."
        return _reason("Inside the network", note, "")
    keys = [("source", "source model")]
    if look.depth.clean_shifts is not None:
        keys.insert(0, ("clean", "uncorrupted"))
    if look.depth.adapted_shifts is not None:
        keys.append(("adapted", "adapted"))
    legend = "".join(f'<span class="key {style}">{name}</span>' for style, name in keys)
    parts = [
        _reason(
            "Where it bites: shift per layer",
            "How far the image’s statistics are from those of the training images; 0 is no shift at all.",
            draw_shifts(look.depth) + f'<div class="legend">{legend}</div>',
        )
    ]
    if look.depth.priors is not None:
        parts.append(
            _reason(
                "What is done about it: λ per layer",
                "The share of the training statistics that a layer keeps. At 1 it keeps them all; the lower, the more "
                "it takes from the image.",
                draw_priors(look.depth),
            )
        )
    elif len({each.number for each in look.candidates}) > 1:
        parts.append(
            _reason(
                "How certain each λ is: entropy",
                f"Several λ answer side by side. The lower the entropy, the more certain; {escape(look.combine)} "
                "(filled).",
                draw_entropies(look.candidates, names),
            )
        )
    parts.append(_show_candidates(look, names))
    if look.views:
        views = "".join(show_picture(pixels, _VIEWS.get(name, name)) for name, pixels in look.views)
        note = "What is run beside the image, so that there is more to go by."
        parts.append(f'<div class="wide">{_reason("The views", note, f"<div class=views>{views}</div>")}</div>')
    return "".join(parts)


def _reason(title: str, note: str, inside: str) -> str:
    return f'<section class="card"><h3>{title}</h3><p class="note">{note}</p>{inside}</section>'


def _show_candidates(look: Look, names: Sequence[str]) -> str:
    """Return a table of what each candidate said."""
    moved = len({each.view for each in look.candidates}) > 1
    labelled = look.candidates[0].label is not None
    heads = ["λ", *(["view"] if moved else []), *(["says"] if labelled else []), "sure", "entropy", "counts"]
    best = min(look.candidates, key=lambda each: each.entropy)

    def line(each: Candidate) -> str:
        cells = [
            "by shift" if each.number is None else "1 (source)" if each.number == 1 else f"{each.number:.3g}",
            *([_VIEWS.get(each.view, each.view)] if moved else []),
            *([names[each.label]] if each.label is not None else []),
            f"{100 * each.confidence:.0f} %",
            f"{each.entropy:.2f}",
            f"{100 * each.share:.0f} %",
        ]
        style = " ".join(name for name, on in (("kept", each.kept), ("chosen", each is best)) if on)
        return f'<tr class="{style}">' + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"

    table = "".join(f"<th>{head}</th>" for head in heads) + "".join(line(each) for each in look.candidates)
    note = "One row through the network answers by itself."
    if look.combine:
        note = f"Each is a row through the network under its own λ; {escape(look.combine)}."
    return _reason("Who answered", note, f'<div class="scroll"><table>{table}</table></div>')


def _show_cost(look: Look) -> str:
    name, _, details = look.recipe.partition(": ")
    rows = f"{look.rows} {'row' if look.rows == 1 else 'rows'} through the network, " if look.rows else ""
    return (
        f'<p class="cost" title="{escape(details)}"><b>{escape(name)}</b>: {escape(IN_WORDS.get(name, details))}. '
        f"{rows}{1e3 * look.seconds:.0f} ms.</p>"
    )


def show_picture(pixels: np.ndarray, caption: str) -> str:
    """Return a picture in bytes (h, w, 3), inside the page itself, with its caption."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    style = ' class="small"' if min(pixels.shape[:2]) < _SMALL else ""
    data = base64.b64encode(buffer.getvalue()).decode()
    return (
        f'<figure><img{style} alt="{escape(caption)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )
