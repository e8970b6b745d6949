"""What a report says first: whether the default recipe helps, by how much, and at what cost."""

from __future__ import annotations

from typing import Any

import pytest
from sample_results import make_gain, make_timing, small

from sita_workbench.report.summary import summarize


def gaining(**gains: tuple[float, float, float]) -> dict[str, Any]:
    """Return results with a gain on corrupted images and its interval for every method; `auto` is a renamed `augbn`."""
    results = small(("source", *(name.replace("auto", "augbn") for name in gains)))
    source = results["methods"][0]["corrupted"]["score"]
    for method, (name, gain) in zip(results["methods"][1:], gains.items(), strict=True):
        method["name"] = name
        method["corrupted"]["gain"] = dict(zip(("score", "low", "high"), gain, strict=True))
        method["corrupted"]["score"] = source + gain[0]
    return results


def test_a_gain_has_its_interval_and_its_cost() -> None:
    results = gaining(bn=(3.0, 2.0, 4.0), ops=(10.0, 9.0, 11.0))
    summary = summarize(results, make_timing())
    assert summary.sentence == (
        "Yes, it helps: ops gains 10.0 points of accuracy on corrupted images (95 % interval +9.0 to +11.0), "
        "at 10.2 times the source model's time."
    )
    assert summary.notes == ("ops loses 0.8 points on clean images (95 % interval −1.5 to −0.1).",)
    source, best, clean, time = summary.figures
    assert (source.label, source.value) == ("source model", f"{results['methods'][0]['corrupted']['score']:.1f}")
    assert (best.label, best.value, best.unit, best.sense) == ("ops, best", "+10.0", "points", "gain")
    assert (clean.value, clean.sense) == ("−0.8", "loss")
    assert (time.value, time.note) == ("10.2", "12.34 ms per image; source model 1.21 ms")


def test_the_default_is_first_and_a_better_recipe_second() -> None:
    summary = summarize(gaining(auto=(8.0, 7.0, 9.0), ops=(10.0, 9.0, 11.0)), None)
    assert summary.sentence.startswith("Yes, it helps: auto gains 8.0 points")
    assert summary.notes[0] == (
        "ops is best: it gains 10.0 points on corrupted images (95 % interval +9.0 to +11.0), for 22 rows per image."
    )
    labels = [figure.label for figure in summary.figures]
    assert labels == ["source model", "auto, the default", "ops, best", "auto on clean images", "cost of auto"]


@pytest.mark.parametrize(
    ("gains", "expected"),
    [
        # A certain gain is better than a higher uncertain one, and of equal ones the cheaper.
        ({"bn": (2.0, 1.0, 3.0), "ops": (2.5, -0.5, 5.5)}, "Yes, it helps: bn gains 2.0 points"),
        ({"ops": (9.0, 8.0, 10.0), "augbn": (9.0, 8.0, 10.0)}, "Yes, it helps: augbn gains 9.0 points"),
        ({"ops": (0.8, 0.0, 1.7)}, "No certain gain: ops gains 0.8 points"),
        ({"ops": (-0.2, -1.0, 0.6)}, "No certain gain: ops loses 0.2 points"),
        ({"ops": (-2.0, -3.0, -1.0)}, "No, it harms: ops loses 2.0 points"),
    ],
)
def test_a_gain_is_claimed_only_where_it_is_certain(gains: dict[str, Any], expected: str) -> None:
    assert summarize(gaining(**gains), None).sentence.startswith(expected)


@pytest.mark.parametrize(("images", "warned"), [(1, True), (49, True), (50, False)])
def test_few_images_are_warned_of(images: int, warned: bool) -> None:
    results = small()
    results["setup"]["images"] = images
    assert summarize(results, None).notes[0].startswith(f"Only {images} image") == warned


def test_parts_that_were_not_run_are_named() -> None:
    results = small(without="corrupted")
    results["methods"][1]["clean"]["gain"] = make_gain(2.0)
    summary = summarize(results, None)
    assert summary.sentence.startswith("Yes, it helps: bn gains 2.0 points of accuracy on clean images")
    assert "Only clean images were run." in summary.notes
    summary = summarize(small(without="clean"), None)
    assert "Clean images were not run: the effect of ops on them is unknown." in summary.notes
    assert not any("clean" in figure.label for figure in summary.figures)


def test_nothing_is_claimed_without_a_comparison_or_of_random_weights() -> None:
    results = small()
    results["setup"]["weights"] = "random"
    assert summarize(results, None).sentence.startswith("The weights are random")
    summary = summarize(small(("source",)), make_timing())
    assert summary.sentence.startswith("Whether it helps is unknown")
    assert not summary.figures
