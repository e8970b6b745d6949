"""The methods that adapt with gradients, to compare with: TENT and MEMO, for PyTorch.

Both start over from the source model for every image, and are called as the model is: (N, C, H, W) → logits. Each image
of a batch is adapted to by itself. The given model stays as it was: they run a copy that shares its weights, and what a
step changes is held outside of it.
"""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from sita_adapters.errors import AlreadyAdaptedError, InputError, NoBatchNormError, OutputError
from sita_adapters.outputs import find_scores, flatten
from sita_torch.answers import is_tensor
from sita_torch.layers import find_layers
from sita_torch.structure import share, walk

Slot: TypeAlias = tuple[nn.Module, str]
"""A place where a parameter stands: a module, and the parameter's name in it."""


class Baseline(nn.Module):
    """What both methods share: a copy of the model to work on, and one image after the other."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        _check_model(model)
        with torch.inference_mode(False):  # gradients cannot flow through what is made inside
            self.body = share(model).eval().requires_grad_(False)
        super().train(False)

    def train(self, mode: bool = True) -> Baseline:
        """Return itself, unchanged: there is one way to run it, with dropout off."""
        return self

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the scores of each image, of the model adapted to this image alone."""
        if not is_tensor(images) or images.ndim != 4 or not len(images) or not images.is_floating_point():
            what = f"{images.dtype} of shape {tuple(images.shape)}" if is_tensor(images) else type(images).__name__
            raise InputError(
                f"{type(self).__name__} expects floating-point images (N, C, H, W), N at least 1; received {what}. "
                "Remedy: give what the model itself takes, as one batch."
            )
        with torch.inference_mode(False), torch.enable_grad():
            # A copy: a tensor from an outer inference_mode cannot take part in gradients.
            return torch.cat([self._answer(image.detach().clone()) for image in torch.split(images, 1)])

    @abstractmethod
    def _answer(self, image: torch.Tensor) -> torch.Tensor:
        """Return the scores (1, classes, …) of one image (1, C, H, W)."""

    def _scores(self, images: torch.Tensor) -> torch.Tensor:
        output = self.body(images)
        place = find_scores(output, None, is_tensor, lambda array: array.ndim > 1 and len(array) == len(images))
        scores: torch.Tensor = flatten(output, is_tensor)[place][1]
        if scores.ndim < 2 or scores.shape[1] < 2:
            raise OutputError(
                f"{type(self).__name__} expects logits (N, classes, …) of at least 2 classes, whose entropy it "
                f"minimises; the model put out {tuple(scores.shape)}. Remedy: a head with one logit a class."
            )
        return scores


class Tent(Baseline):
    """TENT (Wang et al. 2021) for single images: γ and β of the BatchNorms follow the entropy of the prediction.

        H = mean over pixels of −Σ_c p_c log p_c,  p = softmax(logits)

    `steps` updates by Adam, from the source's γ and β for every image, then one more pass gives the answer. BatchNorms
    normalise with the image's own statistics in every pass; the running ones are neither used nor changed.

    The answer comes after the last update, as TENT's paper has it for offline adaptation (section 3.3: «the model is
    first updated and then inference is repeated»). TENT's public code returns the scores from before the last update,
    which pays off only where the update is kept for the next batch; here nothing is kept. Its answer after n steps is
    that of `steps=n - 1`, and that of its single step `steps=0`: the image's own statistics and nothing else (PTN).

    The SITA paper takes 5 steps of 1e-3. Dropout is off, unlike in the public code: the same image always gives the
    same answer.
    """

    def __init__(self, model: nn.Module, *, steps: int = 5, lr: float = 1e-3) -> None:
        super().__init__(model)
        self.steps, self.lr = _count("steps", steps, 0), _rate(lr)
        layers = find_layers(self.body)
        self._affine = _slots(layers.values())
        frozen = [name for name, layer in layers.items() if not isinstance(layer, _BatchNorm)]
        if frozen or not self._affine:
            raise NoBatchNormError(
                "Tent expects BatchNorm layers with trainable γ and β; "
                + (f"received frozen ones: {', '.join(frozen[:4])}. " if frozen else "all are without (affine=False). ")
                + "Remedy: nn.BatchNorm2d layers with the same weights and statistics."
            )
        for layer in layers.values():
            for name, value in (("track_running_stats", False), ("running_mean", None), ("running_var", None)):
                setattr(layer, name, value)
            single = _SingleValue()
            layer.register_forward_pre_hook(single.double)
            layer.register_forward_hook(single.halve)

    def _answer(self, image: torch.Tensor) -> torch.Tensor:
        leaves = {source: source.detach().clone().requires_grad_() for source in _parameters(self._affine)}
        optimiser = torch.optim.Adam(leaves.values(), lr=self.lr, fused=True)  # fused: saves 1 to 8 %
        with _replaced(self._affine, leaves):
            for _ in range(self.steps):
                entropy_of(self._scores(image).log_softmax(1)).mean().backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                optimiser.zero_grad()
            with torch.no_grad():
                return self._scores(image)


