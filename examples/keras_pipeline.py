"""A Keras classifier with its preprocessing inside, from raw pixels to probabilities: adapt, predict, save, load.

    python examples/keras_pipeline.py
    KERAS_BACKEND=jax python examples/keras_pipeline.py

A toy network is trained here to classify the direction of stripes, then tested in fog. It shows how to connect things.
"""

import os
import tempfile
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from keras import layers

import sita_adapters as sita

keras.utils.set_random_seed(0)
random = np.random.default_rng(0)


def take_photos(labels: np.ndarray, fog: float = 0.0) -> np.ndarray:
    """Return photos (N, 32, 32, 3), pixels from 0 to 255, of noisy stripes in one of four directions."""
    y, x = np.mgrid[:32, :32]
    angle = (labels + 0.2 * random.normal(size=len(labels)))[:, None, None] * np.pi / 4
    stripes = np.sin(0.7 * (x * np.cos(angle) + y * np.sin(angle)) + random.uniform(0, 6.28, angle.shape))
    pixels = 120 + 70 * stripes[..., None] + 25 * random.normal(size=(len(labels), 32, 32, 3))
    return ((1 - fog) * pixels + 220 * fog).clip(0, 255).astype("float32")


preprocessing = [layers.Resizing(24, 24), layers.Rescaling(1 / 255), layers.Normalization(mean=0.5, variance=0.1)]
blocks = []
for width in (16, 32, 32):
    blocks += [layers.Conv2D(width, 3, 2, "same"), layers.BatchNormalization(momentum=0.8), layers.ReLU()]
head = [layers.GlobalAveragePooling2D(), layers.Dense(4, activation="softmax")]
model = keras.Sequential([keras.Input((32, 32, 3)), *preprocessing, *blocks, *head], name="classifier")
model.compile("adam", "sparse_categorical_crossentropy")
labels = random.integers(0, 4, 1600)
model.fit(take_photos(labels), labels, epochs=3, verbose=0)
foggy, labels = take_photos(labels[:96], fog=0.5), labels[:96]
answers = {"source": model.predict(foggy, verbose=0)}

model = sita.adapt(model)  # the one line that an existing pipeline needs

answers["adapted"] = model.predict(foggy, verbose=0)
with tempfile.TemporaryDirectory() as folder:
    model.save(Path(folder) / "adapted.keras")
    loaded = keras.models.load_model(Path(folder) / "adapted.keras")
answers["adapted, saved, loaded"] = loaded.predict(foggy, verbose=0)
print(f"Keras on {keras.backend.backend()}, photos {foggy.shape} in fog")
for who, probabilities in answers.items():
    print(f"{100 * (probabilities.argmax(1) == labels).mean():5.1f} % right: {who}")
difference = np.abs(answers["adapted, saved, loaded"] - answers["adapted"]).max()
print(f"saved and loaded, probabilities differ by at most {difference:.1e}")
