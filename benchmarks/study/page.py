# ruff: noqa: E501  (lines of the page)
"""docs/study.md: every recipe, network and group of conditions, with intervals; and the tables of other pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .networks import NETWORKS
from .rows import PREVIOUS
from .rows import ROWS as CHEAP_ROWS
from .summary import NEW

ROWS = {**CHEAP_ROWS, "ops": 22}

TITLES = {"clean": "clean", "1": "severity 1", "3": "severity 3", "5": "severity 5", "hold-out": "hold-out kinds"}
"""The groups of conditions, as columns."""

_HEAD = f"""# The study behind the default

This page is the appendix to [Results](results.md). It lists every recipe, network and severity. `make study DATA=… CIFAR=…` runs the study. Rerun it to resume.
`python -m benchmarks.study --show` writes this page and the tables of README and Results from `benchmarks/results/study.json`.

The study uses clean images, the fifteen corruptions of ImageNet-C and CIFAR-10-C at severities 1, 3 and 5, and four more kinds at severity 5 (the column "hold-out kinds": spatter, saturate, speckle noise and Gaussian blur).
Every recipe adapts to each image independently, and all recipes run on the same images. Parentheses show 95 % bootstrap intervals. The bootstrap resamples the same images for every recipe and kind, so gains are
paired. Gains are in percentage points of accuracy, or of mean IoU for the segmentation network. ECE is the expected calibration error in percent (15 bins, all kinds
together). NLL is the negative log-likelihood.

The rules and constants of the recipes were chosen on other images than those of this page: the choosing half, which consists of CIFAR-10 test images 0 to 999, every second one of 664 ImageNet validation images, and the last 67 training images of CamVid. They were chosen with the networks marked ○ and with the fifteen kinds of corruption.
The other networks and the four hold-out kinds were not used. (The weight for segmentation, 8, was chosen on CamVid only, and restoring views were first tried with an earlier formula on the hold-out kinds as well.) Everything was measured on a CPU.

The images of this page are CIFAR-10 test images 1,000 to 1,999, the other half of the ImageNet images, and CamVid test images. The ImageNet images are an easy subset: compare recipes on them, but don't quote their accuracy.
The corruptions are this project's own implementations (`sita corruptions`).

