"""TENT and MEMO, two methods that adapt with gradients, for comparison. PyTorch only.

Both start from the source model for every image, and are called as the model is: (N, C, H, W) → logits. Each image of a
batch is adapted to by itself. The given model stays unchanged: they run a copy that shares its weights, with other
parameters passed in by `torch.func.functional_call`.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from sita_adapters.backend import backend_of
from sita_adapters.errors import InputError, ModelError, OutputError

Parameters = Mapping[str, torch.Tensor]


class Baseline(nn.Module):
    """What both methods share: a copy of the model, and the loop over images."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        _check_model(model)
        tensors = {id(tensor): tensor for tensor in itertools.chain(model.parameters(), model.buffers())}
        with torch.inference_mode(False):  # tensors made in inference mode cannot take part in gradients
            self.body = copy.deepcopy(model, tensors).eval()  # the memo keeps the weights shared
        super().train(False)

    def train(self, mode: bool = True) -> Baseline:
        """Return itself unchanged: it always runs in eval mode, with dropout off."""
        return self

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the scores of each image, from the model adapted to this image alone."""
        tensor = isinstance(images, torch.Tensor)
        if not tensor or images.ndim != 4 or not len(images) or not images.is_floating_point():
            what = f"{images.dtype} of shape {tuple(images.shape)}" if tensor else type(images).__name__
            raise InputError(
                f"{type(self).__name__} expects floating-point images (N, C, H, W), N at least 1; received {what}. "
                "Try: pass what the model itself takes, as one batch."
            )
        with torch.inference_mode(False), torch.enable_grad():
            # A copy: a tensor from an outer inference_mode cannot take part in gradients.
            return torch.cat([self._predict(image.detach().clone()) for image in torch.split(images, 1)])

    @abstractmethod
    def _predict(self, image: torch.Tensor) -> torch.Tensor:
        """Return the scores (1, classes, …) of one image (1, C, H, W)."""

    def _weights(self) -> dict[str, torch.Tensor]:
        """Return the model's parameters by name, detached."""
        return {name: parameter.detach() for name, parameter in self.body.named_parameters()}

    def _scores(self, images: torch.Tensor, weights: Parameters) -> torch.Tensor:
        output = torch.func.functional_call(self.body, dict(weights), (images,))
        if isinstance(output, Mapping):  # torchvision's segmentation models, transformers' ModelOutput
            output = output["out"] if "out" in output else output["logits"]
        scores: torch.Tensor = output
        if scores.ndim < 2 or scores.shape[1] < 2:
            raise OutputError(
                f"{type(self).__name__} minimises the entropy of logits (N, classes, …) and expects at least 2 "
                f"classes; the model returned {tuple(scores.shape)}. Try: a head with one logit per class."
            )
        return scores


class Tent(Baseline):
    """TENT (Wang et al. 2021) for single images: minimises the entropy of the prediction over γ and β of BatchNorms.

        H = mean over pixels of −Σ_c p_c log p_c,  p = softmax(logits)

    `steps` updates by Adam, from the source's γ and β for every image, then one more pass for the answer. BatchNorms
    normalise with the image's own statistics in every pass; running statistics are neither used nor changed.

    The answer comes after the last update, as in TENT's paper for offline adaptation (section 3.3: «the model is first
    updated and then inference is repeated»). TENT's public code returns the scores from before the last update, which
    helps only where the update is kept for the next batch; here nothing is kept. Its answer after n steps is that of
    `steps=n - 1`, and that of a single step is `steps=0`: the image's own statistics and nothing else (PTN).

    The SITA paper takes 5 steps of 1e-3. Dropout is off, unlike in the public code: the same image always gives the
    same answer.
    """

    def __init__(self, model: nn.Module, *, steps: int = 5, lr: float = 1e-3) -> None:
        super().__init__(model)
        self.steps, self.lr = _count("steps", steps, 0), _rate(lr)
        modules = dict(self.body.named_modules())
        layers = {name: layer for name, layer in modules.items() if isinstance(layer, _BatchNorm)}
        frozen = [
            name
            for name, layer in modules.items()
            if isinstance(getattr(layer, "running_mean", None), torch.Tensor) and not isinstance(layer, _NormBase)
        ]
        names = (f"{name}.{part}" for name in layers for part in ("weight", "bias"))
        self._affine = {name for name in names if name in self._weights()}
        if frozen or not self._affine:
            received = "layers without them (affine=False)" if layers else "a model with no BatchNorm layer"
            raise ModelError(
                "Tent expects BatchNorm layers with trainable γ and β; received "
                f"{('frozen ones: ' + ', '.join(frozen[:4])) if frozen else received}. "
                "Try: nn.BatchNorm2d layers with the same weights and statistics."
            )
        for layer in layers.values():
            for name, value in (("track_running_stats", False), ("running_mean", None), ("running_var", None)):
                setattr(layer, name, value)
            single = _SingleValue()
            layer.register_forward_pre_hook(single.double)
            layer.register_forward_hook(single.halve)

    def _predict(self, image: torch.Tensor) -> torch.Tensor:
        weights = self._weights()
        leaves = {name: weights[name].clone().requires_grad_() for name in self._affine}
        weights |= leaves
        optimiser = torch.optim.Adam(leaves.values(), lr=self.lr, fused=True)  # fused: saves 1 to 8 %
        for _ in range(self.steps):
            entropy_of(self._scores(image, weights).log_softmax(1)).mean().backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            optimiser.zero_grad()
        with torch.no_grad():
            return self._scores(image, weights)


