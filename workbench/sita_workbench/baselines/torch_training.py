"""TENT and MEMO for PyTorch. They train a copy of the model on each image, from the source's weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from sita_adapters.backend import backend_of
from sita_adapters.errors import InputError, ModelError, OutputError
from sita_adapters.inputs import Inputs

from .settings import MemoSettings, TentSettings, memo_settings, tent_settings
from .views import augmix_views, decode, encode

if TYPE_CHECKING:
    from ..models.loaded import LoadedModel


class TorchBaseline(nn.Module):
    """The common part: a copy of the model, and the loop over images."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        if backend_of(model).label != "torch" or backend_of(model).adaptation_of(model) is not None:
            raise ModelError(
                f"{self.label} expects a plain PyTorch model; received an adapted or a Keras model, "
                f"{type(model).__name__}. Try: leave it out, or pass the source model."
            )
        with torch.inference_mode(False):  # tensors made in inference mode cannot take part in gradients
            self.body = copy.deepcopy(model).requires_grad_(False)
        self.eval()
        self.train_on(())

    @property
    def label(self) -> str:
        """The method's name in `sita bench`."""
        return type(self).__name__.lower()

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
                found.append(self.answer(image.detach().clone()))  # a copy, as above
        return torch.cat(found)

    def answer(self, image: torch.Tensor) -> torch.Tensor:
        """Return the scores (1, …) of one image (1, C, H, W)."""
        self.adapt(image)
        with torch.no_grad():
            return self.scores(image)

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
                f"{self.label} expects logits (N, classes, …) of at least 2 classes; the model returned "
                f"{tuple(scores.shape)}. Try: a head with one logit per class."
            )
        return scores


class Tent(TorchBaseline):
    """TENT (Wang et al. 2021) for single images: minimizes the entropy of the prediction over γ and β of BatchNorms.

        H = mean over pixels of −Σ_c p_c log p_c,  p = softmax(logits)

    After the updates by Adam it runs the image once more, as in TENT's section 3.3 (its public code returns the scores
    from before the last update). BatchNorms normalize with the image's own statistics in every pass. Dropout is off:
    the same image always gets the same answer.
    """

    def __init__(self, model: nn.Module, *, settings: TentSettings | None = None) -> None:
        super().__init__(model)
        self.settings = settings
        layers = batchnorms(self.body)
        self.train_on(parameter for layer in layers for parameter in layer.parameters(recurse=False))
        if not self.trained:
            raise ModelError(f"tent expects BatchNorm layers with γ and β; {type(model).__name__} has none. Try: memo.")
        for layer in layers:
            layer.track_running_stats = False
            layer.running_mean = layer.running_var = None
            layer.register_forward_pre_hook(_refuse_single_value)

    @classmethod
    def of(cls, loaded: LoadedModel) -> Tent:
        """Return TENT for a model of `sita bench`."""
        return cls(loaded.model)

    def adapt(self, image: torch.Tensor) -> None:
        """Make the updates of γ and β."""
        settings = self.settings or tent_settings((image.shape[2], image.shape[3]))
        optimizer = torch.optim.Adam(self.trained, lr=settings.lr, betas=settings.betas, fused=True)  # saves 1 to 8 %
        for _ in range(settings.steps):
            optimizer.zero_grad()
            entropy_of(self.scores(image).log_softmax(1)).mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()