| name | what it is |
| --- | --- |
| bn | one row, λ = 16/17 |
| shift | one row, λ by shift, at least 0.625 |
| calibrated | one row, the recipe that `sita.calibrate` returns for 128 clean images of the choosing half (for RoadNet, the last 67 of CamVid's training set, which it wasn't trained on) |
| auto | the default: two rows, mixed by their confidence |
| restore | three rows: the source on the image, and the adapted network on a median-filtered and on a sharpened view |
| {PREVIOUS} | the rows of auto with the weights of an earlier version, which also depended on the shift |
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
    """Return the table of the README: the source model's score, and what `auto`, `restore` and `calibrated` change."""
    shown = (("clean", "auto"), ("5", "auto"), ("5", "restore"), ("5", "calibrated"))
    lines = [
        "| network (clean images; corrupted images per kind) | clean: source, `auto` | severity 5: source, `auto` | severity 5: `restore` | severity 5: `calibrated` |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, found in results.items():
        count, groups = found["images"], found["groups"]
        cells = [
            (f"{groups[group]['source']['score']:.1f} " if recipe == "auto" else "")
            + gain(groups[group][recipe]["gain"])
            for group, recipe in shown
        ]
        lines.append(f"| {title_of(name)} ({count['clean']:,}; {count['5']}) | {' | '.join(cells)} |")
    means = [f"**{signed(mean_gain(results, group, recipe))}**" for group, recipe in shown]
    return "\n".join([*lines, f"| **mean change** | {' | '.join(means)} |"])


def all_recipes_table(results: Mapping[str, Any]) -> str:
    """Return the table of docs/results.md: what each recipe gains at severity 5, and `ops` on fewer images."""
    shown = ("bn", "shift", "auto", "restore", "calibrated")
    heads = " | ".join(f"{recipe} ({ROWS[recipe]})" for recipe in shown)
    lines = [f"| network | source | {heads} | ops (22) minus auto |", f"| --- | ---: |{' --- |' * (len(shown) + 1)}"]
    over = [found["with ops"]["ops"]["over auto"] for found in results.values()]
    for (name, found), of_ops in zip(results.items(), over, strict=True):
        at = found["groups"]["5"]
        cells = " | ".join([*(gain(at[recipe]["gain"]) for recipe in shown), gain(of_ops)])
        lines.append(f"| {title_of(name)} | {at['source']['score']:.1f} | {cells} |")
    means = [mean_gain(results, "5", recipe) for recipe in shown] + [sum(each["score"] for each in over) / len(over)]
    return "\n".join([*lines, f"| **mean** | | {' | '.join(f'**{signed(mean)}**' for mean in means)} |"])


def mean_gain(results: Mapping[str, Any], group: str, recipe: str) -> float:
    """Return a recipe's gain in a group of conditions, averaged over the networks."""
    gains = [found["groups"][group][recipe]["gain"]["score"] for found in results.values()]
    return float(sum(gains) / len(gains))


def write_page(results: Mapping[str, Any]) -> str:
    """Return the page."""
    lines = [*_overview(results), *(line for name, found in results.items() for line in _network(name, found))]
    return "\n".join([_HEAD, *lines]) + "\n"


def title_of(name: str) -> str:
    """Return a network's title, marked if rules were chosen on it."""
    return f"{NETWORKS[name].title}{' ○' if NETWORKS[name].looked_at else ''}"


def signed(value: float) -> str:
    """Return a difference for a table."""
    return f"{value:+.1f}".replace("-", "−")


def gain(found: Mapping[str, float]) -> str:
    """Return a gain with its interval for a table."""
    return f"{found['score']:+.1f} ({found['low']:+.1f}…{found['high']:+.1f})".replace("-", "−")


def _table(*heads: str) -> str:
    """Return the first two lines of a table."""
    return f"| {' | '.join(heads)} |\n| --- |{' --- |' * (len(heads) - 1)}"


def _overview(results: Mapping[str, Any]) -> Iterator[str]:
    classifiers = {name: found for name, found in results.items() if NETWORKS[name].kind != "camvid"}
    if not classifiers:
        return
    yield f"## Mean over the classifiers\n\nThe mean of the gains of {len(classifiers)} networks, in points.\n"
    yield _table("recipe", "rows", *TITLES.values())
    for recipe in CHEAP_ROWS:
        if recipe != "source":
            cells = " | ".join(signed(mean_gain(classifiers, group, recipe)) for group in TITLES)
            yield f"| {recipe} | {ROWS[recipe]} | {cells} |"
    yield ""


def _network(name: str, found: Mapping[str, Any]) -> Iterator[str]:
    images, groups = found["images"], [found["groups"][group] for group in TITLES]
    yield f"## {title_of(name)}\n"
    of_groups = [
        f"{images['clean']} clean images",
        *(f"{images[group]} ({TITLES[group]})" for group in TITLES if group != "clean"),
    ]
    yield f"{', '.join(of_groups)} for each kind. `sita.calibrate` chooses k = {found['calibrate']['k']:.3g}.\n"
    yield _table("recipe", "rows", *TITLES.values())
    yield f"| source | 1 | {' | '.join(format(each['source']['score'], '.1f') for each in groups)} |"
    for recipe in CHEAP_ROWS:
        if recipe != "source":
            yield f"| {recipe} | {ROWS[recipe]} | {' | '.join(gain(each[recipe]['gain']) for each in groups)} |"
    yield "\nThe difference from the previous auto:\n"
    yield _table("recipe", *TITLES.values())
    for recipe in NEW:
        yield f"| {recipe} | {' | '.join(gain(each[recipe]['over previous']) for each in groups)} |"
    yield ""
    yield _table("ECE, NLL", *TITLES.values())
    for recipe in CHEAP_ROWS:
        some = (each[recipe] for each in groups)
        cells = " | ".join(f"{each['ece']:.1f}, {each['nll']:.2f}" for each in some)
        yield f"| {recipe} | {cells} |"
    yield f"\nOn the {images['ops']} images of each kind at severity 5 that `ops` ran on:\n"
    yield _table("recipe", "gain", "over auto", "ECE", "NLL")
    for recipe, each in found["with ops"].items():
        if recipe != "source":
            over = gain(each["over auto"]) if "over auto" in each else ""
            yield f"| {recipe} | {gain(each['gain'])} | {over} | {each['ece']:.1f} | {each['nll']:.2f} |"
    yield ""
