"""What `sita predict` prints: a table on the terminal, or JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console

    from ..methods import Prediction
    from ..models.loaded import LoadedModel
    from .prediction import Answer

_SHARES = 5


@dataclass(frozen=True, eq=False)
class PredictionReport:
    """The answers of a model, and how they are printed."""

    loaded: LoadedModel
    recipe: str
    answers: Sequence[Answer]
    names: tuple[str, ...]
    top: int
    corrupted: str
    maps: Sequence[Path] | None = None
    damaged: Mapping[Path, str] = field(default_factory=dict)
    """The files that could not be read, and why."""

    @property
    def _heading(self) -> str:
        """The recipe's name, the heading of the adapted model's column."""
        return self.recipe.partition(":")[0]

    @property
    def _segments(self) -> bool:
        return self.loaded.task == "segmentation"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON."""
        one = self._map_entry if self._segments else self._label_entry
        entries = [one(answer) for answer in self.answers]
        for entry, path in zip(entries, self.maps or (), strict=False):
            entry["map"] = str(path)
        return {
            "model": self.loaded.spec,
            "weights": self.loaded.weights,
            "recipe": self.recipe,
            "corrupted": self.corrupted or None,
            "images": entries,
            "failed": [{"file": str(path), "reason": reason} for path, reason in self.damaged.items()],
        }

    def print(self, console: Console) -> None:
        """Print the table and a summary."""
        corrupted = f", images corrupted by {self.corrupted}" if self.corrupted else ""
        console.print(Text(f"{self.loaded.spec}, weights: {self.loaded.weights}{corrupted}"), soft_wrap=True)
        if self._segments:
            for answer in self.answers:
                console.print(Text(_summarise_map(answer), "bold"), soft_wrap=True)
                console.print(self._map_table(answer))
        else:
            _print_whole(console, self._label_table())
        for sentence in self._sentences():
            console.print(Text(sentence), soft_wrap=True)

    @property
    def _has_source(self) -> bool:
        return all(answer.source is not None for answer in self.answers)

    def _sentences(self) -> list[str]:
        sentences: list[str] = []
        if self._has_source and self._segments:
            share = np.mean([answer.changed for answer in self.answers])
            sentences.append(
                f"{100 * share:.1f} % of the pixels have another label than the source model gives them (≠)."
            )
        elif self._has_source:
            changed = sum(answer.changed > 0 for answer in self.answers)
            sentences.append(f"{changed} of {len(self.answers)} labels differ from the source model's (≠).")
        if self.loaded.weights == "random":
            sentences.append("Random weights: these answers mean nothing.")
        if self.maps:
            sentences.append(f"Label maps: {len(self.maps)} in {self.maps[0].parent}")
        return sentences

    def _name(self, label: int) -> str | None:
        return self.names[label] if self.names else None

    def _entry(self, label: int, share: float, key: str) -> dict[str, Any]:
        return {"label": label, "name": self._name(label), key: share}

    def _label_entry(self, answer: Answer) -> dict[str, Any]:
        def summarise(predicted: Prediction) -> dict[str, Any]:
            likeliest = [self._entry(label, p, "probability") for label, p in _likeliest(predicted, self.top)]
            return {**likeliest[0], "entropy": float(predicted.entropies), "top": likeliest}

        return _entry_of(answer, summarise, bool(answer.changed))

    def _map_entry(self, answer: Answer) -> dict[str, Any]:
        def summarise(predicted: Prediction) -> dict[str, Any]:
            shares = [self._entry(label, share, "share") for label, share in _shares(predicted)]
            return {"entropy": float(predicted.entropies.mean()), "shares": shares}

        return _entry_of(answer, summarise, answer.changed)

    def _label(self, label: int) -> str:
        name = self._name(label)
        return str(label) if name is None else f"{label} {name}"

    def _label_table(self) -> Table:
        both, told = self._has_source, all(answer.adapted.priors is not None for answer in self.answers)
        columns = (*(("λ",) if told else ()), *(("", "source", "p", "entropy") if both else ()))
        table = _make_table("image", self._heading, "p", "entropy", *columns)
        for column in table.columns:
            if column.header in ("p", "entropy", "λ"):
                column.justify, column.no_wrap = "right", True
        for answer in self.answers:
            ours = self._cells(answer.adapted, "bold")
            theirs = self._cells(answer.source, "yellow" if answer.changed else "") if answer.source else ours
            prior = "" if answer.adapted.priors is None else f"{float(answer.adapted.priors):.2f}"
            mark = Text("≠" if answer.changed else "", "bold yellow")
            for place, (cells, others) in enumerate(zip(ours, theirs, strict=True)):
                first = place == 0
                name = Text(answer.path.name if first else "")
                beside = (mark if first else "", *others) if both else ()
                table.add_row(name, *cells, *((prior if first else "",) if told else ()), *beside)
        return table

    def _cells(self, predicted: Prediction, style: str) -> list[tuple[Text, str, str]]:
        """Return label, probability and entropy of a prediction, the likeliest class first."""
        return [
            (
                Text(self._label(label), "dim" if place else style),
                f"{p:.2f}",
                "" if place else f"{predicted.entropies:.2f}",
            )
            for place, (label, p) in enumerate(_likeliest(predicted, self.top))
        ]

    def _map_table(self, answer: Answer) -> Table:
        """Return the largest labels of the maps, and their share of each map."""
        predicted = [answer.adapted, *([answer.source] if answer.source else [])]
        table = _make_table("label", self._heading, *(["source"] if answer.source else []))
        for column in table.columns[1:]:
            column.justify = "right"
        shares = [dict(_shares(each)) for each in predicted]
        for label in dict.fromkeys(label for each in shares for label in list(each)[:_SHARES]):
            table.add_row(Text(self._label(label)), *(f"{100 * each.get(label, 0.0):.1f} %" for each in shares))
        return table


