"""What `sita predict` prints: a table for the terminal, or the same as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console

    from ..models.loading import Subject
    from .answers import Answer, Said

_SHARES = 5


@dataclass(frozen=True, eq=False)
class Report:
    """The answers of a model on images, and how to tell of them."""

    subject: Subject
    recipe: str
    answers: Sequence[Answer]
    names: tuple[str, ...]
    top: int
    corrupted: str
    maps: Sequence[Path] | None = None

    @property
    def _heading(self) -> str:
        """The recipe's name, which stands over the adapted model's answers."""
        return self.recipe.partition(":")[0]

    @property
    def _segments(self) -> bool:
        return self.subject.task == "segmentation"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON holds it."""
        one = self._map_entry if self._segments else self._label_entry
        entries = [one(answer) for answer in self.answers]
        for entry, path in zip(entries, self.maps or (), strict=False):
            entry["map"] = str(path)
        return {
            "model": self.subject.spec,
            "weights": self.subject.weights,
            "recipe": self.recipe,
            "corrupted": self.corrupted or None,
            "images": entries,
        }

    def print(self, console: Console) -> None:
        """Print the table, and what to make of it."""
        corrupted = f", images corrupted by {self.corrupted}" if self.corrupted else ""
        console.print(Text(f"{self.subject.spec}, weights: {self.subject.weights}{corrupted}"), soft_wrap=True)
        if self._segments:
            for answer in self.answers:
                console.print(Text(_summarise_map(answer), "bold"), soft_wrap=True)
                console.print(self._map_table(answer))
        else:
            console.print(self._label_table())
        for sentence in self._sentences():
            console.print(Text(sentence), soft_wrap=True)

    @property
    def _has_source(self) -> bool:
        return all(answer.source is not None for answer in self.answers)

    def _sentences(self) -> list[str]:
        told: list[str] = []
        if not self._has_source:
            pass
        elif self._segments:
            share = np.mean([answer.changed for answer in self.answers])
            told = [f"{100 * share:.1f} % of the pixels have another label than the source model gives them (≠)."]
        else:
            changed = sum(answer.changed > 0 for answer in self.answers)
            told = [f"{changed} of {len(self.answers)} labels differ from the source model's (≠)."]
        if self.subject.weights == "random":
            told.append("Random weights: these answers mean nothing.")
        if self.maps:
            told.append(f"Label maps: {len(self.maps)} in {self.maps[0].parent}")
        return told

    def _name(self, label: int) -> str | None:
        return self.names[label] if self.names else None

    def _entry(self, label: int, share: float, key: str) -> dict[str, Any]:
        return {"label": label, "name": self._name(label), key: share}

    def _label_entry(self, answer: Answer) -> dict[str, Any]:
        def tell(said: Said) -> dict[str, Any]:
            likeliest = [self._entry(label, p, "probability") for label, p in _likeliest(said, self.top)]
            return {**likeliest[0], "entropy": float(said.entropies), "top": likeliest}

        return _entry_of(answer, tell, bool(answer.changed))

    def _map_entry(self, answer: Answer) -> dict[str, Any]:
        def tell(said: Said) -> dict[str, Any]:
            shares = [self._entry(label, share, "share") for label, share in _shares(said)]
            return {"entropy": float(said.entropies.mean()), "shares": shares}

        return _entry_of(answer, tell, answer.changed)

    def _called(self, label: int) -> str:
        name = self._name(label)
        return str(label) if name is None else f"{label} {name}"

    def _label_table(self) -> Table:
        both = self._has_source
        headings = (self._heading, "p", "entropy", *(("λ", "", "source", "p", "entropy") if both else ()))
        table = _make_table("image", *headings)
        for column in table.columns:
            if column.header in ("p", "entropy", "λ"):
                column.justify, column.no_wrap = "right", True
        for answer in self.answers:
            ours = self._cells(answer.adapted, "bold")
            theirs = self._cells(answer.source, "yellow" if answer.changed else "") if answer.source else ours
            prior = "" if answer.priors is None else f"{float(answer.priors):.2f}"
            mark = Text("≠" if answer.changed else "", "bold yellow")
            for place, (cells, others) in enumerate(zip(ours, theirs, strict=True)):
                first = place == 0
                between = (prior, mark) if first else ("", "")
                table.add_row(Text(answer.path.name if first else ""), *cells, *((*between, *others) if both else ()))
        return table

    def _cells(self, said: Said, style: str) -> list[tuple[Text, str, str]]:
        """Return label, probability and entropy of what a model said, the likeliest class first."""
        return [
            (Text(self._called(label), "dim" if place else style), f"{p:.2f}", "" if place else f"{said.entropies:.2f}")
            for place, (label, p) in enumerate(_likeliest(said, self.top))
        ]

    def _map_table(self, answer: Answer) -> Table:
        """Return the labels that are the most of one of the maps, and how much of each they are."""
        said = [answer.adapted, *([answer.source] if answer.source else [])]
        table = _make_table("label", self._heading, *(["source"] if answer.source else []))
        for column in table.columns[1:]:
            column.justify = "right"
        shares = [dict(_shares(each)) for each in said]
        for label in dict.fromkeys(label for each in shares for label in list(each)[:_SHARES]):
            table.add_row(Text(self._called(label)), *(f"{100 * each.get(label, 0.0):.1f} %" for each in shares))
        return table


def _entry_of(answer: Answer, tell: Callable[[Said], dict[str, Any]], changed: bool | float) -> dict[str, Any]:
    """Return an answer as JSON holds it; what an exported file cannot tell is left out."""
    entry: dict[str, Any] = {"file": str(answer.path)}
    if answer.source is not None:
        entry["changed"] = changed
    if answer.priors is not None:
        entry["prior"] = float(answer.priors.mean())
    entry["adapted"] = tell(answer.adapted)
    if answer.source is not None:
        entry["source"] = tell(answer.source)
    return entry


def _summarise_map(answer: Answer) -> str:
    certain = f"entropy {answer.adapted.entropies.mean():.2f}"
    if answer.source is None or answer.priors is None:
        return f"{answer.path.name}: on average {certain}"
    return (
        f"{answer.path.name}: {100 * answer.changed:.1f} % ≠ source; on average λ {answer.priors.mean():.2f}, "
        f"{certain}, source's {answer.source.entropies.mean():.2f}"
    )


def _make_table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _likeliest(said: Said, count: int) -> list[tuple[int, float]]:
    order = np.argsort(-said.probabilities, kind="stable")[:count]
    return [(int(label), float(said.probabilities[label])) for label in order]


def _shares(said: Said) -> list[tuple[int, float]]:
    """Return how much of the map each label that is in it takes, the largest first."""
    labels, counts = np.unique(said.labels, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return [(int(labels[place]), float(counts[place] / said.labels.size)) for place in order]