class Memo(Baseline):
    """MEMO (Zhang et al. 2022) for classification: minimises the entropy of the mean prediction over all weights.

        H = −Σ_c q_c log q_c,  q = 1/n · Σ_i softmax(logits of view i)

    One step of plain SGD on all parameters from the source's, then the answer for the image itself.

    - `views`: n. MEMO's code takes 32 for CIFAR and 64 for ImageNet, on a GPU. On a CPU every view costs a forward and
      a backward pass, and 32 would make MEMO the slowest method by far: 8 is a compromise.
    - `lr`: MEMO's 0.005 for CIFAR. Its ResNet-50 for ImageNet takes 0.00025.
    - `seed`: the views are drawn from it and the image's content, see `draw_views`.

    BatchNorms normalise with the source's statistics, as in evaluation. (For ResNet-50 MEMO mixes in the image's with
    weight 1/17; that is the `bn` method, and left out so that the two gains stay separate.)
    """

    def __init__(self, model: nn.Module, *, views: int = 8, lr: float = 5e-3, seed: int = 0) -> None:
        super().__init__(model)
        self.views, self.lr, self.seed = _count("views", views, 1), _rate(lr), _count("seed", seed, 0)

    def _predict(self, image: torch.Tensor) -> torch.Tensor:
        weights = {name: w.requires_grad_(w.is_floating_point()) for name, w in self._weights().items()}
        trained = {name: weight for name, weight in weights.items() if weight.requires_grad}
        scores = self._scores(draw_views(image, self.views, self.seed), weights)
        if scores.ndim != 2:
            raise OutputError(
                f"Memo expects one prediction per image, (N, classes); the model returned {tuple(scores.shape)}. Views "
                "that are shifted and mirrored cannot be averaged pixel by pixel. Try: leave memo out for "
                "segmentation; tent runs there."
            )
        mean = scores.log_softmax(1).logsumexp(0, keepdim=True) - math.log(self.views)
        gradients = torch.autograd.grad(entropy_of(mean).sum(), list(trained.values()), allow_unused=True)
        with torch.no_grad():
            for (name, weight), gradient in zip(trained.items(), gradients, strict=True):
                weights[name] = weight if gradient is None else torch.add(weight, gradient, alpha=-self.lr)
            return self._scores(image, weights)


BASELINES: dict[str, Callable[..., Baseline]] = {"tent": Tent, "memo": Memo}
"""The baselines by their names in `sita bench`."""


def entropy_of(log_probabilities: torch.Tensor) -> torch.Tensor:
    """Return −Σ_c p_c log p_c in nats, over axis 1."""
    return -(log_probabilities.exp() * log_probabilities).sum(1)


def draw_views(image: torch.Tensor, count: int, seed: int) -> torch.Tensor:
    """Return `count` augmentations (count, C, H, W) of one image (1, C, H, W), drawn from its content and the seed.

    Each is shifted by up to an eighth of its size (the border mirrored), mirrored or not, and changed in contrast
    (factor 0.6 to 1.4 about the channel's mean) and brightness (up to 0.4 of the channel's deviation), clipped to the
    channel's own range. MEMO takes AugMix, which needs to know how pixels are encoded; these work in any encoding.
    """
    content = hashlib.sha256(image.cpu().contiguous().view(torch.uint8).numpy().tobytes()).digest()
    random = np.random.default_rng([seed, int.from_bytes(content, "little")])
    height, width = image.shape[2:]
    down, right = height // 8, width // 8
    padded = functional.pad(image, (right, right, down, down), mode="reflect")
    mean, deviation = image.mean((2, 3), keepdim=True), image.std((2, 3), correction=0, keepdim=True)
    low, high = image.amin((2, 3), keepdim=True), image.amax((2, 3), keepdim=True)
    drawn = []
    for _ in range(count):
        top, left = random.integers(2 * down + 1), random.integers(2 * right + 1)
        mirrored, contrast, brightness = random.random() < 0.5, random.uniform(0.6, 1.4), random.uniform(-0.4, 0.4)
        view = padded[:, :, top : top + height, left : left + width]
        view = view.flip(3) if mirrored else view
        drawn.append(torch.clamp((view - mean) * contrast + mean + brightness * deviation, low, high))
    return torch.cat(drawn)


class _SingleValue:
    """Hooks that let a BatchNorm normalise a single value per channel, to β. PyTorch refuses to take its variance.

    The layer sees the value twice, which leaves mean and variance the same.
    """

    doubled = False

    def double(self, layer: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Show the layer its input twice where that has one value per channel."""
        features, *others = arguments
        self.doubled = features.numel() == features.shape[1]
        return (torch.cat((features, features)), *others) if self.doubled else None

    def halve(self, layer: nn.Module, arguments: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor | None:
        """Drop the second of the two."""
        return output[:1] if self.doubled else None


def _check_model(model: Any) -> None:
    # Under Keras' torch backend a Keras model is a torch.nn.Module, too.
    if any(ancestor.__module__.partition(".")[0] == "keras" for ancestor in type(model).__mro__):
        raise InputError(
            f"The baselines tent and memo need gradients and exist for PyTorch only; received the Keras model "
            f"{type(model).__name__}. Try: leave them out, or pass the PyTorch version of the model."
        )
    if not isinstance(model, nn.Module):
        raise InputError(
            f"A baseline expects a torch.nn.Module; received an object of type {type(model).__qualname__}. "
            "Try: pass the module that computes the predictions."
        )
    if backend_of(model).adaptation_of(model) is not None:
        raise ModelError(
            f"A baseline expects a plain {type(model).__name__}; this one is adapted already. Try: pass the source "
            "model, or sita.unwrap(adapted)."
        )


def _count(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name}: expected a whole number of at least {least}; received {value!r}.")
    return value


def _rate(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise InputError(f"lr: expected a finite number above 0; received {value!r}.")
    return float(value)
