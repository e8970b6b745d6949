"""The verdict of a report, on sample results."""

from __future__ import annotations

from typing import Any

import pytest
from sample_results import gaining, make_gain, make_timing, small, without

from sita_workbench.report.verdict import write_verdict


def test_a_gain_has_interval_time_and_loss() -> None:
    results = gaining(bn=(3.0, 2.0, 4.0), augbn=(8.0, 7.0, 9.0), ops=(10.0, 9.0, 11.0))
    said = write_verdict(results, make_timing())
    score = results["methods"][0]["corrupted"]["score"] + 10
    assert said.startswith(
        f"ops is best: {score:.1f} % accuracy on corrupted images (mean of 2 conditions with 200 images"
    )
    assert "10.0 points more than source (95 % interval of the gain +9.0 to +11.0)" in said
    assert "It takes 12.3 ms per image, 10.2 times source's." in said
    assert "On clean images it loses 0.8 points (95 % interval −1.5 to −0.1)." in said
    assert "For less time, augbn gains 8.0 points (95 % interval +7.0 to +9.0) in 3.27 ms." in said
    assert "includes 0" not in said


@pytest.mark.parametrize(
    ("gain", "expected"),
    [
        ((-2.0, -3.0, -1.0), "it loses 2.0 points (95 % interval −3.0 to −1.0)"),
        ((0.3, -0.4, 1.0), "no certain difference: +0.3, 95 % interval −0.4 to +1.0, which includes 0"),
        ((1.0, 0.4, 1.6), "it gains 1.0 point (95 % interval +0.4 to +1.6)"),
    ],
)
def test_the_verdict_covers_clean_images(gain: tuple[float, float, float], expected: str) -> None:
    results = gaining(ops=(10.0, 9.0, 11.0))
    results["methods"][1]["gain_clean"] = dict(zip(("score", "low", "high"), gain, strict=True))
    assert expected in write_verdict(results, None)


@pytest.mark.parametrize("interval", [(0.8, -0.1, 1.7), (0.8, 0.0, 1.7), (-0.2, -1.0, 0.6)])
def test_an_interval_with_0_is_no_gain(interval: tuple[float, float, float]) -> None:
    said = write_verdict(gaining(bn=(-3.0, -4.0, -2.0), ops=interval), make_timing())
    assert said.startswith("No recipe gains: the best, ops, has")
    assert "includes 0" in said
    assert "is best" not in said


def test_a_loss_of_all_is_no_gain() -> None:
    said = write_verdict(gaining(bn=(-3.0, -4.0, -2.0), ops=(-2.0, -3.0, -1.0)), make_timing())
    assert said.startswith("No recipe gains: the best, ops, has")
    assert "−2.0 against source, which is a loss (95 % interval −3.0 to −1.0)" in said
    assert "includes 0" not in said


def test_a_certain_gain_goes_before_a_higher_uncertain_one() -> None:
    said = write_verdict(gaining(bn=(2.0, 1.0, 3.0), ops=(2.5, -0.5, 5.5)), None)
    assert said.startswith("bn is best")
    assert "ops scores higher" in said
    assert "the interval of its gain, −0.5 to +5.5, includes 0" in said


def test_of_equal_scores_the_cheaper_is_best() -> None:
    said = write_verdict(gaining(ops=(10.0, 9.0, 11.0), augbn=(10.0, 9.0, 11.0)), None)
    assert said.startswith("augbn is best")


def test_source_alone_is_compared_with_nothing() -> None:
    said = write_verdict(small(names=("source",)), None)
    assert said.startswith("Only source was run")
    assert "gain" not in said
    assert "clean images" in said
    assert "Time was not measured." in said


def test_without_source_no_gain_is_claimed() -> None:
    results = small(names=("bn", "ops"))
    for method in results["methods"]:
        method["gain"] = method["gain_clean"] = None
    said = write_verdict(results, None)
    assert "ops is highest" in said
    assert "Source was not run" in said
    assert "more than" not in said


def test_without_corrupted_images_the_verdict_is_about_clean_ones() -> None:
    results = without(small(), "corrupted")
    said = write_verdict(results, make_timing())
    assert said.startswith("No recipe gains: the best, bn, has 91.2 % accuracy on clean images")
    assert "Corrupted images were not run" in said
    results["methods"][1]["gain_clean"] = make_gain(2.0)
    said = write_verdict(results, make_timing())
    assert said.startswith("bn is best: 91.2 % accuracy on clean images")
    assert "loses" not in said


def test_without_clean_images_no_loss_is_claimed() -> None:
    said = write_verdict(without(small(), "clean"), make_timing())
    assert "Clean images were not run, so what it loses on them is not known." in said


@pytest.mark.parametrize("timing", [None, {}, {"methods": {}}, make_timing(("source",))])
def test_without_time_rows_are_given(timing: dict[str, Any] | None) -> None:
    said = write_verdict(small(), timing)
    assert "ime was not measured; it runs 22 rows per image." in said
    assert " ms " not in said


def test_segmentation_is_scored_in_miou() -> None:
    results = small()
    results["setup"].update(task="segmentation", metric="mIoU")
    said = write_verdict(results, None)
    assert "% mIoU on corrupted images" in said
    assert "accuracy" not in said


def test_the_best_point_of_a_study_has_a_warning() -> None:
    results = small("lambda", ("source", "ops"))
    said = write_verdict(results, None)
    best = max((m for m in results["methods"] if m["study"]), key=lambda m: m["corrupted"]["score"])
    assert f"Of the 22 points of the study, {best['name']} is highest: {best['corrupted']['score']:.1f} %" in said
    assert "partly luck" in said
    results["methods"].pop(1)
    assert write_verdict(results, None).startswith(f"{best['name']} is best")
