"""The published settings of the methods that we compare with, each with its source.

Every method has a function that returns its settings for images of a size: CIFAR's up to 64 pixels, ImageNet's above.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

SMALL_SIDE = 64
"""Images with a longer side up to this take the settings for CIFAR, larger ones those for ImageNet."""


@dataclass(frozen=True)
class TentSettings:
    """TENT (Wang et al. 2021): `steps` updates of γ and β of the BatchNorm layers by Adam."""

    steps: int
    lr: float
    betas: tuple[float, float] = (0.9, 0.999)  # github.com/DequanWang/tent, cfgs/tent.yaml: BETA 0.9


# The SITA paper, section 4: "five iterations of optimization with a learning rate of 10⁻³ … with Adam", for every data
# set, reset after every image. TENT's authors take one step for a batch (of 200 on CIFAR; on ImageNet of 64, by SGD
# with momentum and a rate of 0.00025), and are never reset within a corruption.
TENT = TentSettings(steps=5, lr=1e-3)


@dataclass(frozen=True)
class MemoSettings:
    """MEMO (Zhang et al. 2021): `steps` updates of all weights on the marginal entropy over AugMix views.

    `prior` is N: BatchNorm layers weigh the source's statistics with N / (N + 1). None keeps the source's alone.
    """

    views: int
    optimizer: Literal["sgd", "adamw"]
    lr: float
    weight_decay: float = 0.0
    steps: int = 1
    prior: int | None = 16


# github.com/zhangmarvin/memo, cifar-10-exps/test_calls/test_adapt.py: 32 views, SGD without momentum, 0.005, one step.
# Its ResNet-26 has GroupNorm layers; for BatchNorm layers we take N = 16, as for ImageNet.
MEMO_CIFAR = MemoSettings(views=32, optimizer="sgd", lr=0.005)

# imagenet-exps/test_calls/test_adapt.py: 64 views, SGD without momentum, 0.00025, no weight decay, one step, N = 16.
MEMO_IMAGENET = MemoSettings(views=64, optimizer="sgd", lr=0.00025)

# imagenet-exps/script_test_in.py, for RVT*-small and both ResNeXt-101 (32x8d): AdamW, 0.00001, weight decay 0.01.
MEMO_TRANSFORMER = MemoSettings(views=64, optimizer="adamw", lr=0.00001, weight_decay=0.01)

# Appendix A of the paper: 32 views for ResNeXt-101, because of its memory. (The code's default stays 64.)
MEMO_RESNEXT = replace(MEMO_TRANSFORMER, views=32)


@dataclass(frozen=True)
class MixNormSettings:
    """MixNorm (Hu et al. 2021): local statistics of an image and `views` crops of it, mixed with the source's.

    A layer normalizes with m · local + (1 − m) · global, global = (1 − τ) · source + τ · local. `scale` and `ratio` are
    the crops' share of the image's area, and their width divided by their height.
    """

    views: int
    m: float
    tau: float
    scale: tuple[float, float]
    ratio: tuple[float, float] = (3 / 4, 4 / 3)


# The paper: m = 0.05, and an exponential moving average of the global statistics from the source's on. There is no
# public code. Ours are: τ = 0.001, one crop, and its scale (RandomResizedCrop's default on ImageNet, milder on CIFAR).
# docs/baselines.md says what of this could be checked.
MIXNORM_CIFAR = MixNormSettings(views=1, m=0.05, tau=0.001, scale=(0.5, 1.0))
MIXNORM_IMAGENET = replace(MIXNORM_CIFAR, scale=(0.08, 1.0))


@dataclass(frozen=True)
class TTTSettings:
    """TTT (Sun et al. 2020), offline: `steps` updates of the shared layers and the head by SGD without momentum.

    Each step is on `batch` random crops of the image, mirrored or not, each turned by a random multiple of 90°.
    """

    steps: int
    lr: float
    batch: int


# github.com/yueatsprograms/ttt_cifar_release, script_test_c10.py, setting "slow", the paper's offline version. The
# layers to `layer2` are shared. Crops have a border of 4 pixels (utils/prepare_dataset.py), rotations are "rand".
TTT_CIFAR = TTTSettings(steps=10, lr=0.001, batch=32)

# github.com/yueatsprograms/ttt_imagenet_release, script_test.py, setting "slow"; RandomResizedCrop.
TTT_IMAGENET = TTTSettings(steps=10, lr=0.001, batch=64)


def tent_settings(size: tuple[int, int]) -> TentSettings:
    """Return TENT's settings for images (height, width)."""
    del size  # one for all
    return TENT


def memo_settings(size: tuple[int, int], architecture: str = "") -> MemoSettings:
    """Return MEMO's settings for images (height, width) and a network whose name may say its family."""
    if max(size) <= SMALL_SIDE:
        return MEMO_CIFAR
    name = architecture.lower()
    if "resnext101" in name:
        return MEMO_RESNEXT
    return MEMO_TRANSFORMER if any(family in name for family in ("rvt", "vit", "deit", "swin")) else MEMO_IMAGENET


def mixnorm_settings(size: tuple[int, int]) -> MixNormSettings:
    """Return MixNorm's settings for images (height, width)."""
    return MIXNORM_CIFAR if max(size) <= SMALL_SIDE else MIXNORM_IMAGENET


def ttt_settings(size: tuple[int, int]) -> TTTSettings:
    """Return TTT's settings for images (height, width)."""
    return TTT_CIFAR if max(size) <= SMALL_SIDE else TTT_IMAGENET
