"""The tables of docs/natural.md and of README."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..study.page import ROWS as STUDY_ROWS
from ..study.page import gain, signed
from .images import SETS
from .measure import AUGBN, RECIPES
from .networks import NETWORKS

ROWS = {**STUDY_ROWS, AUGBN: 3}

Results = Mapping[str, Any]


def readme_table(results: Results) -> str:
    """Return the table of README: the source's score, and what `auto`, `restore` and `bn` change."""
    shown = ("auto", "restore", "bn")
    lines = [f"| network and images (n) | source | {' | '.join(f'`{recipe}`' for recipe in shown)} |"]
    lines.append(f"| --- | ---: |{' --- |' * len(shown)}")
    for title, scores, shifted in _every(results):
        if shifted:
            cells = " | ".join(gain(scores[recipe]["gain"]) if recipe in scores else "" for recipe in shown)
            lines.append(f"| {title} | {scores['source']['score']:.1f} | {cells} |")
    lines.append(f"| **mean change** | | {' | '.join(f'**{_mean(results, recipe)}**' for recipe in shown)} |")
    return "\n".join(lines)


def page_tables(results: Results) -> str:
    """Return the tables of docs/natural.md: all recipes, what the rows measured, and everything with intervals."""
    parts = [_overview(results), _rows(results)]
    return "\n".join([*(line for part in parts for line in part), *_details(results)])


def _every(results: Results) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    """Yield for each network and set its title, the scores of all images in its first metric, and if it is shifted."""
    for name, found in results.items():
        for images, one in found.items():
            if images != "clean":
                scores = next(iter(one["scores"].values()))["all"]
                title = f"{NETWORKS[name].title}, {SETS[images].title} ({one['images']:,})"
                yield title, scores, SETS[images].shifted


def _change(scores: Mapping[str, Any], recipe: str, over: str) -> float | None:
    """Return the difference between two recipes; None if one did not run."""
    return scores[recipe]["score"] - scores[over]["score"] if {recipe, over} <= scores.keys() else None


def _mean(results: Results, recipe: str, over: str = "source") -> str:
    """Return the mean difference over the shifted sets; nothing if a recipe did not run on all of them."""
    changes = [_change(scores, recipe, over) for _, scores, shifted in _every(results) if shifted]
    known = [change for change in changes if change is not None]
    return signed(sum(known) / len(known)) if len(known) == len(changes) else ""


def _overview(results: Results) -> Iterator[str]:
    shown = RECIPES[1:]
    yield "## All recipes\n"
    yield "The score of the source model, and the change with each recipe in points, on all images. The number after a recipe is the number of rows it runs per image (for segmentation, `augbn` runs 2 and `ops` 15). `augbn` and `ops` run only with `--many-rows`: their scores may come from an earlier run on the same images.\n"  # noqa: E501
    heads = " | ".join(f"{recipe} ({ROWS[recipe]})" for recipe in shown)
    yield f"| network and images (n) | source | {heads} | ops minus auto |"
    yield f"| --- |{' ---: |' * (len(shown) + 2)}"
    pairs = [*((recipe, "source") for recipe in shown), ("ops", "auto")]
    for title, scores, _ in _every(results):
        changes = (_change(scores, *pair) for pair in pairs)
        cells = ["" if change is None else signed(change) for change in changes]
        yield f"| {title} | {scores['source']['score']:.1f} | {' | '.join(cells)} |"
    yield f"| **mean change**, shifted images | | {' | '.join(_mean(results, *pair) for pair in pairs)} |\n"


def _rows(results: Results) -> Iterator[str]:
    yield "## What `auto` measures\n"
    yield "Means over the images. D is the shift that the adapted row measures. The weight is that of the adapted row in the mix. The confidence is e^−entropy, over the network's own classes. The last three columns are scores.\n"  # noqa: E501
    yield "| network and images | D | weight | confidence: source row | adapted row | score: source row | adapted row | both, mixed |"  # noqa: E501
    yield f"| --- |{' ---: |' * 7}"
    for name, found in results.items():
        for images, one in found.items():
            facts = one if images == "clean" else one["rows"]
            scores = {} if images == "clean" else next(iter(one["scores"].values()))["all"]
            if images == "clean" and "drive" in found:
                continue  # the same images
            title = f"{one['images']} in-distribution images" if images == "clean" else SETS[images].title
            cells = [f"{facts['shift']:.3f}", f"{facts['weight']:.2f}"]
            cells += [f"{facts[fact]:.2f}" for fact in ("confidence of the source", "confidence")]
            if scores:
                alone = facts["adapted row"]
                cells += [f"{each:.1f}" for each in (scores["source"]["score"], alone, scores["auto"]["score"])]
            yield f"| {NETWORKS[name].title}, {title} | {' | '.join([*cells, '', '', ''][:7])} |"
    yield ""


def _details(results: Results) -> Iterator[str]:
    """Yield for each network, set and metric a table by half."""
    for name, found in results.items():
        yield f"## {NETWORKS[name].title}\n"
        for images, one in found.items():
            for metric, halves in one.get("scores", {}).items():
                yield f"**{SETS[images].title}** ({one['images']:,} images), {metric} in percent\n"
                yield "| recipe | choosing half | confirming half | all |"
                yield "| --- | --- | --- | --- |"
                yield f"| source | {' | '.join(format(half['source']['score'], '.1f') for half in halves.values())} |"
                for recipe in halves["all"]:
                    if recipe != "source":
                        yield f"| {recipe} | {' | '.join(gain(half[recipe]['gain']) for half in halves.values())} |"
                yield ""
