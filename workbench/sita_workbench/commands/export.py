"""`sita export`: an adapted model as a file that runs without this library."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from rich.console import Console
from rich.text import Text

from .model_options import ModelSpec, PixelInputs, RecipeName, Side, TaskName, Weights

if TYPE_CHECKING:
    from ..models.loading import Subject

_USUAL_SIDE = 224


def export(
    model: ModelSpec,
    *,
    out: Annotated[
        Path,
        typer.Option(
            help="The file to write. A PyTorch model: .onnx, .pt2 (torch.export), .pt or .ts (TorchScript). A Keras "
            "model: .onnx, .tflite (LiteRT), or a folder's name without an ending (SavedModel).",
            show_default=False,
        ),
    ],
    weights: Weights = None,
    recipe: RecipeName = "ops",
    task: TaskName = None,
    inputs: PixelInputs = None,
    size: Side = None,
) -> None:
    """Write an adapted model to a file that runs without Python.

    The file takes a batch of images, as the model does, and returns the
    adapted predictions: the views, the blending of statistics and the vote
    are in its graph. It takes any number of images, of one size. What was
    written is run once, and compared with the adapted model. How pixels are
    encoded is kept with it (in an ONNX file, or beside another as .json), so
    that sita predict knows.

    Examples:
      sita export timm:resnet50 --weights pretrained --out resnet50.onnx
      sita export cifar10-resnet20 --weights resnet20.safetensors \\
        --recipe ops_shared --out resnet20.pt2
      sita export keras:ResNet50 --weights resnet50.weights.h5 \\
        --out resnet50.tflite
      sita predict resnet50.onnx cat.jpg
    """
    from sita_adapters.api import adapt
    from sita_adapters.backend import backend_of
    from sita_adapters.export import export_with_card
    from sita_adapters.recipe import read_recipe

    from ..models.loading import load_model

    read_recipe(recipe, {}, task or "classification")  # a wrong name is told before a model is loaded
    console, errors = Console(highlight=False), Console(stderr=True)
    with errors.status(f"Loading {model} …"):
        subject = load_model(model, weights, inputs=inputs, size=size)
        subject = replace(subject, task=task or subject.task)
        adapted = adapt(subject.model, recipe, task=subject.task, inputs=subject.inputs, scores=subject.scores)
        example = backend_of(subject.model).runner().arrange(model, subject.model, _make_example(subject))
    about = {name: getattr(subject, name) for name in ("inputs", "crop", "task", "names", "weights")}
    with errors.status(f"Writing {out} …"):
        exported = export_with_card(adapted, out, np.ascontiguousarray(example), about={**about, "model": subject.spec})
    console.print(Text(str(exported)), soft_wrap=True)
    console.print(Text(f"Run it: sita predict {out} IMAGE{'' if subject.inputs else ' --inputs NAME'}"), soft_wrap=True)
    if subject.weights == "random":
        console.print(Text("Random weights: its answers mean nothing."))


def _make_example(subject: Subject) -> np.ndarray:
    """Return two images of smooth colours with some noise on them, encoded as the model takes them."""
    from ..data.images import read_size

    height, width = read_size(subject.size) or (_USUAL_SIDE, _USUAL_SIDE)
    random = np.random.default_rng(0)
    coarse = random.uniform(0, 255, (2, -(-height // 8), -(-width // 8), 3)).repeat(8, axis=1).repeat(8, axis=2)
    noisy = coarse[:, :height, :width] + random.normal(0, 12, (2, height, width, 3))
    images = np.clip(noisy, 0, 255).astype(np.uint8)
    if subject.inputs is None:
        return np.asarray((images / 127.5 - 1).astype(np.float32))
    return subject.encode(images)
