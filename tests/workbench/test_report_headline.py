"""The headline of a report and its key figures, on sample results."""

from __future__ import annotations

import pytest
from sample_results import gaining, make_gain, make_timing, small, without

from sita_workbench.report.headline import make_headline


def test_a_gain_has_its_interval_and_its_cost() -> None:
    results = gaining(bn=(3.0, 2.0, 4.0), ops=(10.0, 9.0, 11.0))
    headline = make_headline(results, make_timing())
    assert headline.sentence == (
        "Yes, it helps: ops gains 10.0 points of accuracy on corrupted images (95 % interval +9.0 to +11.0), "
        "at 10.2 times the source model's time."
    )
    source, best, clean, time = headline.figures
    assert (source.label, source.value) == ("source model", f"{results['methods'][0]['corrupted']['score']:.1f}")
    assert (best.label, best.value, best.unit, best.sense) == ("ops, best", "+10.0", "points", "gain")
    assert best.note.endswith("95 % interval +9.0 to +11.0")
    assert (clean.value, clean.sense) == ("−0.8", "loss")
    assert (time.value, time.note) == ("10.2", "12.3 ms per image, the source model 1.21 ms")


def test_a_certain_gain_goes_before_a_higher_uncertain_one() -> None:
    sentence = make_headline(gaining(bn=(2.0, 1.0, 3.0), ops=(2.5, -0.5, 5.5)), None).sentence
    assert sentence.startswith("Yes, it helps: bn gains 2.0 points")
    assert sentence.endswith(", for 1 row per image.")


@pytest.mark.parametrize(
    ("gain", "expected"),
    [
        ((0.8, 0.0, 1.7), "No certain gain on corrupted images: the best, ops, has +0.8 points of accuracy"),
        ((-2.0, -3.0, -1.0), "No: on corrupted images even the best, ops, loses 2.0 points of accuracy"),
    ],
)
def test_no_gain_is_claimed_where_none_is_certain(gain: tuple[float, float, float], expected: str) -> None:
    headline = make_headline(gaining(ops=gain), None)
    assert headline.sentence.startswith(expected)
    assert headline.figures[1].sense == ("" if gain[2] > 0 else "loss")


def test_the_default_recipe_stands_beside_a_better_one() -> None:
    results = gaining(bn=(8.0, 7.0, 9.0), ops=(10.0, 9.0, 11.0))
    results["methods"][1]["name"] = "auto"
    labels = [figure.label for figure in make_headline(results, None).figures]
    assert labels == ["source model", "ops, best", "auto, the default", "ops on clean images", "cost of ops"]


def test_clean_images_alone_are_named() -> None:
    results = without(small(), "corrupted")
    results["methods"][1]["gain_clean"] = make_gain(2.0)
    headline = make_headline(results, None)
    assert headline.sentence.startswith("Yes, it helps: bn gains 2.0 points of accuracy on clean images")
    assert not any("clean images" in figure.label for figure in headline.figures)


def test_without_clean_images_no_loss_is_claimed() -> None:
    (clean,) = [f for f in make_headline(without(small(), "clean"), None).figures if "clean" in f.label]
    assert clean.value == "not run"


@pytest.mark.parametrize("names", [("source",), ("bn", "ops")])
def test_nothing_is_claimed_without_a_comparison(names: tuple[str, ...]) -> None:
    results = small(names=names)
    headline = make_headline(results, make_timing())
    assert headline.sentence.startswith("Whether it helps is not known")
    assert not headline.figures


def test_random_weights_say_nothing() -> None:
    results = small()
    results["setup"]["weights"] = "random"
    assert make_headline(results, None).sentence.startswith("The weights are random")


def test_a_study_without_recipes_is_about_its_points() -> None:
    results = small("lambda", ("source",))
    best = max((m for m in results["methods"] if m["study"]), key=lambda m: m["corrupted"]["score"])
    assert best["name"] in make_headline(results, None).sentence
