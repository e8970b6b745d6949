"""What the probe checks of the adapted layers, in every framework."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np

from .errors import ModelError, SitaWarning

if TYPE_CHECKING:
    from .engine import Adaptation


def leave_out(*names: str) -> str:
    """Return the argument of `adapt` that leaves these layers out."""
    return f"layers=lambda name, layer: name not in {list(names)!r}"


def check_called(called: Collection[str], adaptation: Adaptation) -> None:
    """Raise if a model that blends calls none of its adapted layers; warn if it does not call some of them."""
    names = [info.name for info in adaptation.layers if info.adapted]
    missed = [name for name in names if name not in called]
    if not missed or not any(plan.blends for plan, _ in adaptation.plans.values()):
        return
    if len(missed) == len(names):
        raise ModelError(
            f"{adaptation.model_name} calls none of its {len(names)} adapted layers. Expected layers that are called: "
            "a model that reads their statistics itself (F.batch_norm) cannot be adapted."
        )
    warnings.warn(
        f"{adaptation.model_name} does not call {len(missed)} of its {len(names)} adapted layers, which have no "
        f"effect: {', '.join(missed[:4])}. Try: leave them out with layers=, if that is intended.",
        SitaWarning,
        stacklevel=2,
    )


def refuse_layers(wrong: Sequence[str], kind: str, count: int) -> ModelError:
    """Return the error for layers of a class, of `count` adapted ones, that lack the property of BatchNorm."""
    only = len(wrong) == count
    return ModelError(
        f"{', '.join(wrong[:4])} ({kind}) does not normalize its input with its statistics as BatchNorm does. Expected "
        "(x − mean) / sqrt(variance + ε) with one mean per channel; anything may follow"
        f"{'; there is no other BatchNorm layer to adapt.' if only else f'. Try: {leave_out(*wrong)}.'}"
    )


def change_statistics(
    x: np.ndarray, mean: np.ndarray, variance: np.ndarray, epsilon: float, axis: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return other statistics m', v' of a layer, and the input x' for which it must return what it does for x.

    x' = (x − m) / √(v + ε) · √(v' + ε) + m'

    Changing the statistics of a BatchNorm layer is the same as changing its input: the property that the method rests
    on. It fails for anything that a layer does to its input first, or around the normalization.
    """
    random = np.random.default_rng(0)
    column = [-1 if each == axis % x.ndim else 1 for each in range(x.ndim)]
    other_mean = mean + random.normal(size=mean.shape) * np.sqrt(variance + epsilon)
    other_variance = (variance + epsilon) * random.uniform(0.05, 2.05, mean.shape)
    scale = np.sqrt((other_variance + epsilon) / (variance + epsilon)).reshape(column)
    return other_mean, other_variance, (x - mean.reshape(column)) * scale + other_mean.reshape(column)
