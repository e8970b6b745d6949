"""The summary of a report and its key figures, on sample results."""

from __future__ import annotations

from typing import Any

import pytest
from sample_results import gaining, make_gain, make_timing, small, without

from sita_workbench.report.summary import summarize


def with_default(**gains: tuple[float, float, float]) -> dict[str, Any]:
    """Results in which `augbn` goes by the default's name."""
    results = gaining(**gains)
    for method in results["methods"]:
        if method["name"] == "augbn":
            method["name"] = "auto"
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
    assert best.note.endswith("95 % interval +9.0 to +11.0")
    assert (clean.value, clean.sense) == ("−0.8", "loss")
    assert (time.value, time.note) == ("10.2", "12.3 ms per image, the source model 1.21 ms")


def test_the_default_goes_first_and_a_better_recipe_second() -> None:
    summary = summarize(with_default(augbn=(8.0, 7.0, 9.0), ops=(10.0, 9.0, 11.0)), None)
    assert summary.sentence.startswith("Yes, it helps: auto gains 8.0 points")
    assert summary.notes[0] == (
        "Best is ops: it gains 10.0 points on corrupted images (95 % interval +9.0 to +11.0), for 22 rows per image."
    )
    labels = [figure.label for figure in summary.figures]
    assert labels == ["source model", "auto, the default", "ops, best", "auto on clean images", "cost of auto"]


def test_a_certain_gain_goes_before_a_higher_uncertain_one() -> None:
    sentence = summarize(gaining(bn=(2.0, 1.0, 3.0), ops=(2.5, -0.5, 5.5)), None).sentence
    assert sentence.startswith("Yes, it helps: bn gains 2.0 points")
    assert sentence.endswith(", for 1 row per image.")


def test_of_equal_scores_the_cheaper_is_best() -> None:
    summary = summarize(gaining(ops=(10.0, 9.0, 11.0), augbn=(10.0, 9.0, 11.0)), None)
    assert "augbn gains" in summary.sentence


@pytest.mark.parametrize(
    ("gain", "expected"),
    [
        ((0.8, 0.0, 1.7), "No certain gain: ops gains 0.8 points of accuracy on corrupted images"),
        ((-0.2, -1.0, 0.6), "No certain gain: ops loses 0.2 points of accuracy on corrupted images"),
        ((-2.0, -3.0, -1.0), "No, it harms: ops loses 2.0 points of accuracy on corrupted images"),
    ],
)
def test_no_gain_is_claimed_where_none_is_certain(gain: tuple[float, float, float], expected: str) -> None:
    summary = summarize(gaining(ops=gain), None)
    assert summary.sentence.startswith(expected)
    assert summary.figures[1].sense == ("" if gain[2] > 0 else "loss")


@pytest.mark.parametrize(("images", "warned"), [(1, True), (49, True), (50, False)])
def test_few_images_are_warned_of(images: int, warned: bool) -> None:
    results = small()
    results["setup"]["images"] = images
    notes = summarize(results, None).notes
    assert notes[0].startswith(f"Only {images} image") == warned


def test_clean_images_alone_are_named() -> None:
    results = without(small(), "corrupted")
    results["methods"][1]["gain_clean"] = make_gain(2.0)
    summary = summarize(results, None)
    assert summary.sentence.startswith("Yes, it helps: bn gains 2.0 points of accuracy on clean images")
    assert "Only clean images were run." in summary.notes
    assert not any("clean images" in figure.label for figure in summary.figures)


def test_without_clean_images_no_loss_is_claimed() -> None:
    summary = summarize(without(small(), "clean"), None)
    assert "Clean images were not run, so what ops costs there is unknown." in summary.notes
    (clean,) = [figure for figure in summary.figures if "clean" in figure.label]
    assert clean.value == "not run"


@pytest.mark.parametrize("names", [("source",), ("bn", "ops")])
def test_nothing_is_claimed_without_a_comparison(names: tuple[str, ...]) -> None:
    results = small(names=names)
    if "source" not in names:
        for method in results["methods"]:
            method["gain"] = method["gain_clean"] = None
    summary = summarize(results, make_timing())
    assert summary.sentence.startswith("Whether it helps is unknown")
    assert not summary.figures


@pytest.mark.parametrize("timing", [None, {}, {"methods": {}}, make_timing(("source",))])
def test_without_time_rows_are_given(timing: dict[str, Any] | None) -> None:
    assert summarize(small(), timing).sentence.endswith(", for 22 rows per image.")


def test_random_weights_say_nothing() -> None:
    results = small()
    results["setup"]["weights"] = "random"
    assert summarize(results, None).sentence.startswith("The weights are random")


def test_segmentation_is_scored_in_miou() -> None:
    results = small()
    results["setup"].update(task="segmentation", metric="mIoU")
    assert "points of mIoU on corrupted images" in summarize(results, None).sentence


def test_the_best_point_of_a_study_has_a_warning() -> None:
    results = small("lambda", ("source", "ops"))
    best = max((m for m in results["methods"] if m["study"]), key=lambda m: m["corrupted"]["score"])
    notes = " ".join(summarize(results, None).notes)
    assert f"Of the 22 points of the study, {best['name']} is highest: {best['corrupted']['score']:.1f} %." in notes
    assert "partly luck" in notes
    results["methods"].pop(1)
    assert f"{best['name']} gains" in summarize(results, None).sentence
