"""TTT for PyTorch, for models with a second head that was trained to tell by how much an image is turned."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from sita_adapters.errors import InputError, ModelError, OutputError, suggestion
from sita_adapters.inputs import Inputs

from .settings import TTTSettings, ttt_settings
from .torch_training import TorchBaseline, decode_one, encode_views
from .views import random_of, rotated_views

if TYPE_CHECKING:
    from ..models.loaded import LoadedModel


class TTT(TorchBaseline):
    """TTT (Sun et al. 2020) for single images, its offline version: trains on the rotations of the image.

        loss = mean over the batch of −log softmax(head(features of a turned crop))[its rotation]

    Every step draws a new batch of turned crops and updates the shared layers and the head by SGD. As in the authors'
    code, BatchNorm layers among these normalize with the batch's statistics during the steps and update their running
    ones, and the answer uses those. All other layers stay as they are, and dropout is off.

    - `head`: the layer that returns the scores (N, 4) of 0°, 90°, 180° and 270°, counterclockwise: its name, or the
      module itself, which may be outside of the model.
    - `shared`: the layers that are trained with the head, by name or as modules, in their order in the forward. The
      output of the last one is what the head takes.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Inputs,
        *,
        head: str | nn.Module,
        shared: str | nn.Module | Sequence[str | nn.Module],
        settings: TTTSettings | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(model)
        self.inputs, self.settings, self.seed = inputs, settings, seed
        several = [shared] if isinstance(shared, str | nn.Module) else list(shared)
        if not several:
            raise ModelError("shared: expected the names of layers; received none. Try: all layers before the head.")
        layers = [self.body.get_submodule(_name_of(model, "shared", each)) for each in several]
        with torch.inference_mode(False):
            outside = isinstance(head, nn.Module) and all(head is not each for each in model.modules())
            self.head = (
                copy.deepcopy(head).requires_grad_(False).eval()
                if isinstance(head, nn.Module) and outside
                else self.body.get_submodule(_name_of(model, "head", head))
            )
        self.last, used = layers[-1], list(dict.fromkeys(_modules_of([*layers, self.head])))
        self.train_on(dict.fromkeys(each for layer in used for each in layer.parameters(recurse=False)))
        self.norms = [layer for layer in used if isinstance(layer, _BatchNorm)]
        self.statistics = [(each, each.clone()) for layer in self.norms for each in layer.buffers()]

    @classmethod
    def of(cls, loaded: LoadedModel) -> TTT:
        """Return TTT for a model of `sita bench`, whose attribute `ttt` names the head and the shared layers."""
        names: Any = getattr(loaded.model, "ttt", None)
        if not isinstance(names, dict) or set(names) != {"head", "shared"}:
            received = "none" if names is None else repr(names)
            raise ModelError(
                "ttt expects a model that was trained with a second head for rotations, and whose attribute `ttt` is "
                f"{{'head': name, 'shared': names}}; {loaded.spec} has {received}. Try: set model.ttt in the function "
                "of file.py:function, or leave ttt out."
            )
        return cls(loaded.model, loaded.require_inputs(), **names)

    def adapt(self, image: torch.Tensor) -> None:
        """Make the updates on one image (1, C, H, W)."""
        if image.shape[2] != image.shape[3]:
            raise InputError(
                f"ttt turns images by 90°, and expects square ones; received {image.shape[2]} × {image.shape[3]} "
                "pixels. Try: --size, or leave it out."
            )
        settings = self.settings or ttt_settings((image.shape[2], image.shape[3]))
        for statistic, start in self.statistics:
            statistic.copy_(start)
        pixels = decode_one(image, self.inputs)
        random = random_of(pixels, self.seed)
        optimizer = torch.optim.SGD(self.trained, lr=settings.lr)
        for layer in self.norms:
            layer.train()
        for _ in range(settings.steps):
            views, turns = rotated_views(pixels, settings.batch, random)
            scores = self.rotation_scores(encode_views(views, self.inputs, image))
            optimizer.zero_grad()
            F.cross_entropy(scores, torch.from_numpy(turns).to(scores.device)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        for layer in self.norms:
            layer.eval()

    def rotation_scores(self, images: torch.Tensor) -> torch.Tensor:
        """Return the head's scores (N, 4). The model runs up to the last shared layer only."""
        handle = self.last.register_forward_hook(_stop)
        try:
            self.body(images)
        except _Features as found:
            scores: torch.Tensor = self.head(found.args[0])
        else:
            raise ModelError(
                f"shared: expected the name of a layer that the model calls; {type(self.body).__name__} did not call "
                "the last one. Try: the layer whose output the head takes."
            )
        finally:
            handle.remove()
        if scores.shape != (len(images), 4):
            raise OutputError(
                f"head: expected scores of four rotations, {(len(images), 4)}; received {tuple(scores.shape)}. Try: "
                "the head that was trained to tell rotations."
            )
        return scores


class _Features(Exception):
    """Carries the output of a layer out of a forward, whose rest is not needed."""


def _stop(layer: nn.Module, arguments: Any, output: Any) -> None:
    raise _Features(output)


def _modules_of(layers: Iterable[nn.Module]) -> list[nn.Module]:
    return [each for layer in layers for each in layer.modules()]


def _name_of(model: nn.Module, argument: str, layer: str | nn.Module) -> str:
    """Return the name of a layer of the model; raise if it has no such layer."""
    names: dict[str, nn.Module] = {name: each for name, each in model.named_modules(remove_duplicate=False) if name}
    for name, each in names.items():
        if layer in (name, each):
            return name
    received = repr(layer) if isinstance(layer, str) else f"a {type(layer).__name__} outside of it"
    close = suggestion(layer, list(names)) if isinstance(layer, str) else ""
    raise ModelError(
        f"{argument}: expected a layer of {type(model).__name__}; received {received}.{close} Try: a name of "
        "model.named_modules()."
    )