class Memo(Baseline):
    """MEMO (Zhang et al. 2022) for classification: all weights follow the entropy of the mean prediction over views.

        H = −Σ_c q_c log q_c,  q = 1/n · Σ_i softmax(logits of view i)

    One step of plain SGD on all parameters from the source's, then the answer for the image itself.

    - `views`: n. MEMO's code takes 32 for CIFAR and 64 for ImageNet, on a GPU. On a CPU every view costs a pass forward
      and back, so that 32 would make MEMO the slowest method by far: 8 is our compromise.
    - `lr`: MEMO's 0.005 for CIFAR. Its ResNet-50 for ImageNet takes 0.00025.
    - `seed`: the views are drawn from it and the image's content, see `draw_views`.

    BatchNorms normalise with the source's statistics, as in evaluation. (For ResNet-50 MEMO mixes in the image's with
    weight 1/17; that is the `bn` method, and left out so that the two gains are not confused.)
    """

    def __init__(self, model: nn.Module, *, views: int = 8, lr: float = 5e-3, seed: int = 0) -> None:
        super().__init__(model)
        self.views, self.lr, self.seed = _count("views", views, 1), _rate(lr), _count("seed", seed, 0)
        self._weights = _slots(item for _, item in walk(self.body) if isinstance(item, nn.Module))
        for weight in _parameters(self._weights):
            weight.requires_grad_()

    def _answer(self, image: torch.Tensor) -> torch.Tensor:
        weights = _parameters(self._weights)
        scores = self._scores(draw_views(image, self.views, self.seed))
        if scores.ndim != 2:
            raise OutputError(
                f"Memo expects one prediction an image, (N, classes); the model put out {tuple(scores.shape)}. Views "
                "that are shifted and mirrored cannot be averaged pixel by pixel. Remedy: leave memo out for "
                "segmentation; tent runs there."
            )
        mean = scores.log_softmax(1).logsumexp(0, keepdim=True) - math.log(self.views)
        gradients = torch.autograd.grad(entropy_of(mean).sum(), weights, allow_unused=True)
        with torch.no_grad():
            stepped = {
                weight: weight if gradient is None else torch.add(weight, gradient, alpha=-self.lr)
                for weight, gradient in zip(weights, gradients, strict=True)
            }
            with _replaced(self._weights, stepped):
                return self._scores(image)


BASELINES: dict[str, Callable[..., Baseline]] = {"tent": Tent, "memo": Memo}
"""The baselines by the names that a run is given."""


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
    """The hooks that let a BatchNorm normalise a single value a channel, to β. PyTorch refuses to take its variance.

    The layer sees the value twice: mean and variance are the same.
    """

    doubled = False

    def double(self, layer: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Show the layer its input twice where that has one value a channel."""
        features, *others = arguments
        self.doubled = features.numel() == features.shape[1]
        return (torch.cat((features, features)), *others) if self.doubled else None

    def halve(self, layer: nn.Module, arguments: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor | None:
        """Take back the second of the two."""
        return output[:1] if self.doubled else None


def _slots(modules: Any) -> list[Slot]:
    """Return where these modules' own parameters stand."""
    return [
        (module, name)
        for module in modules
        for name, parameter in module._parameters.items()
        if parameter is not None and parameter.is_floating_point()
    ]


def _parameters(slots: Sequence[Slot]) -> list[nn.Parameter]:
    """Return the parameters, each once though it may stand in several places."""
    standing = (module._parameters[name] for module, name in slots)
    return list(dict.fromkeys(parameter for parameter in standing if parameter is not None))


@contextmanager
def _replaced(slots: Sequence[Slot], values: Mapping[nn.Parameter, torch.Tensor]) -> Iterator[None]:
    """Put tensors where the parameters stand, and put the parameters back afterwards."""
    sources = [module._parameters[name] for module, name in slots]
    try:
        for (module, name), source in zip(slots, sources, strict=True):
            module._parameters[name] = values[source]  # type: ignore[index, assignment]
        yield
    finally:
        for (module, name), source in zip(slots, sources, strict=True):
            module._parameters[name] = source


def _check_model(model: Any) -> None:
    # Under Keras' torch backend a Keras model is a torch.nn.Module, too.
    if any(ancestor.__module__.partition(".")[0] == "keras" for ancestor in type(model).__mro__):
        raise InputError(
            f"The baselines tent and memo need gradients and exist for PyTorch only; received the Keras model "
            f"{type(model).__name__}. Remedy: leave them out, or give the PyTorch version of the model."
        )
    if not isinstance(model, nn.Module):
        raise InputError(
            f"A baseline expects a torch.nn.Module; received an object of type {type(model).__qualname__}. "
            "Remedy: pass the module that computes the predictions."
        )
    if any("_sita" in vars(module) for module in model.modules()):
        raise AlreadyAdaptedError(
            f"A baseline expects a plain {type(model).__name__}; this one is adapted already. Remedy: give the source "
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
