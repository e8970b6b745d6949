"""A model under test, and how images are encoded for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

import sita_adapters as sita
from sita_adapters.backend import adaptation_of, backend_of
from sita_adapters.errors import InputError, OutputError
from sita_adapters.inputs import ENCODINGS, Inputs
from sita_adapters.outputs import OutputLayout, flatten
from sita_adapters.recipe import Recipe, Task, resolve_recipe
from sita_adapters.voting import Scores, probabilities

from ..data.images import MAX_PIXELS, Fit, memory_size
from ..exported.runtimes import OnnxFile

if TYPE_CHECKING:
    from PIL.Image import Image

Size = int | tuple[int, int] | None
"""Height and width, one number for a square; None: any."""

_BYTES_PER_PIXEL = 1024
"""The least memory that the features of two rows need per pixel of an image, in a network that takes any size."""


@dataclass(frozen=True)
class LoadedModel:
    """A model, and how images are encoded for it.

    - `spec`: the name that it was loaded by.
    - `model`: a torch Module in eval mode, or a keras.Model; None for an exported file.
    - `inputs`: how pixels are encoded; None if the user's file does not define it. `encode` then raises an error.
    - `size`: the height and width that it takes; None for any size.
    - `crop`: the share of an image's shorter side that the center crop keeps.
    - `scores`: the kind of its scores, as for `adapt`.
    - `weights`: their origin: a file's name and sha256, "pretrained", "random", "its own".
    - `names`: the names of its classes; empty if they are not known.
    - `file`: the exported file, which is already adapted; None for a live model.
    """

    spec: str
    model: Any
    inputs: Inputs | None
    size: Size = None
    crop: float = 0.875
    task: Task = "classification"
    scores: Scores | None = None
    weights: str = "its own"
    names: tuple[str, ...] = ()
    file: OnnxFile | None = None

    @property
    def framework(self) -> str:
        """The framework's name, and for Keras its backend; of a file, onnxruntime."""
        return backend_of(self.model).label if self.file is None else "onnxruntime"

    @property
    def sides(self) -> tuple[int, int] | None:
        """The height and width that it takes; None: any."""
        return (self.size, self.size) if isinstance(self.size, int) else self.size

    @property
    def max_pixels(self) -> int:
        """The largest image that is read. If the model takes any size, its features must fit the memory."""
        return MAX_PIXELS if self.sides else min(MAX_PIXELS, memory_size() // _BYTES_PER_PIXEL)

    def on(self, device: str) -> LoadedModel:
        """Return this PyTorch model on a device; its images follow. Other frameworks choose the device themselves."""
        try:
            moved = self.model if device == "cpu" else self.model.to(device)
        except (AttributeError, RuntimeError, AssertionError, NotImplementedError) as error:
            what = f"only PyTorch models can be moved, and {self.spec} cannot be moved to {device!r}: {error}"
            raise InputError(f"--device: {what}. Try: leave it out.") from error
        return self if device == "cpu" else replace(self, model=moved, weights=f"{self.weights}, on {device}")

    def adapt(self, recipe: Recipe | str) -> Any:
        """Return the adapted model."""
        chosen = resolve_recipe(recipe, {}, self.task)
        return sita.adapt(self.model, chosen, inputs=self.inputs, scores=self.scores)

    def require_inputs(self) -> Inputs:
        """Return how pixels are encoded; raise if that is not known."""
        if self.inputs is None:
            raise InputError(
                f"{self.spec} does not define its pixel encoding. Expected one of {', '.join(ENCODINGS)}. "
                "Try: the encoding used in training, for example --inputs imagenet; or let the function return "
                "(model, {'inputs': 'imagenet'})."
            )
        return self.inputs

    def fit(self, image: Image) -> np.ndarray:
        """Return an RGB picture in bytes (h, w, 3), resized and cropped to what the model takes.

        A label map covers the whole image: there, nothing is cropped.
        """
        from PIL.Image import Resampling

        if self.task != "segmentation":
            image = Fit(self.sides, self.crop).apply(image)
        elif self.sides is not None:
            image = image.resize(self.sides[::-1], Resampling.BILINEAR)
        return np.asarray(image)

    def encode(self, images: np.ndarray) -> np.ndarray:
        """Return RGB bytes (N, h, w, 3) as the model takes them, in float32, channels last.

        x = (u · white − mean) / std for u in [0, 1], in the encoding's channel order.
        """
        inputs = self.require_inputs()
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] != 3:
            raise InputError(f"Expected RGB bytes (N, h, w, 3) in uint8; received {images.shape} in {images.dtype}.")
        ordered = images if inputs.order == "rgb" else images[..., ::-1]
        mean, std = np.array(inputs.mean, np.float32), np.array(inputs.std, np.float32)
        return np.ascontiguousarray((ordered * np.float32(inputs.white / 255) - mean) / std)

    def arrange(self, images: np.ndarray) -> np.ndarray:
        """Return encoded images (N, h, w, channels) with their axes as the model takes them."""
        inputs = getattr(self.model, "inputs", None)  # a functional Keras model's
        shape = tuple(inputs[0].shape) if inputs else ()
        first = self.framework == "torch" or (len(shape) == 4 and shape[1] == images.shape[-1] != shape[-1])
        return np.moveaxis(images, -1, 1) if first else images

    def run(self, model: Any, images: np.ndarray) -> np.ndarray:
        """Return the scores (N, …, classes) of this model, or of one made from it, on encoded images."""
        return self._run(model, images)[0]

    def predict(self, model: Any, images: np.ndarray) -> np.ndarray:
        """Return p (N, …, classes) of this model, or of one made from it, on encoded images."""
        scores, kind = self._run(model, images)
        return probabilities(scores.astype(np.float64), kind, -1)

    def _run(self, model: Any, images: np.ndarray) -> tuple[np.ndarray, Scores]:
        """Return the scores (N, …, classes), and what they are."""
        backend = backend_of(self.model)  # a baseline is no model
        if backend.adaptation_of(model) is not None:
            answer = backend.run(model, images, channels_last=True)
            layout, array = answer.layout, backend.ops.to_numpy(answer.scores)
        else:
            layout = self._source_layout(images)
            index, arrays = (
                layout.require_scores().index,
                flatten(backend.call(model, images, channels_last=True), backend.ops.is_array),
            )
            array = arrays[index if len(arrays) == len(layout.paths) else 0][1]  # a baseline returns the scores alone
            array = np.moveaxis(backend.ops.to_numpy(array), layout.axes[index] or 0, 0)
        scores = layout.require_scores()
        if scores.kind.startswith("sigmoid"):
            raise OutputError(f"Expected one label per image or pixel; {self.spec} returns independent sigmoid labels.")
        return np.moveaxis(array, scores.class_axis, -1), scores.kind

    @cached_property
    def _source(self) -> Any:
        return self.adapt("source")

    def _source_layout(self, images: np.ndarray) -> OutputLayout:
        """Return the layout of the plain model's output, which a probe establishes once."""
        adaptation = adaptation_of(self._source)
        if not adaptation.probes:
            backend_of(self.model).run(self._source, images[:1], channels_last=True)
        return adaptation.latest_probe.layout
