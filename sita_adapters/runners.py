"""Models of every framework, run on numpy arrays."""

from __future__ import annotations

import itertools
import sys
from typing import Any, Protocol

import numpy as np

from .backend import backend_of
from .errors import InputError, OutputError, UnknownModelError


class Runner(Protocol):
    """Runs a framework's models on numpy arrays. The framework is imported already, or there would be no model."""

    class_axis: int

    @property
    def label(self) -> str:
        """What a reader is told."""

    def arrange(self, name: str, model: Any, images: np.ndarray) -> np.ndarray:
        """Return images (N, h, w, channels) with their axes as the model takes them."""

    def run(self, model: Any, batch: np.ndarray) -> np.ndarray:
        """Return the model's output, the way it would be run in earnest."""

    def run_eagerly(self, model: Any, batch: np.ndarray) -> Any:
        """Run the model so that a vote in it has numbers, not the symbols of a graph."""

    def to_numpy(self, array: Any) -> np.ndarray:
        """Return one of the framework's arrays as numpy's."""


class _TorchRunner:
    label, class_axis = "torch", 1

    def arrange(self, name: str, model: Any, images: np.ndarray) -> np.ndarray:
        if any(module.training for module in model.modules()):
            raise InputError(
                f"{name!r} is in training mode, in which a call would mix its images and change its statistics. "
                "Remedy: model.eval()."
            )
        first = next((module for module in model.modules() if hasattr(module, "in_channels")), None)
        channels = getattr(first, "in_channels", None)
        if channels == images.shape[1] != images.shape[-1]:
            raise _channels_first_error(name, images, channels)
        return np.moveaxis(images, -1, 1)

    def run(self, model: Any, batch: np.ndarray) -> np.ndarray:
        torch = sys.modules["torch"]
        tensor = torch.from_numpy(np.array(batch, order="C"))
        like = next(itertools.chain(model.parameters(), model.buffers()), tensor)
        floating = like.is_floating_point() and tensor.is_floating_point()
        with torch.no_grad():
            output = model(tensor.to(like.device, like.dtype if floating else tensor.dtype))
        if not isinstance(output, torch.Tensor):
            raise OutputError(f"Expected a model that returns a tensor of scores; received {type(output).__name__}.")
        return self.to_numpy(output)

    run_eagerly = run

    def to_numpy(self, array: Any) -> np.ndarray:
        return np.asarray(array.cpu().double().numpy())  # numpy has no bfloat16


class _KerasRunner:
    class_axis = -1

    @property
    def label(self) -> str:
        return f"keras ({sys.modules['keras'].backend.backend()})"

    def arrange(self, name: str, model: Any, images: np.ndarray) -> np.ndarray:
        inputs = getattr(model, "inputs", None)  # a subclassed model has none to check against
        if not inputs:
            return images
        shape = tuple(inputs[0].shape)[1:]
        for arranged in (images, np.moveaxis(images, -1, 1)):
            pairs = zip(shape, arranged.shape[1:], strict=False)
            if len(shape) == 3 and all(size in (None, given) for size, given in pairs):
                return arranged
        if len(shape) == 3 and shape[-1] == images.shape[1] != images.shape[-1]:
            raise _channels_first_error(name, images, shape[-1])
        raise InputError(f"images: {name!r} takes images of shape {shape}; received {images.shape[1:]}.")

    def run(self, model: Any, batch: np.ndarray) -> np.ndarray:
        output = model.predict_on_batch(batch)
        if not isinstance(output, np.ndarray):
            raise OutputError(f"Expected a model that returns one array of scores; received {type(output).__name__}.")
        return output

    def run_eagerly(self, model: Any, batch: np.ndarray) -> Any:
        if sys.modules["keras"].backend.backend() == "torch":
            return self.run(model, batch)  # eager in any case, and without gradients
        return model(batch, training=False)

    def to_numpy(self, array: Any) -> np.ndarray:
        return np.asarray(sys.modules["keras"].ops.convert_to_numpy(array))


_RUNNERS: dict[str, Runner] = {"torch": _TorchRunner(), "keras": _KerasRunner()}


def runner_of(model: Any) -> Runner:
    """Return what runs the models of this one's framework, which is read as `backend_of` reads it."""
    backend_of(model)
    for ancestor in type(model).__mro__:
        if runner := _RUNNERS.get(ancestor.__module__.partition(".")[0]):
            return runner
    raise UnknownModelError(f"compare runs models of {' and '.join(_RUNNERS)}; received a {type(model).__name__}.")


def _channels_first_error(name: str, images: np.ndarray, channels: int) -> InputError:
    return InputError(
        f"images: expected channels last, (N, h, w, {channels}) for {name!r}; received shape {images.shape}, which "
        "looks like channels first. Remedy: images.transpose(0, 2, 3, 1); torch models get their own order from here."
    )
