"""What a Keras member has to hold: as torch_checks.py, with a reference of its own.

The model is built twice with the same weights: in float32, as users have it, and in float64, for the comparison with
the reference. That is the source model itself, run on the image and its views as one batch, with another `call` of
BatchNormalization: the equation, in float64.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import keras
import numpy as np
from keras import ops

import sita_adapters as sita

from .members import Member, Outcome, Wrong

_PRIOR, _ALMOST_ONE = float(np.float32(0.8)), 1 - 2.0**-23
"""The library hands priors to Keras in float32, whatever the model's precision: both are such numbers."""
_TIGHT, _FLOOR, _ROUNDING = 1e-9, 1e-5, 20.0
"""As in torch_checks.py."""

_BatchNorm = keras.layers.BatchNormalization


def check(member: Member) -> Outcome:
    """Build a member and check it; crashes are the caller's to name."""
    outcome = Outcome(shape=member.shapes[0])
    keras.utils.set_random_seed(0)
    keras.backend.clear_session()
    precise = in_precision("float64", member.build)
    image = images_of(1, outcome.shape, seed=1)
    ran = prepare(precise, np.concatenate([*views_of(image), images_of(3, outcome.shape, seed=2)]))
    source = in_precision("float32", member.build)
    source.set_weights(precise.get_weights())
    try:
        _check_promises(source, precise, image, ran, outcome)
    except sita.SitaError as error:
        outcome.verdict = f"refused: {type(error).__name__}: {error}"
    except Wrong as error:
        outcome.verdict = f"WRONG: {error}"
    return outcome


