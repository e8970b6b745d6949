"""Dense prediction, structured outputs, fewer rows at once, observe and cascade, in Keras."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import sita_adapters as sita

CLASSES = 5


def images(count: int = 3, size: int = 12, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    gain = random.uniform(0.5, 2.0, (count, 1, 1, 1))
    return (gain * random.normal(size=(count, size, size, 3)) + random.normal(size=(count, 1, 1, 3))).astype("float32")


def net(kind: str = "scores", activation: str | None = None, units: int = CLASSES) -> keras.Model:
    """A small network with two BatchNorms; `kind` says what it puts out."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((12, 12, 3))
    x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(8, 3, padding="same")(inputs)))
    features = layers.ReLU(name="features")(layers.BatchNormalization()(layers.Conv2D(8, 3, padding="same")(x)))
    if kind == "dense":
        outputs: Any = layers.Conv2D(units, 1, activation=activation)(features)
    else:
        scores = layers.Dense(units, activation=activation)(layers.GlobalAveragePooling2D()(features))
        outputs = {
            "scores": scores,
            "dict": {"logits": scores, "features": features},
            "list": [features, scores],
            "other": {"a": scores, "b": 2 * scores},
        }[kind]
    model = keras.Model(inputs, outputs)
    random = np.random.default_rng(1)
    for layer in model.layers:
        if isinstance(layer, layers.BatchNormalization):
            layer.gamma.assign(random.uniform(0.7, 1.3, 8))
            layer.beta.assign(random.uniform(-0.3, 0.3, 8))
            layer.moving_mean.assign(random.normal(size=8) * 0.2)
            layer.moving_variance.assign(random.uniform(0.5, 1.5, 8))
        elif isinstance(layer, layers.Dense):
            layer.kernel.assign(3 * random.normal(size=(8, units)))
    return model


