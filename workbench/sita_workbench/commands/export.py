"""`sita export`: an adapted model as a file that runs without this library."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from rich.console import Console
from rich.text import Text

from sita_adapters.recipe import DEFAULT

from .options import USUAL_SIDE, ModelSpec, PixelInputs, RecipeName, Side, TaskName, Weights

if TYPE_CHECKING:
    from ..models.loaded import LoadedModel


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
    recipe: RecipeName = DEFAULT,
    task: TaskName = None,
    inputs: PixelInputs = None,
    size: Side = None,
) -> None:
    """Write an adapted model to a file that runs without Python.

    The file takes a batch of images, as the model does, and returns the
    adapted predictions: the views, the blending of statistics and the vote
    are in its graph. It takes any number of images of one size. The file is
    run once and compared with the adapted model. The pixel encoding is
    stored with it (inside an ONNX file, or in a .json beside other files), so
    that sita predict can use it.

    Examples:
      sita export timm:resnet50 --weights pretrained --out resnet50.onnx
      sita export cifar10-resnet20 --weights resnet20.safetensors \\
        --recipe ops_shared --out resnet20.pt2
      sita export keras:ResNet50 --weights resnet50.weights.h5 \\
        --out resnet50.tflite
      sita predict resnet50.onnx cat.jpg
    """
    from sita_adapters.export import export_with_card

    from ..methods import open_recipe
    from ..models.loading import load_model

    open_recipe(recipe, task or "classification")  # reports a wrong name before a model is loaded
    console, errors = Console(highlight=False), Console(stderr=True)
    with errors.status(f"Loading {model} …"):
        loaded = load_model(model, weights, inputs=inputs, size=size)
        loaded = replace(loaded, task=task or loaded.task)
        adapted = loaded.adapt(open_recipe(recipe, loaded.task))
        example = loaded.arrange(_make_example(loaded))
    about = {name: getattr(loaded, name) for name in ("inputs", "crop", "task", "names", "weights")}
    with errors.status(f"Writing {out} …"):
        exported = export_with_card(adapted, out, np.ascontiguousarray(example), about={**about, "model": loaded.spec})
    console.print(Text(str(exported)), soft_wrap=True)
    console.print(Text(f"Run it: sita predict {out} IMAGE{'' if loaded.inputs else ' --inputs NAME'}"), soft_wrap=True)
    if loaded.weights == "random":
        console.print(Text("Random weights: its predictions mean nothing."))


def _make_example(loaded: LoadedModel) -> np.ndarray:
    """Return two images of coloured squares with some noise, encoded as the model takes them."""
    height, width = loaded.sides or (USUAL_SIDE, USUAL_SIDE)
    random = np.random.default_rng(0)
    coarse = random.uniform(0, 255, (2, -(-height // 8), -(-width // 8), 3)).repeat(8, axis=1).repeat(8, axis=2)
    noisy = coarse[:, :height, :width] + random.normal(0, 12, (2, height, width, 3))
    images = np.clip(noisy, 0, 255).astype(np.uint8)
    if loaded.inputs is None:
        return np.asarray((images / 127.5 - 1).astype(np.float32))
    return loaded.encode(images)
