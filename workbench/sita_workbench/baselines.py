"""TENT and MEMO, for comparison. They train a copy of a PyTorch model on each image, from the source's weights."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from sita_adapters.backend import backend_of
from sita_adapters.errors import InputError, ModelError, OutputError


class Baseline(nn.Module):
    """The common part of both methods: a copy of the model, and the loop over images."""

    def __init__(self, model: nn.Module, lr: float) -> None:
        super().__init__()
        if backend_of(model).label != "torch" or backend_of(model).adaptation_of(model) is not None:
            raise ModelError(
                "tent and memo train on every image, and expect a plain PyTorch model; received an adapted or a Keras "
                f"model, {type(model).__name__}. Try: leave them out, or pass the source model."
            )
        with torch.inference_mode(False):  # tensors made in inference mode cannot take part in gradients
            self.body = copy.deepcopy(model).requires_grad_(False)
        self.eval()
        self.lr = lr

    def train_on(self, parameters: Iterable[nn.Parameter]) -> None:
        """Set what is trained, and keep its values to start from."""
        self.trained = [parameter.requires_grad_() for parameter in parameters if parameter.is_floating_point()]
        self.start = [parameter.detach().clone() for parameter in self.trained]

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the scores of each image, from the model adapted to this image alone."""
        found = []
        with torch.inference_mode(False), torch.enable_grad():
            for image in torch.split(images, 1):
                for parameter, start in zip(self.trained, self.start, strict=True):
                    parameter.data.copy_(start)
                self.adapt(image.detach().clone())  # a copy, as above
                with torch.no_grad():
                    found.append(self.scores(image))
        return torch.cat(found)

    def adapt(self, image: torch.Tensor) -> None:
        """Train the copy on one image (1, C, H, W)."""
        raise NotImplementedError

    def scores(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits (N, classes, …) of the copy."""
        output = self.body(images)
        if isinstance(output, Mapping):  # torchvision's segmentation models, transformers' ModelOutput
            output = output["out"] if "out" in output else output["logits"]
        scores: torch.Tensor = output
        if scores.ndim < 2 or scores.shape[1] < 2:
            raise OutputError(
                f"tent and memo minimize the entropy of logits (N, classes, …) and expect at least 2 classes; the "
                f"model returned {tuple(scores.shape)}. Try: a head with one logit per class."
            )
        return scores


class Tent(Baseline):
    """TENT (Wang et al. 2021) for single images: minimizes the entropy of the prediction over γ and β of BatchNorms.

        H = mean over pixels of −Σ_c p_c log p_c,  p = softmax(logits)

    It makes `steps` updates by Adam (the SITA paper takes 5 of 1e-3), then runs the image once more, as in TENT's
    section 3.3 (its public code returns the scores from before the last update). BatchNorms normalize with the image's
    own statistics in every pass. Dropout is off: the same image always gets the same answer.
    """

    def __init__(self, model: nn.Module, *, steps: int = 5, lr: float = 1e-3) -> None:
        super().__init__(model, lr)
        self.steps = steps
        layers = [layer for layer in self.body.modules() if isinstance(layer, _BatchNorm)]
        self.train_on(parameter for layer in layers for parameter in layer.parameters(recurse=False))
        if not self.trained:
            raise ModelError(f"tent expects BatchNorm layers with γ and β; {type(model).__name__} has none. Try: memo.")
        for layer in layers:
            layer.track_running_stats = False
            layer.running_mean = layer.running_var = None
            layer.register_forward_pre_hook(_refuse_single_value)

    def adapt(self, image: torch.Tensor) -> None:
        """Make the updates of γ and β."""
        optimizer = torch.optim.Adam(self.trained, lr=self.lr, fused=True)  # fused: saves 1 to 8 %
        for _ in range(self.steps):
            optimizer.zero_grad()
            entropy_of(self.scores(image).log_softmax(1)).mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()


class Memo(Baseline):
    """MEMO (Zhang et al. 2022) for classification: minimizes the entropy of the mean prediction over all weights.

        H = −Σ_c q_c log q_c,  q = 1/n · Σ_i softmax(logits of view i)

    One step of plain SGD on all parameters, then the answer for the image itself. BatchNorms keep the source's
    statistics. MEMO's code takes 32 or 64 views; on a CPU, 8 is a compromise. `lr` is MEMO's for CIFAR.
    """

    def __init__(self, model: nn.Module, *, views: int = 8, lr: float = 5e-3, seed: int = 0) -> None:
        super().__init__(model, lr)
        self.views, self.seed = views, seed
        self.train_on(self.body.parameters())

    def adapt(self, image: torch.Tensor) -> None:
        """Make one step on all weights."""
        optimizer = torch.optim.SGD(self.trained, lr=self.lr)
        optimizer.zero_grad()
        scores = self.scores(draw_views(image, self.views, self.seed))
        if scores.ndim != 2:
            raise OutputError(
                f"memo expects one prediction per image, (N, classes); the model returned {tuple(scores.shape)}. Its "
                "views move pixels, and cannot be averaged pixel by pixel. Try: leave memo out for segmentation."
            )
        mean = scores.log_softmax(1).logsumexp(0, keepdim=True) - math.log(self.views)
        entropy_of(mean).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()


BASELINES: dict[str, Callable[[nn.Module], Baseline]] = {"tent": Tent, "memo": Memo}
"""The baselines by their names in `sita bench`."""


def entropy_of(log_probabilities: torch.Tensor) -> torch.Tensor:
    """Return −Σ_c p_c log p_c in nats, over axis 1."""
    return -(log_probabilities.exp() * log_probabilities).sum(1)


def draw_views(image: torch.Tensor, count: int, seed: int) -> torch.Tensor:
    """Return `count` augmentations (count, C, H, W) of one image (1, C, H, W), drawn from its content and the seed.

    Each is shifted by up to an eighth of its size, mirrored or not, and changed in contrast and brightness within the
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


def _refuse_single_value(layer: nn.Module, arguments: tuple[torch.Tensor]) -> None:
    if arguments[0].numel() == arguments[0].shape[1]:
        raise InputError("tent: a BatchNorm layer receives one value per channel. Try: larger images, or leave it out.")
