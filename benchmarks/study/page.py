# ruff: noqa: E501  (lines of the page)
"""docs/study.md: every recipe, network and severity, with intervals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .networks import NETWORKS

ROWS = {
    "source": 1,
    "bn": 1,
    "shift": 1,
    "previous": 2,
    "auto": 2,
    "auto3": 3,
    "calibrated": 1,
    "calibrated, mixed": 2,
    "calibrated, mirrored": 2,
    "ops": 22,
}

_HEAD = """# The study behind the default

This page is the appendix to [Results](results.md). It lists every recipe, network and severity. `make study DATA=… CIFAR=…` runs the study. Rerun it to resume.
`python -m benchmarks.study --show` writes this page and the tables of README and Results from `benchmarks/results/study.json`.

The study uses clean images and the fifteen corruptions of ImageNet-C and CIFAR-10-C at severities 1, 3 and 5. Every recipe adapts to each image independently, and all
recipes run on the same images. Parentheses show 95 % bootstrap intervals. The bootstrap resamples the same images for every recipe and kind, so gains are
paired. Gains are in percentage points of accuracy, or of mean IoU for the segmentation network. ECE is the expected calibration error in percent (15 bins, all kinds
together). NLL is the negative log-likelihood.

The rules and constants of the recipes were tuned on a separate set of images, the tuning half, with the networks marked ○. The recipes then ran once on the images used on this page. There is one exception: after a first look at the
results of `auto3` here, its third row was tuned again on the tuning half, and `auto3` ran a second time on these images. Everything was measured on a CPU.

The images are CIFAR-10 test images 1,000 to 1,999, every second one of 664 ImageNet validation images, and CamVid test images. The ImageNet images are an easy subset: compare recipes on them, but don't quote their accuracy.
The corruptions are this project's own implementations (`sita corruptions`).

| name | what it is |
| --- | --- |
| bn | one row, λ = 16/17 |
| shift | one row, λ by shift, at least 0.625 |
| previous | the previous default: the mean of probabilities, 0.4 source and 0.6 adapted, with a `half_area` of 200 positions |
| auto | the default: two rows, mixed |
| auto3 | three rows, mixed |
| calibrated | one row, λ by the shift in excess of that of 128 clean images (from the tuning half) |
| calibrated, mixed | like calibrated, mixed with the source |
| calibrated, mirrored | like calibrated, averaged over the image and its mirror image (large networks: clean images and severity 5 only) |
| ops | the paper's method, 22 rows (15 for segmentation), on fewer images. The last table of each network compares every recipe on these images |

![gain by severity](study-severities.png)

![gain by kind](study-kinds.png)
"""


def insert(table: str, text: str, mark: str = "study") -> str:
    """Return a page's text with the table between its marks."""
    start, end = f"<!-- {mark} -->", f"<!-- end of {mark} -->"
    before, rest = text.split(start)
    return f"{before}{start}\n\n{table}\n\n{end}{rest.split(end)[1]}"


def default_table(results: Mapping[str, Any]) -> str:
    """Return the table of the README: the source model's score, and what `auto` changes."""
    lines = [
        "| network (clean images; corrupted images per kind) | clean | severity 5 |",
        "| --- | --- | --- |",
    ]
    gains = []
    for name, found in results.items():
        conditions = [found["clean"].get("all", found["clean"]["held out"]), found["severities"]["5"]]
        count = found["images"]["clean"] * (1 + ("all" in found["clean"]))
        cells = (f"{each['source']['score']:.1f} {gain(each['auto']['gain'])}" for each in conditions)
        lines.append(f"| {title_of(name)} ({count:,}; {found['images']['corrupted']}) | {' | '.join(cells)} |")
        gains.append([each["auto"]["gain"]["score"] for each in conditions])
    means = (sum(column) / len(column) for column in zip(*gains, strict=True))
    return "\n".join([*lines, f"| **mean change** | {' | '.join(f'**{signed(mean)}**' for mean in means)} |"])