def _entry_of(
    answer: Answer, summarise: Callable[[Prediction], dict[str, Any]], changed: bool | float
) -> dict[str, Any]:
    """Return an answer as JSON; an exported file has neither source nor λ without diagnostics."""
    entry: dict[str, Any] = {"file": str(answer.path)}
    if answer.source is not None:
        entry["changed"] = changed
    if answer.adapted.priors is not None:
        entry["prior"] = float(answer.adapted.priors.mean())
    entry["adapted"] = summarise(answer.adapted)
    if answer.source is not None:
        entry["source"] = summarise(answer.source)
    return entry


def _summarise_map(answer: Answer) -> str:
    certain = f"entropy {answer.adapted.entropies.mean():.2f}"
    if answer.source is None or answer.adapted.priors is None:
        return f"{answer.path.name}: on average {certain}"
    return (
        f"{answer.path.name}: {100 * answer.changed:.1f} % ≠ source; on average λ {answer.adapted.priors.mean():.2f}, "
        f"{certain}, source's {answer.source.entropies.mean():.2f}"
    )


def _make_table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _print_whole(console: Console, table: Table) -> None:
    """Print a table; where no terminal limits the width, as wide as it is, so that file names stay in one piece."""
    if not console.is_terminal:
        needed = console.measure(table, options=console.options.update(width=10_000)).maximum
        console.width = max(console.width, needed)
    console.print(table)


def _likeliest(predicted: Prediction, count: int) -> list[tuple[int, float]]:
    order = np.argsort(-predicted.probabilities, kind="stable")[:count]
    return [(int(label), float(predicted.probabilities[label])) for label in order]


def _shares(predicted: Prediction) -> list[tuple[int, float]]:
    """Return the share of the map that each label takes, the largest first."""
    labels, counts = np.unique(predicted.labels, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return [(int(labels[place]), float(counts[place] / predicted.labels.size)) for place in order]
