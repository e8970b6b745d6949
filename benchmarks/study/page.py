"""docs/study.md: the study's tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .figures import gains
from .networks import NETWORKS

_HEAD = """# The study behind the defaults

Which recipe gains under corruptions, does no harm on clean images, and costs little, on every network? Eight
networks and fifteen kinds of corruption, on held-out pictures. The figures show it at a glance, the
tables have every network; [Results](results.md) says what was learned.

Made by `python -m benchmarks.study confirm --data DATA --cifar CIFAR` (a network at a time, resumable; `--show`
writes this page from `benchmarks/study/results.json`). Every picture is adapted to independently. Scores are in
percent: accuracy, for RoadNet mean IoU. Gains are over the source model on the same pictures, with 95 % intervals
(pictures are resampled, the same ones for every recipe and kind).

Rules were chosen on other pictures, and on three of the networks (marked ○); nothing here was looked at before `auto`
was settled. CIFAR: test pictures 1,000 to 1,999. ImageNet: every second one of 664 pictures (an easy subset: compare
recipes, do not quote levels). CamVid: test pictures. Corruptions are this project's own, 15 kinds (`sita
corruptions`).

![gain against loss](study-trade.png)

![gain against rows](study-rows.png)

(Small marks are networks, large ones their mean. `ops` and `augbn` were run on fewer pictures than the others; the
table below compares on the same ones.)

![gain by kind](study-kinds.png)

**`auto` on this page is the previous default**, the mean 0.4 · p_source + 0.6 · p_adapted of the two rows'
probabilities. The default is now a mix of their outputs, with a weight per image ([How it works](how_it_works.md)); it
has not been measured in this study yet. The previous default sampled about 256 positions of every feature map; "all
places" took all of them, as every recipe does now.

Names: `bold` is λ by shift down to 0, one row; mirrored: the mirrored picture answers, too.
"""


def write_page(stored: Mapping[str, Any]) -> str:
    """Return the page for the confirming half."""
    results = {name: stored["confirm"][name] for name in NETWORKS if name in stored["confirm"]}
    return "\n".join([_HEAD, *_summary(results), *_each_network(results)]) + "\n"


def _summary(results: Mapping[str, Any]) -> Iterator[str]:
    yield "## All networks\n"
    yield "| network | pictures | source, clean | `auto`, clean | severity 1 | severity 3 | severity 5 |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for name, network in results.items():
        clean, corrupted = (network[part]["methods"] for part in ("clean", "corrupted"))
        counts = f"{network['clean']['images']} clean, {network['corrupted']['images']} per kind"
        title = f"{NETWORKS[name].title}{' ○' if NETWORKS[name].looked_at else ''}"
        cells = [f"{clean['source']['clean']['score']:.1f}", _gain(clean["auto"]["gain_clean"])]
        for severity in ("1", "3", "5"):
            source = corrupted["source"]["severities"][severity]["score"]
            cells.append(f"{source:.1f} → {_gain(corrupted['auto']['severities'][severity]['gain'])}")
        yield f"| {title} | {counts} | {' | '.join(cells)} |"
    yield ""
    yield "Under a severity: the source's score, and what `auto` adds to it.\n"
    yield from _against_ops(results)


def _against_ops(results: Mapping[str, Any]) -> Iterator[str]:
    yield "### Against `ops`, on fewer pictures\n"
    yield "| network | pictures per kind | severity | source | `auto` | `ops` | `augbn` | `augbn`, λ = 0.8 |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    names = ("auto", "ops", "augbn", "augbn, λ = 0.8")
    totals: dict[str, list[float]] = {name: [] for name in names}
    for name, network in results.items():
        methods = network["costly"]["methods"]
        for severity in ("3", "5"):
            found = [methods[each]["severities"][severity]["gain"] for each in names]
            for each, gain in zip(names, found, strict=True):
                totals[each].append(gain["score"])
            source = methods["source"]["severities"][severity]["score"]
            cells = " | ".join(map(_gain, found))
            yield f"| {NETWORKS[name].title} | {network['costly']['images']} | {severity} | {source:.1f} | {cells} |"
    means = " | ".join(f"**{sum(each) / len(each):+.1f}**" for each in totals.values())
    yield f"| **mean over networks** | | 3 and 5 | | {means} |"
    yield ""


def _each_network(results: Mapping[str, Any]) -> Iterator[str]:
    yield "## Each network\n"
    for name, network in results.items():
        yield f"### {NETWORKS[name].title}\n"
        yield "| recipe | rows | clean | severity 1 | severity 3 | severity 5 |"
        yield "| --- | ---: | --- | --- | --- | --- |"
        by_severity = {severity: gains(network, severity) for severity in (1, 3, 5)}
        clean = network["clean"]["methods"]
        recipes = dict.fromkeys([*by_severity[3], *by_severity[5]])
        for recipe in recipes:
            rows = next(found[recipe]["rows"] for found in by_severity.values() if recipe in found)
            cells = [_gain(clean[recipe]["gain_clean"]) if recipe in clean else ""]
            cells += [_gain(found[recipe]) if recipe in found else "" for found in by_severity.values()]
            yield f"| {recipe} | {rows} | {' | '.join(cells)} |"
        yield ""


def _gain(gain: Mapping[str, float]) -> str:
    return f"{gain['score']:+.1f} ({gain['low']:+.1f}\u00a0…\u00a0{gain['high']:+.1f})".replace("-", "−")
