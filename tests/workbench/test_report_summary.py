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


def test_a_few_images_give_no_answer() -> None:
    results = gaining(ops=(10.0, 9.0, 11.0))
    results["setup"]["images"] = 4
    summary = summarize(results, None)
    assert summary.sentence.startswith("Too few images for an answer: ops gains 10.0 points")
    assert "Only 4 images per condition: the interval is not reliable. Use at least 50." in summary.notes


def test_a_gain_has_its_interval_and_its_cost() -> None:
    results = gaining(bn=(3.0, 2.0, 4.0), ops=(10.0, 9.0, 11.0))
    summary = summarize(results, make_timing())
    assert summary.sentence == (
        "Yes, it helps: ops gains 10.0 points of accuracy on corrupted images (95 % interval +9.0 to +11.0), "
        "at 10.2 times the source model's time."
    )
    assert summary.notes == ("ops loses 0.8 points on clean images (95 % interval −1.5 to −0.1).",)
    source, best, clean, time = summary.figures
    assert source.value == f"{results['methods'][0]['corrupted']['score']:.1f}"
    assert [(each.value, each.sense) for each in (best, clean)] == [("+10.0", "gain"), ("−0.8", "loss")]
    assert (time.value, time.note) == ("10.2", "12.34 ms per image; source model 1.21 ms")


def test_the_default_is_first_and_a_better_recipe_second() -> None:
    summary = summarize(gaining(auto=(8.0, 7.0, 9.0), ops=(10.0, 9.0, 11.0)), None)
    assert summary.sentence.startswith("Yes, it helps: auto gains 8.0 points")
    assert summary.notes[0].startswith("ops is best: it gains 10.0 points")
    assert [figure.label for figure in summary.figures][1:3] == ["auto, the default", "ops, best"]


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


def test_parts_that_were_not_run_are_named() -> None:
    results = small(without="corrupted")
    results["methods"][1]["clean"]["gain"] = make_gain(2.0)
    summary = summarize(results, None)
    assert summary.sentence.startswith("Yes, it helps: bn gains 2.0 points of accuracy on clean images")
    assert "Only clean images were run." in summary.notes
    summary = summarize(small(without="clean"), None)
    assert "Clean images were not run: the effect of ops on them is unknown." in summary.notes


def test_little_is_claimed_without_a_comparison_of_few_images_or_of_random_weights() -> None:
    results = small()
    results["setup"]["images"] = 49
    assert summarize(results, None).notes[0].startswith("Only 49 images")
    results["setup"]["weights"] = "random"
    assert summarize(results, None).sentence.startswith("The weights are random")
    summary = summarize(small(("source",)), make_timing())
    assert summary.sentence.startswith("Whether it helps is unknown")
    assert not summary.figures