class Memo(TorchBaseline):
    """MEMO (Zhang et al. 2021) for classification: minimizes the entropy of the mean prediction over all weights.

        H = −Σ_c q_c log q_c,  q = 1/n · Σ_i softmax(logits of view i)

    One step on AugMix views, then the answer for the image itself. BatchNorms normalize with N/(N + 1) of the source's
    statistics and 1/(N + 1) of those of what runs: of all views together in the step, of the image in the answer.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Inputs,
        *,
        settings: MemoSettings | None = None,
        architecture: str = "",
        seed: int = 0,
    ) -> None:
        super().__init__(model)
        self.inputs, self.settings, self.architecture, self.seed = inputs, settings, architecture, seed
        self.train_on(self.body.parameters())
        self.blended = [BlendedStatistics(layer) for layer in batchnorms(self.body)]

    @classmethod
    def of(cls, loaded: LoadedModel) -> Memo:
        """Return MEMO for a model of `sita bench`."""
        return cls(loaded.model, loaded.require_inputs(), architecture=loaded.spec)

    def adapt(self, image: torch.Tensor) -> None:
        """Make one step on all weights."""
        settings = self.settings or memo_settings((image.shape[2], image.shape[3]), self.architecture)
        for layer in self.blended:
            layer.share = 0.0 if settings.prior is None else 1 / (settings.prior + 1)
        pixels = decode_one(image, self.inputs)
        kind = torch.optim.SGD if settings.optimizer == "sgd" else torch.optim.AdamW
        optimizer = kind(self.trained, lr=settings.lr, weight_decay=settings.weight_decay)
        for step in range(settings.steps):
            views = augmix_views(pixels, settings.views, self.seed + step)
            optimizer.zero_grad()
            marginal_entropy(self.scores(encode_views(views, self.inputs, image))).backward()  # type: ignore[no-untyped-call]
            optimizer.step()


class BlendedStatistics:
    """Makes a BatchNorm layer normalize with (1 − share) of the source's statistics and `share` of its input's.

    The input's are those of all its images together. No gradient flows through them. As in MEMO's code, the variance is
    unbiased; `correction=0` makes it biased.
    """

    def __init__(self, layer: _BatchNorm, *, correction: int = 1) -> None:
        assert layer.running_mean is not None
        assert layer.running_var is not None
        self.source = layer.running_mean.clone(), layer.running_var.clone()
        self.share, self.correction = 0.0, correction
        layer.register_forward_pre_hook(self._blend)

    def _blend(self, layer: nn.Module, arguments: tuple[torch.Tensor]) -> None:
        """Set the layer's statistics before it runs. New tensors: autograd may still need the last ones."""
        layer.running_mean, layer.running_var = self.source
        if self.share:
            _refuse_single_value(layer, arguments)
            with torch.no_grad():
                x = arguments[0].movedim(1, 0).flatten(1)
                measured = x.mean(1), x.var(1, correction=self.correction)
                blended = (torch.lerp(s, t, self.share) for s, t in zip(self.source, measured, strict=True))
                layer.running_mean, layer.running_var = blended


def batchnorms(model: nn.Module) -> list[_BatchNorm]:
    """Return the BatchNorm layers with source statistics."""
    layers = [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]
    return [layer for layer in layers if layer.running_mean is not None]


def entropy_of(log_probabilities: torch.Tensor) -> torch.Tensor:
    """Return −Σ_c p_c log p_c in nats, over axis 1."""
    return -(log_probabilities.exp() * log_probabilities).sum(1)


def marginal_entropy(scores: torch.Tensor) -> torch.Tensor:
    """Return the entropy of the mean prediction of logits (N, classes)."""
    if scores.ndim != 2:
        raise OutputError(
            f"memo expects one prediction per image, (N, classes); the model returned {tuple(scores.shape)}. Its "
            "views move pixels, and cannot be averaged pixel by pixel. Try: leave memo out for segmentation."
        )
    mean = scores.log_softmax(1).logsumexp(0, keepdim=True) - math.log(len(scores))
    return entropy_of(mean).sum()


def decode_one(image: torch.Tensor, inputs: Inputs) -> np.ndarray:
    """Return RGB bytes (h, w, 3) of an encoded image (1, C, H, W)."""
    return decode(image[0].movedim(0, -1).cpu().double().numpy(), inputs)


def encode_views(views: np.ndarray, inputs: Inputs, like: torch.Tensor) -> torch.Tensor:
    """Return views (N, h, w, 3) as the model takes them, (N, C, H, W), in the dtype and on the device of `like`."""
    return torch.from_numpy(encode(views, inputs)).movedim(-1, 1).contiguous().to(like)


def _refuse_single_value(layer: nn.Module, arguments: tuple[torch.Tensor]) -> None:
    if arguments[0].numel() == arguments[0].shape[1]:
        raise InputError("A BatchNorm layer receives one value per channel. Try: larger images, or leave it out.")
