"""The call of an adapted model that a thread is in: what its layers need to know of it."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING

import torch
from torch import nn

from sita_adapters.errors import BypassError, InputError

from .guards import refuse_training

if TYPE_CHECKING:
    from .forward import Adaptation


@dataclass
class Call:
    """One call of an adapted model while it runs: B images of R rows each, and the Plan's arrays.

    `weights` are (B, R, R), which spares every layer the expanding, or (R, R) in a trace; `priors` are (R, 1).
    """

    adaptation: Adaptation
    images: int
    rows: int
    weights: torch.Tensor
    priors: torch.Tensor
    blends: bool
    shared: bool = False
    """Whether the images share their statistics."""
    alike: bool = False
    """Whether all rows of an image are normalised alike; `weights` and `priors` then have one line."""
    one_image: bool = False
    """Whether this is of one image, and will stay so: a trace may be run on more than its example has."""
    layers_run: int = 0
    folds: bool = False
    """Whether a layer saw more leading entries than rows."""
    probing: bool = False
    """Whether this is a run on a spoilt pair of images, to see how the model folds its batch."""
    over_area: dict[int, torch.Tensor] = field(default_factory=dict)
    """The weights divided by numbers of places."""
    answers: tuple[int, ...] = ()
    """The rows that go on after the last adapted layer, where the others end there; `rows` counts them from then on."""

    def weights_over(self, area: int) -> torch.Tensor:
        """Return the weights divided by a number of places, which many layers have in common."""
        if area not in self.over_area:
            self.over_area[area] = self.weights / area
        return self.over_area[area]

    def folded(self, x: torch.Tensor, name: str) -> int:
        """Return T for features of B·R·T leading entries: 1, or what the model folds into its batch (time, tokens)."""
        entries = self.images * self.rows
        folded = int(x.shape[0] // entries)
        if folded == 0 or x.shape[0] != folded * entries:
            raise InputError(
                f"Layer {name!r} received {x.shape[0]} leading entries for {self.images} images of {self.rows} rows: "
                "the model folds its batch in a way that cannot be followed. Expected a multiple of "
                f"{entries}. Remedy: leave the layer out with layers=."
            )
        self.folds |= folded > 1
        return folded


class _Running(threading.local):
    """A plain thread-local, which compilers and exporters follow where they stop at a ContextVar."""

    call: Call | None

    def __init__(self) -> None:
        self.call = None  # set in every thread: a compiler guards on whether it is


running = _Running()


def enter_layer(layer: nn.Module, adaptation: Adaptation, name: str) -> Call:
    """Return the running call of this adaptation; raise where the layer runs outside one."""
    call = running.call
    if call is None or call.adaptation is not adaptation:
        raise BypassError(
            f"{_entry_point(layer)} ran the adapted layer {name!r} outside a call of the adapted model, where there "
            "are no views to take statistics from. (A checkpointed backward pass runs layers again, too.) Remedy: call "
            "the adapted model itself, or use sita.unwrap(adapted) for the plain one."
        )
    if layer.training:
        refuse_training(name, layer)
    call.layers_run += 1
    return call


def _entry_point(layer: nn.Module) -> str:
    """Name the outermost module method on the stack: what the caller called instead of the model."""
    name = f"{type(layer).__name__}.forward"
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        code = frame.f_code
        if isinstance(owner, nn.Module) and not code.co_filename.endswith("torch/nn/modules/module.py"):
            name = f"{type(owner).__name__}.{code.co_name}"
        frame = frame.f_back
    return name
