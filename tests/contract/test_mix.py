"""The default: a mix of the source's and the adapted row's scores, or the outputs of one, against loops in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reference
from small_network import EPSILONS, Mix, images

import sita_adapters as sita
from sita_adapters.combining import mix_scores
from sita_adapters.ops import NUMPY

KINDS = {None: "logits", "softmax": "probabilities", "sigmoid": "sigmoid_probabilities"}


def batch_of(count: int) -> np.ndarray:
    """Images at shifts D of 0.36, 0.16, 0.03 and 0.14; on the first, the source is more than twice as confident."""
    return images(400, seed=3)[[72, 221, 152, 308]][:count]


def close(found: np.ndarray, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dense", [False, True], ids=["one label", "a label per pixel"])
@pytest.mark.parametrize("activation", [None, "softmax"])
def test_class_scores_are_mixed_by_confidence(backend: Any, activation: str | None, dense: bool) -> None:
    """A segmented image has one weight, from the mean confidence of its pixels."""
    batch, kind = batch_of(4), KINDS[activation]
    found = backend.run(sita.adapt(backend.model(activation=activation, dense=dense)), batch)
    rows = [Mix([image], activation=activation, dense=dense) for image in batch]
    close(found, [each.answer(kind) for each in rows])
    weights = [each.weights(kind)[1] for each in rows]
    assert min(weights) < (0.64 if dense else 0.5) < 2 / 3 < max(weights)


@pytest.mark.parametrize("max_rows", [None, 1])
@pytest.mark.parametrize("adapted_weight", [2.0, 0.5])
def test_adapted_rows_share_their_weight_by_how_close_they_are(
    backend: Any, adapted_weight: float, max_rows: int | None
) -> None:
    batch, third = batch_of(4), sita.ByShift(strength=0.4, half_shift=0.05, half_area=0.4)
    priors = (1.0, sita.ByShift(strength=1.0), third)
    found = backend.run(
        sita.adapt(backend.model(), priors=priors, adapted_weight=adapted_weight, max_rows=max_rows), batch
    )
    rows = [Mix([image], rules=(reference.BOLD, reference.Rule(0.4, 0.05, 0.4))) for image in batch]
    close(found, [each.answer("logits", adapted_weight) for each in rows])
    shares = [weights[1] / (weights[1] + weights[2]) for weights in (each.weights("logits") for each in rows)]
    assert np.ptp(shares) > 0.05


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("labels", [1, 4])
@pytest.mark.parametrize("activation", [None, "sigmoid"])
def test_sigmoid_labels_are_mixed_as_log_odds(backend: Any, activation: str | None, labels: int) -> None:
    batch, kind = batch_of(3), "sigmoid" if activation is None else "sigmoid_probabilities"
    found = backend.run(sita.adapt(backend.model(activation=activation, classes=labels), scores=kind), batch)
    close(found, [Mix([image], activation=activation, classes=labels).answer(kind) for image in batch])


@pytest.mark.parametrize(
    ("output", "options", "settings"),
    [
        ("two", {}, {}),
        ("labels", {}, {}),
        ("scores", {"classes": 1}, {}),
        ("scores", {"activation": "sigmoid", "classes": 4}, {}),
        ("scores", {"activation": "softmax"}, {"scores": "none"}),
        ("dict", {}, {"scores": "none"}),
    ],
    ids=[
        "several outputs",
        "labels",
        "one number per image",
        "values from 0 to 1",
        "no scores",
        "no scores, two outputs",
    ],
)
def test_without_scores_the_shift_selects_a_row(
    backend: Any, output: str, options: dict[str, Any], settings: dict[str, Any]
) -> None:
    """Embeddings, boxes, regression: nothing is averaged."""
    batch = batch_of(4)
    batch[1] *= 4
    with pytest.warns(sita.SitaWarning, match="usually the source's"):
        adapted = sita.adapt(backend.model(output, **options), example=backend.to_images(batch), **settings)
    found = backend.run(adapted, batch)
    rows = [Mix([image], **options) for image in batch]
    chosen = [int(np.argmax(reference.selection_weights(each.shifts))) for each in rows]
    assert set(chosen) == {0, 1}
    wanted = np.stack([each.scores[row] for each, row in zip(rows, chosen, strict=True)])
    scores = {"two": "a", "dict": "logits"}.get(output)
    if output == "labels":
        np.testing.assert_array_equal(found, wanted.argmax(-1))
    else:
        close(found if scores is None else found[scores], wanted)
    if output == "two":
        close(found["b"], 2 * found["a"])
    if output == "dict":
        close(found["features"], [each.features[row] for each, row in zip(rows, chosen, strict=True)])
    assert sita.describe(adapted).scores is None


@pytest.mark.slow_on("tensorflow", "jax")
def test_models_with_and_without_a_softmax_agree(backend: Any) -> None:
    batch = batch_of(4)
    logits, probabilities = (backend.run(sita.adapt(backend.model(activation=a)), batch) for a in (None, "softmax"))
    np.testing.assert_allclose(probabilities, reference.softmax(logits), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(probabilities.sum(-1), 1, rtol=1e-5)


@pytest.mark.parametrize("output", ["dict", "list", "labels and scores"])
def test_beside_other_outputs_the_row_with_the_larger_weight_supplies_everything(backend: Any, output: str) -> None:
    batch = batch_of(4)
    adapted = sita.adapt(backend.model(output), **({"output": 1} if output == "list" else {}))
    found = backend.run(adapted, batch)
    other, scores = (0, 1) if output == "list" else ("features", "logits") if output == "dict" else ("out", "scores")
    chosen = []
    for place, image in enumerate(batch):
        rows = Mix([image])
        chosen.append(int(np.argmax(rows.weights("logits"))))
        close(found[scores][place], rows.scores[chosen[-1]])
        labels = rows.scores[chosen[-1]].argmax()
        close(found[other][place], labels if output == "labels and scores" else rows.features[chosen[-1]])
    assert len(set(chosen)) == 2
    batch[0] = 1e25  # whose variance overflows
    overflown = backend.run(adapted, batch)[scores]
    assert np.isnan(overflown[0]).all()
    assert np.isfinite(overflown[1:]).all()


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("max_rows", [1, 2, 3])
def test_rows_that_run_one_after_the_other_give_the_same_answers(backend: Any, max_rows: int) -> None:
    model, batch = backend.model("dict"), batch_of(3)
    whole = backend.run(sita.adapt(model), batch)
    parts = backend.run(sita.adapt(model, max_rows=max_rows), batch)
    for key, value in whole.items():
        np.testing.assert_allclose(parts[key], value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layers", ["bn1", ["bn1", "bn3"]], ids=str)
def test_only_the_chosen_layers_are_adapted_in_a_mix(backend: Any, layers: Any) -> None:
    batch = batch_of(3)
    adapted = [layers] if isinstance(layers, str) else layers
    found = backend.run(sita.adapt(backend.model(), layers=layers), batch)
    close(found, [Mix([image], adapted=adapted).answer("logits") for image in batch])


@pytest.mark.parametrize("mask", [-np.inf, float(np.finfo(np.float32).min)], ids=["infinity", "smallest"])
@pytest.mark.parametrize("kind", ["logits", "log_probabilities"])
def test_a_row_cannot_veto_the_classes_of_another(kind: Any, mask: float) -> None:
    """Each row masks what the other one predicts, as in a hierarchy of classes; the last class is masked by both."""
    z = np.random.default_rng(0).normal(size=(2, 2, 5))
    z[:, 0, :2] = z[:, 1, 2:4] = z[:, :, 4] = mask
    if kind == "log_probabilities":
        z = np.maximum(z - np.log(np.exp(z).sum(-1, keepdims=True)), mask)
    found = mix_scores(z, np.array([[0.7, 0.3], [0.2, 0.8]]), kind, -1, NUMPY)
    assert found.argmax(-1).tolist() == [2 + z[0, 0, 2:4].argmax(), z[1, 1, :2].argmax()]
    assert (found[:, 4] < -1e30).all()
    p = np.where(z < -1e30, 0.0, reference.softmax(z))
    twin = mix_scores(p, np.array([[0.7, 0.3], [0.2, 0.8]]), "probabilities", -1, NUMPY)
    np.testing.assert_allclose(reference.softmax(found), twin, atol=1e-6)


def test_the_order_of_the_priors_does_not_matter(backend: Any) -> None:
    batch, rule = batch_of(3), sita.ByShift(strength=1.0)
    found = backend.run(sita.adapt(backend.model(), priors=(rule, 1.0)), batch)
    close(found, [Mix([image]).answer("logits") for image in batch])


def test_a_batch_is_its_images_one_by_one(backend: Any) -> None:
    adapted, batch = sita.adapt(backend.model("dict")), batch_of(4)
    together = backend.run(adapted, batch)
    for place in range(4):
        for key, value in backend.run(adapted, batch[place : place + 1]).items():
            np.testing.assert_allclose(together[key][place : place + 1], value, rtol=1e-5, atol=1e-5)


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("settings", [{}, {"max_rows": 1}], ids=str)
def test_both_rows_and_the_shift_are_observed(backend: Any, settings: dict[str, Any]) -> None:
    adapted, batch = sita.adapt(backend.model(), **settings), batch_of(4)
    with sita.observe(adapted) as seen:
        answer = backend.run(adapted, batch)
    rows = [Mix([image]) for image in batch]
    assert len(seen) == 4
    assert seen.kept.all()
    assert np.isnan(seen.shifts[:, 0]).all()
    np.testing.assert_allclose(seen.shifts[:, 1], [each.shifts[1] for each in rows], rtol=1e-4)
    np.testing.assert_allclose(seen.weights, [each.weights("logits") for each in rows], rtol=1e-5)
    np.testing.assert_array_equal(seen.labels, [each.scores.argmax(-1) for each in rows])
    entropies = [[reference.entropy(list(z)) for z in each.scores] for each in rows]
    np.testing.assert_allclose(seen.entropies, entropies, atol=1e-5)
    np.testing.assert_array_equal(seen.answers, answer.argmax(-1))
    assert seen.layers == tuple(EPSILONS)


@pytest.mark.slow_on("jax")
def test_without_scores_the_shift_is_observed_and_labels_are_not(backend: Any) -> None:
    adapted, batch = sita.adapt(backend.model("two")), batch_of(2)
    with sita.observe(adapted) as seen:
        backend.run(adapted, batch)
    np.testing.assert_allclose(seen.shifts[:, 1], [Mix([image]).shifts[1] for image in batch], rtol=1e-4)
    with pytest.raises(sita.SitaError, match=r"labels: .*output="):
        _ = seen.labels
