"""Models as users write them: each ends in a right answer, or in an error whose advice works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import keras_nets as nets
import keras_odd_nets as odd
import keras_reference
import numpy as np
import pytest
import reference
from keras import layers, ops
from keras_heads import batch_of, check_auto, close, head

import sita_adapters as sita
from sita_adapters.errors import ModelError

BACKEND = keras.backend.backend()


def test_a_saved_model_loads_where_the_backend_is_imported(tmp_path: Path) -> None:
    """Keras alone does not know the classes, and says so; the library's import registers them."""
    adapted, batch = sita.adapt(head(layers.Dense(5, activation="softmax"))), batch_of()
    adapted.save(tmp_path / "it.keras")
    np.save(tmp_path / "batch.npy", batch)
    program = (
        "import os, sys, keras, numpy as np\n"
        "try:\n    keras.saving.load_model(sys.argv[1] + '/it.keras')\n"
        "except Exception as error:\n    print(error)\n"
        "import sita_adapters\n"
        "os.chdir(sys.argv[1])\n"
        "again = keras.saving.load_model('it.keras')\n"
        "np.save('answer.npy', again.predict_on_batch(np.load('batch.npy')))"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not ran.returncode, ran.stderr
    assert "sita_keras" in ran.stdout
    close(np.load(tmp_path / "answer.npy"), adapted.predict_on_batch(batch))


class Wrapped(keras.Model):
    """Holds a model."""

    def __init__(self, held: keras.Model) -> None:
        super().__init__()
        self.held = held

    def call(self, x: Any) -> Any:
        return self.held(x)


class Task(keras.Model):
    """A task of KerasHub: a graph over a backbone, with its own `__call__`, and a `predict` that preprocesses."""

    def __init__(self) -> None:
        inputs, backbone = keras.Input((16, 16, 3)), nets.sequential()
        super().__init__(inputs, layers.Softmax()(backbone(inputs)))
        self.backbone = backbone

    def __call__(self, *args: Any, **settings: Any) -> Any:
        return super().__call__(*args, **settings)

    def predict(self, x: Any, **settings: Any) -> Any:
        return super().predict(x / 255, **settings)


def test_the_advice_for_a_task_works() -> None:
    task = Task()
    with pytest.raises(ModelError, match=r"Try: .*keras\.Model\(model\.input, model\.output\)"):
        sita.adapt(task)
    for around in (keras.Sequential([keras.Input((16, 16, 3)), task]), Wrapped(task)):
        around(batch_of())
        with pytest.raises(ModelError, match=r"Try: .*keras\.Model\(part\.input, part\.output\)"):
            sita.adapt(around)
    plain = keras.Model(task.input, task.output)
    check_auto(plain, "probabilities")
    check_auto(keras.Sequential([keras.Input((16, 16, 3)), plain]), "probabilities")


def test_a_classifier_of_kerashub() -> None:
    """`make setup` installs KerasHub without its dependencies: tensorflow-text needs TensorFlow's GPU package."""
    keras_hub = pytest.importorskip("keras_hub")
    backbone = keras_hub.models.ResNetBackbone(
        input_conv_filters=[64],
        input_conv_kernel_sizes=[7],
        stackwise_num_filters=[64, 64],
        stackwise_num_blocks=[1, 1],
        stackwise_num_strides=[1, 2],
        block_type="basic_block",
        image_shape=(64, 64, 3),
    )
    task = keras_hub.models.ResNetImageClassifier(backbone=backbone, num_classes=5, activation="softmax")
    with pytest.raises(ModelError, match=r"Try: .*keras\.Model\(model\.input, model\.output\)"):
        sita.adapt(task)
    photos = np.random.default_rng(7).uniform(size=(2, 64, 64, 3)).astype("float32")
    check_auto(keras.Model(task.input, task.output), "probabilities", photos)


class Doubles(layers.BatchNormalization):
    """Changes its input before it is normalized."""

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        return super().call(2.0 * inputs, training=training, mask=mask)


class Residual(layers.BatchNormalization):
    """Uses its input beside the normalized one."""

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        return inputs + super().call(inputs, training=training, mask=mask)


@pytest.mark.parametrize("kind", [Doubles, Residual])
def test_layers_that_do_more_than_normalize_are_left_out(kind: type[layers.Layer]) -> None:
    def between(x: Any) -> Any:
        return layers.ReLU()(kind(name="more")(layers.BatchNormalization(name="plain")(x)))

    model, batch = odd.graph(between), 3 + batch_of()
    with pytest.raises(
        ModelError, match=r"more \(\w+\) does not normalize.*Try: layers=lambda name, layer: "
    ) as caught:
        sita.adapt(model)
    advised = eval(str(caught.value).partition("Try: layers=")[2].rstrip("."))
    adapted = sita.adapt(model, "shift", layers=advised)
    assert sita.describe(adapted).adapted == ("plain",)
    plain = odd.graph(layers.BatchNormalization(), classes=None)
    plain.set_weights(model.get_layer("plain").get_weights())
    rest = keras.Model(model.get_layer("more").input, model.output)
    normalized = np.concatenate(keras_reference.adapted_rows(plain, batch, reference.GENTLE)).astype("float32")
    close(adapted.predict_on_batch(batch), rest.predict_on_batch(normalized))


def test_what_is_no_number_is_not_hidden() -> None:
    model, batch = head(layers.Dense(5, activation="softmax")), batch_of(3)
    batch[0, 3, 3, 0] = np.nan
    batch[1] *= 1e25
    for adapted in (sita.adapt(model), sita.adapt(model, "bn", priors=0.5)):
        for use in odd.ways(adapted):
            found = use(batch)
            assert np.isnan(found[:2]).all()
            close(found[2:], use(batch[2:]))


def test_a_model_may_replace_what_is_no_number_in_its_images() -> None:
    def cleaned(x: Any) -> Any:
        return layers.BatchNormalization()(layers.Lambda(lambda x: ops.nan_to_num(x, 0.0))(x))

    model, batch = odd.graph(cleaned), batch_of(3)
    batch[1, 3, 3, 0] = np.nan
    wanted = [sita.adapt(model, name).predict_on_batch(np.nan_to_num(batch)) for name in ("auto", "shift", "source")]
    for name, each in zip(("auto", "shift", "source"), wanted, strict=True):
        assert np.isfinite(each).all()
        close(sita.adapt(model, name).predict_on_batch(batch), each)


def test_what_ignores_training_false_is_refused() -> None:
    dropped = head(lambda x: layers.Dense(5)(layers.Dropout(0.5, name="always")(x, training=True)))
    with pytest.raises(ModelError, match=r"'always' is called with training=True.*Try: call it without training="):
        sita.adapt(dropped)
    norm = odd.graph(lambda x: layers.BatchNormalization(name="always")(x, training=True))
    with pytest.raises(ModelError, match=r"'always' is called with training=True.*Try: call it without training="):
        sita.adapt(norm)


def test_bytes_are_converted_as_by_the_source() -> None:
    model = nets.sequential()
    pixels = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3)).astype("uint8")
    expected = keras_reference.auto(model, pixels.astype("float32"), "logits")
    for use in odd.ways(sita.adapt(model)):
        np.testing.assert_allclose(use(pixels), expected, rtol=1e-3, atol=1e-3)


class Named(layers.BatchNormalization):
    """Calls its input by another name."""

    def call(self, x: Any, training: Any = None) -> Any:
        return super().call(x, training=training)


class ByName(keras.Model):
    """Hands the input over by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.pool = layers.Conv2D(6, 3), Named(), layers.GlobalAveragePooling2D()
        self.head = layers.Dense(5)

    def call(self, x: Any) -> Any:
        return self.head(self.pool(ops.relu(self.norm(x=self.conv(x)))))


def test_an_input_by_another_name() -> None:
    check_auto(odd.built(ByName()), "logits")