def _check_promises(source: Any, precise: Any, image: np.ndarray, ran: list[str], outcome: Outcome) -> None:
    before = [np.copy(each) for each in source.get_weights()]
    plain, exact = run(source, image), run(precise, image)
    own = distance(plain, exact)
    tolerance = max(_FLOOR, _ROUNDING * own)
    outcome.errors["float32 of the source"] = own

    def compare(what: str, answer: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
        outcome.compare(what, distance(answer, expected), tolerance)

    compare("λ = 1", run(_adapt(source, 1.0), image), plain, tolerance)
    effect = distance(augbn(precise, image, _ALMOST_ONE), exact)
    compare("λ = 1 − 1e-7", run(_adapt(source, _ALMOST_ONE), image), plain, tolerance + 2 * effect)
    adapted = _adapt(precise, _PRIOR)
    description = sita.describe(adapted)
    outcome.layers = len(description.adapted)
    named = {name.rpartition("/")[2] for name in (*description.adapted, *description.skipped)}
    if missing := set(ran) - named:
        raise Wrong(f"{len(missing)} BatchNorm layers ran and are not adapted: {', '.join(sorted(missing)[:4])}")
    reference = augbn(precise, image, _PRIOR)
    outcome.errors["what adaptation changes"] = distance(reference, exact)
    single = run(adapted, image)
    compare("λ = 0.8", single, reference, _TIGHT)
    compare("λ = 0.8, float32", run(_adapt(source, _PRIOR), image), reference, 10 * tolerance)
    mate = 10 * images_of(1, outcome.shape, seed=3) - 3
    compare("batch mates", run(adapted, np.concatenate([mate, image]))[1:], single, _TIGHT)
    voted = run(sita.adapt(source, "ops", priors=(0.5, 1.0)), image)
    if voted.shape != plain.shape or voted.dtype != plain.dtype or not np.isfinite(voted).all():
        raise Wrong(f"ops returns {voted.dtype} {voted.shape}, the source model {plain.dtype} {plain.shape}.")
    if not all(np.array_equal(a, b) for a, b in zip(source.get_weights(), before, strict=True)):
        raise Wrong("the source's weights changed.")
    if distance(run(source, image), plain) > 0:
        raise Wrong("the source model answers otherwise afterwards.")


def _adapt(model: Any, prior: float) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error", sita.SitaWarning)
        return sita.adapt(model, "augbn", priors=prior)


def in_precision(name: str, build: Callable[[], Any]) -> Any:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        return build()
    finally:
        keras.config.set_dtype_policy(before)


def run(model: Any, images: np.ndarray) -> np.ndarray:
    """Return the model's answer, uncompiled: most of these run once."""
    return np.asarray(keras.ops.convert_to_numpy(model(ops.cast(images, model.compute_dtype), training=False)))


def images_of(count: int, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Return seeded images (N, h, w, C): coarse blobs and fine noise, of different brightness and contrast."""
    random = np.random.default_rng(seed)
    height, width, channels = shape
    coarse = random.normal(size=(count, -(-height // 8), -(-width // 8), channels))
    blobs = coarse.repeat(8, axis=1).repeat(8, axis=2)[:, :height, :width]
    images = blobs + 0.5 * random.normal(size=(count, *shape))
    contrast, brightness = random.uniform(0.5, 1.5, (count, 1, 1, 1)), random.normal(size=(count, 1, 1, 1))
    return contrast * images + 0.5 * brightness


def views_of(image: np.ndarray) -> list[np.ndarray]:
    """Return a square image (1, n, n, C) and both quarter turns of it."""
    return [image, np.rot90(image, 1, (1, 2)), np.rot90(image, -1, (1, 2))]


def changed(call: Callable[[Any, Any], Any]) -> Any:
    """Within this context, every BatchNormalization runs this function: the layer and its input in, its output out."""
    return mock.patch.object(_BatchNorm, "call", lambda layer, inputs, training=None, mask=None: call(layer, inputs))


def normalize(layer: Any, x: Any, mean: Any, variance: Any) -> Any:
    """γ · (x − m) / sqrt(v + ε) + β, of channels last."""
    out = (x - mean) / ops.sqrt(variance + layer.epsilon)
    out = out * layer.gamma if layer.scale else out
    return out + layer.beta if layer.center else out


def prepare(model: Any, images: np.ndarray) -> list[str]:
    """Give a model in float64 plausible statistics, γ and β; return the names of the BatchNorm layers that ran."""
    random = np.random.default_rng(0)
    ran: list[str] = []
    for layer in model._flatten_layers():
        if isinstance(layer, _BatchNorm):
            for variable, center in ((layer.gamma, 0.5), (layer.beta, 0.0)):
                if variable is not None:
                    variable.assign(center + 0.1 * random.normal(size=variable.shape))

    def warm(layer: Any, x: Any) -> Any:
        ran.append(layer.name)
        values = ops.convert_to_numpy(x).reshape(-1, x.shape[-1])
        variance = values.var(axis=0)
        variance = variance + 0.1 * variance.mean() + 1e-6  # no channel of a trained model is quite dead
        draws = random.normal(size=(2, x.shape[-1]))
        layer.moving_mean.assign(values.mean(axis=0) + 0.2 * np.sqrt(variance) * draws[0])
        layer.moving_variance.assign(variance * np.exp(0.2 * draws[1]))
        return normalize(layer, x, layer.moving_mean, layer.moving_variance)

    with changed(warm):
        run(model, images)
    return ran


def augbn(model: Any, image: np.ndarray, prior: float) -> np.ndarray:
    """Return the answer of a model in float64 for one image, adapted to it by the method's equation."""
    views = views_of(image)
    weights = [0.5] + [0.5 / (len(views) - 1)] * (len(views) - 1)

    def blend(layer: Any, x: Any) -> Any:
        rows = ops.convert_to_numpy(x).reshape(len(views), -1, x.shape[-1])
        mean_t = sum(w * row.mean(axis=0) for w, row in zip(weights, rows, strict=True))
        variance_t = sum(
            w * (row.var(axis=0) + (row.mean(axis=0) - mean_t) ** 2) for w, row in zip(weights, rows, strict=True)
        )
        mean_s, variance_s = (ops.convert_to_numpy(each) for each in (layer.moving_mean, layer.moving_variance))
        blended = prior * mean_s + (1 - prior) * mean_t, prior * variance_s + (1 - prior) * variance_t
        return normalize(layer, x, *(ops.convert_to_tensor(each, dtype=x.dtype) for each in blended))

    with changed(blend):
        return run(model, np.concatenate(views))[:1]


def distance(answer: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference, relative to the largest output."""
    a, b = np.asarray(answer, np.float64), np.asarray(expected, np.float64)
    return float(np.abs(a - b).max() / np.abs(b).max()) if a.shape == b.shape else float("inf")