def close(one: Any, other: Any, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(np.asarray(one), np.asarray(other), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("recipe", ["source", "augbn", "ops", "ops_shared"])
def test_outputs_come_back_in_the_same_structure(recipe: str) -> None:
    x = images()
    expected = sita.adapt(net(), recipe).predict(x, verbose=0)
    answer = sita.adapt(net("dict"), recipe).predict(x, verbose=0)
    assert sorted(answer) == ["features", "logits"]
    close(answer["logits"], expected)
    assert answer["features"].shape == (3, 12, 12, 8)
    features, scores = sita.adapt(net("list"), recipe, output=1).predict(x, verbose=0)
    close(scores, expected)
    close(features, answer["features"])
    other = sita.adapt(net("other"), recipe, output=lambda out: out["a"]).predict(x, verbose=0)
    close(other["a"], expected)


def test_what_is_not_voted_on_is_the_most_certain_candidates() -> None:
    model, x = net("dict"), images()
    adapted = sita.adapt(model, "ops")
    with sita.observe(adapted) as seen:
        answer = adapted.predict(x, verbose=0)
    for image, prior in enumerate(seen.priors):
        alone = sita.adapt(model, "augbn", priors=float(prior)).predict(x[image : image + 1], verbose=0)
        close(answer["features"][image], alone["features"][0])


def test_what_cannot_be_voted_on() -> None:
    with pytest.raises(sita.OutputError, match=r"several parts.*: a, b.*output="):
        sita.adapt(net("other"))
    with pytest.raises(sita.OutputError, match=r"output='c' gives nothing.*a, b"):
        sita.adapt(net("other"), output="c")
    with pytest.raises(sita.OutputError, match="two classes or more"):
        sita.adapt(net(units=1))
    inputs = keras.Input((12, 12, 3))
    merged = keras.Model(inputs, keras.ops.mean(net()(inputs)))
    with pytest.raises(sita.OutputError, match="number for the whole batch"):
        sita.adapt(merged)


def test_a_structured_model_is_saved(tmp_path: Path) -> None:
    adapted, x = sita.adapt(net("list"), output=1, max_rows=6), images()
    adapted.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    for one, other in zip(again.predict(x, verbose=0), adapted.predict(x, verbose=0), strict=True):
        close(one, other)


class TestDense:
    """Every pixel votes for itself."""

    @pytest.mark.parametrize("recipe", ["augbn", "ops"])
    def test_pixels_vote_as_images_do(self, recipe: str) -> None:
        """Of the pixels' own candidates, which models of one prior each give."""
        model, x = net("dense"), images(2)
        said = sita.adapt(model, recipe).predict(x, verbose=0)
        priors = sita.RECIPES[recipe].lambdas
        candidates = np.stack([sita.adapt(model, "augbn", priors=p).predict(x, verbose=0) for p in priors], axis=1)
        if recipe == "augbn":
            close(said, candidates[:, 0])
            return
        z = candidates.astype(np.float64)
        p = np.exp(z - z.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        entropies = -(p * np.log(p)).sum(-1)
        order = np.argsort(entropies, axis=1)
        gap = np.take_along_axis(entropies, order[:, 3:4], 1) - np.take_along_axis(entropies, order[:, 2:3], 1)
        checked = 0
        for image, row, column in np.ndindex(2, 12, 12):
            kept = order[image, :3, row, column]
            labels = z[image, kept, row, column].argmax(-1)
            if gap[image, 0, row, column] < 1e-6 or len(set(labels)) == 3:
                continue
            winner = np.bincount(labels).argmax()
            expected = z[image, kept[labels == winner], row, column].mean(0)
            close(said[image, row, column], expected, 2e-5)
            checked += 1
        assert checked > 250

    @pytest.mark.parametrize("recipe", sita.RECIPES)
    def test_every_recipe_of_segmentation(self, recipe: str) -> None:
        model, x = net("dense", "softmax"), images(2)
        said = sita.adapt(model, recipe, task="segmentation").predict(x, verbose=0)
        close(said.sum(-1), np.ones((2, 12, 12)))

    def test_an_ensemble_keeps_pixels_in_place(self) -> None:
        with pytest.raises(sita.OutputError, match="task='segmentation'"):
            sita.adapt(net("dense"), "ensemble")
        with pytest.raises(sita.RecipeError, match="move the pixels"):
            sita.adapt(net("dense"), "ensemble", task="segmentation", augment="lossless")


@pytest.mark.parametrize(("kind", "units"), [("scores", 1), ("scores", 4), ("dense", 1)])
def test_labels_with_a_sigmoid_each(kind: str, units: int) -> None:
    x = images()
    with_sigmoid = sita.adapt(net(kind, "sigmoid", units))
    assert sita.describe(with_sigmoid).scores == "sigmoid_probabilities"
    logits = sita.adapt(net(kind, None, units), scores="sigmoid").predict(x, verbose=0).astype(np.float64)
    close(with_sigmoid.predict(x, verbose=0), 1 / (1 + np.exp(-logits)))


@pytest.mark.parametrize(("recipe", "max_rows"), [("augbn", 4), ("ops_shared", 4), ("ops", 9), ("ops", 30)])
def test_fewer_rows_at_once_give_the_same_answers(recipe: str, max_rows: int) -> None:
    model, x = net("dict"), images(4)
    whole = sita.adapt(model, recipe).predict(x, verbose=0)
    bounded = sita.adapt(model, recipe, max_rows=max_rows)
    for answer in (bounded.predict(x, verbose=0), bounded.predict_on_batch(x), bounded(x)):
        for key in whole:
            close(keras.ops.convert_to_numpy(answer[key]), whole[key])
    assert sita.describe(bounded).max_rows == max_rows
    assert sita.describe(bounded).recipe == sita.describe(sita.adapt(model, recipe)).recipe
    close(sita.unwrap(bounded).predict(x, verbose=0)["logits"], model.predict(x, verbose=0)["logits"])


def test_too_few_rows_are_refused() -> None:
    with pytest.raises(sita.RecipeError, match="max_rows: expected at least 3"):
        sita.adapt(net(), "augbn", max_rows=2)


def test_rounds_refuse_what_the_others_refuse() -> None:
    model = net()
    before = [np.array(weight) for weight in model.get_weights()]
    adapted = sita.adapt(model, "augbn", max_rows=3)
    with pytest.raises(sita.SharedWeightsError):
        adapted(images(), training=True)
    outer = keras.Sequential([keras.Input((12, 12, 3)), adapted, layers.Dense(2)])
    outer.compile("sgd", "mse", run_eagerly=True)
    with pytest.raises(sita.SharedWeightsError):
        outer.fit(images(), np.zeros((3, 2)), verbose=0)
    for weight, was in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, was)
    with pytest.raises(sita.InputError, match="at least one image"):
        adapted(images()[:0])


def test_a_view_alone_in_its_round_is_still_a_view() -> None:
    model, x = net(), images(2)
    whole = sita.adapt(model, "ensemble").predict(x, verbose=0)
    close(sita.adapt(model, "ensemble", max_rows=1).predict(x, verbose=0), whole)


def test_labels_are_not_voted_on_as_scores() -> None:
    inputs = keras.Input((12, 12, 3))
    scores = net("dense")(inputs)
    with pytest.raises(sita.OutputError, match=r"integers.*labels, perhaps"):
        sita.adapt(keras.Model(inputs, keras.ops.argmax(scores, -1)))
    both = sita.adapt(keras.Model(inputs, {"out": keras.ops.argmax(scores, -1), "scores": scores}))
    close(both.predict(images(), verbose=0)["scores"], sita.adapt(net("dense")).predict(images(), verbose=0))


def test_an_ensembles_other_outputs_stay_in_place() -> None:
    model, x = net("dict"), images(4)
    close(sita.adapt(model, "ensemble").predict(x, verbose=0)["features"], model.predict(x, verbose=0)["features"])


class TestObserve:
    """What the candidates decided."""

    @pytest.mark.parametrize("settings", [{}, {"max_rows": 8}])
    def test_votes_are_seen_however_the_model_is_run(self, settings: dict[str, Any]) -> None:
        model, x = net(activation="softmax"), images(5)
        adapted = sita.adapt(model, **settings)
        adapted.predict(x, verbose=0)  # compiled, before anybody watches
        with sita.observe(adapted) as seen:
            said = adapted.predict(x, batch_size=2, verbose=0)
            adapted(x)
            adapted.predict_on_batch(x)
        assert len(seen) == 15
        assert seen.entropies.shape == (15, 8)
        np.testing.assert_array_equal(seen.answers, np.tile(said.argmax(1), 3))
        close(seen.entropies[:5], seen.entropies[5:10])
        adapted.predict(x, verbose=0)
        assert len(seen) == 15
        assert not adapted.run_eagerly

    def test_one_candidate_has_an_entropy_too(self) -> None:
        adapted, x = sita.adapt(net(activation="softmax"), "augbn"), images()
        with sita.observe(adapted) as seen:
            p = adapted.predict(x, verbose=0).astype(np.float64)
        close(seen.entropies[:, 0], -(p * np.log(p)).sum(1))

    @pytest.mark.skipif(keras.backend.backend() == "jax", reason="Keras on JAX cannot run a plain model in two threads")
    def test_watching_does_not_disturb_other_threads(self) -> None:
        adapted, x = sita.adapt(net(), "augbn"), images(3)
        expected = adapted.predict(x, verbose=0)
        many = np.tile(x, (40, 1, 1, 1))
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(adapted.predict, many, batch_size=2, verbose=0)
            for _ in range(5):
                with sita.observe(adapted) as seen:
                    adapted(x)
                assert len(seen) == 3
            close(running.result(), np.tile(expected, (40, 1)))

    def test_others_are_not_heard(self) -> None:
        one, other = sita.adapt(net()), sita.adapt(net())
        with sita.observe(one) as seen:
            other.predict(images(), verbose=0)
        assert len(seen) == 0
        with pytest.raises(sita.NotAdaptedError), sita.observe(net()):
            pass


class TestCascade:
    """Adapt only what the source model is unsure of."""

    def test_unsure_images_go_on(self) -> None:
        model, x = net("dict", "softmax"), images(9)
        adapted = sita.adapt(model)
        plain, better = model.predict(x, verbose=0), adapted.predict(x, verbose=0)
        p = plain["logits"].astype(np.float64)
        entropies = -(p * np.log(p)).sum(1)
        threshold = float(np.sort(entropies)[4:6].mean())  # far from any image's, as rounding goes
        fast = sita.cascade(model, adapted, entropy=threshold)
        unsure = entropies > threshold
        assert 0 < unsure.sum() < 9
        for said in (fast(x), fast.predict(x, batch_size=4), fast.predict_on_batch(x)):
            for key in plain:
                shape = (-1, *[1] * (plain[key].ndim - 1))
                close(said[key], np.where(unsure.reshape(shape), better[key], plain[key]))
        assert (fast.tally.images, fast.tally.adapted) == (27, 3 * unsure.sum())
        assert "images adapted" in repr(fast)

    def test_the_chosen_output_decides(self) -> None:
        model, x = net("list"), images(4)
        fast = sita.cascade(model, sita.adapt(model, output=1), entropy=0.0)
        close(fast(x)[1], sita.adapt(model, output=1).predict(x, verbose=0)[1])
        assert fast.tally.adapted == 4

    def test_what_is_refused(self) -> None:
        model = net()
        with pytest.raises(sita.InputError, match="received generator"):
            sita.cascade(model, sita.adapt(model), entropy=0.1)(image for image in images())
        with pytest.raises(sita.OutputError, match="two classes or more"):
            sita.cascade(net(units=1), sita.adapt(net(units=1), "augbn"), entropy=0.1)(images())
        adapted = sita.adapt(model)
        with pytest.raises(sita.NotAdaptedError):
            sita.cascade(adapted, model, entropy=0.1)
        with pytest.raises(sita.AlreadyAdaptedError):
            sita.cascade(adapted, adapted, entropy=0.1)