def all_recipes_table(results: Mapping[str, Any]) -> str:
    """Return the table of docs/results.md: what each recipe gains at severity 5, and `ops` on fewer images."""
    shown = ("bn", "auto", "auto3", "calibrated", "calibrated, mirrored")
    heads = " | ".join(f"{recipe} ({ROWS[recipe]})" for recipe in shown)
    lines = [f"| network | source | {heads} | ops (22) minus auto |", f"| --- | ---: |{' --- |' * (len(shown) + 1)}"]
    columns: list[list[float]] = [[] for _ in range(len(shown) + 1)]
    for name, found in results.items():
        at = found["severities"]["5"]
        each = [*(at[recipe]["gain"] if recipe in at else None for recipe in shown)]
        each.append(found["with ops"]["5"]["ops"]["over auto"])
        for column, one in zip(columns, each, strict=True):
            column.extend([] if one is None else [one["score"]])
        cells = " | ".join("" if one is None else gain(one) for one in each)
        lines.append(f"| {title_of(name)} | {at['source']['score']:.1f} | {cells} |")
    means = [f"**{signed(sum(column) / len(column))}**" if len(column) == len(results) else "" for column in columns]
    return "\n".join([*lines, f"| **mean** | | {' | '.join(means)} |"])


def signed(value: float) -> str:
    """Return a difference for a table."""
    return f"{value:+.1f}".replace("-", "−")


def write_page(results: Mapping[str, Any]) -> str:
    """Return the page."""
    return "\n".join([_HEAD, *(line for name, found in results.items() for line in _network(name, found))]) + "\n"


def title_of(name: str) -> str:
    """Return a network's title, marked if rules were chosen on it."""
    return f"{NETWORKS[name].title}{' ○' if NETWORKS[name].looked_at else ''}"


def _network(name: str, found: Mapping[str, Any]) -> Iterator[str]:
    images = found["images"]
    yield f"## {title_of(name)}\n"
    yield f"{images['clean']} clean images, {images['corrupted']} under each kind and severity.\n"
    yield "| recipe | rows | clean | severity 1 | severity 3 | severity 5 |"
    yield "| --- | ---: | --- | --- | --- | --- |"
    conditions = [found["clean"]["held out"], *(found["severities"][severity] for severity in "135")]
    yield f"| source | 1 | {' | '.join(format(each['source']['score'], '.1f') for each in conditions)} |"
    for recipe in conditions[0]:
        if recipe != "source":
            cells = " | ".join(gain(each[recipe]["gain"]) if recipe in each else "" for each in conditions)
            yield f"| {recipe} | {ROWS[recipe]} | {cells} |"
    yield ""
    if "all" in found["clean"]:
        everything = found["clean"]["all"]
        some = ", ".join(f"{recipe} {gain(each['gain'])}" for recipe, each in everything.items() if recipe != "source")
        count = 2 * images["clean"]
        yield f"On all {count} clean images, including the tuning half: source {everything['source']['score']:.1f}; {some}.\n"
    if "calibrate" in found:
        yield f"On clean images of the tuning half, `sita.calibrate` chooses: {found['calibrate']['choice']}.\n"
    yield "| ECE, NLL | clean | severity 1 | severity 3 | severity 5 |"
    yield "| --- | --- | --- | --- | --- |"
    for recipe in conditions[0]:
        some = (each.get(recipe) for each in conditions)
        cells = " | ".join(f"{each['ece']:.1f}, {each['nll']:.2f}" if each else "" for each in some)
        yield f"| {recipe} | {cells} |"
    yield ""
    for severity, compared in found["with ops"].items():
        yield f"On the {images['ops']} images of each kind at severity {severity} that `ops` ran on:\n"
        yield "| recipe | gain | over auto | ECE | NLL |"
        yield "| --- | --- | --- | --- | --- |"
        for recipe, each in compared.items():
            if recipe != "source":
                over = gain(each["over auto"]) if "over auto" in each else ""
                yield f"| {recipe} | {gain(each['gain'])} | {over} | {each['ece']:.1f} | {each['nll']:.2f} |"
        yield ""


def gain(found: Mapping[str, float]) -> str:
    """Return a gain with its interval for a table."""
    return f"{found['score']:+.1f} ({found['low']:+.1f}…{found['high']:+.1f})".replace("-", "−")
