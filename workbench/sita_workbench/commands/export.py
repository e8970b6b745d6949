"""`sita export`: an adapted model as a file that runs without this library."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from rich.console import Console
from rich.text import Text

from sita_adapters.recipe import DEFAULT

from . import options

if TYPE_CHECKING:
    from ..models.loaded import LoadedModel


def export(
    model: options.ModelSpec,
    *,
    out: Annotated[
        Path,
        typer.Option(
            help="The file to write. For PyTorch: .onnx or .pt2 (torch.export). For Keras: .onnx, .tflite (LiteRT), "
            "or a folder name without a suffix (SavedModel).",
        ),
    ],
    diagnostics: Annotated[
        bool,
        typer.Option(
            "--diagnostics",
            help="Add outputs for monitoring shift: prior (λ), entropy, and source (the source model's scores).",
        ),
    ] = False,
    weights: options.Weights = None,
    recipe: options.RecipeName = DEFAULT,
    task: options.TaskName = None,
    inputs: options.PixelInputs = None,
    size: options.Side = None,
    trust: options.Trust = False,
) -> None:
    """Write an adapted model to a file that runs without this library.

    The file takes any number of images of one size and returns the adapted
    model's output. Before the command ends, it runs the file and compares it
    with the adapted model. It also stores the pixel encoding and the class
    names: inside an ONNX file, or in a separate .json for other formats.

    Examples:
      sita export timm:resnet50 --weights pretrained --out resnet50.onnx
      sita export cifar10-resnet20 --weights resnet20.safetensors \\
        --recipe ops_shared --out resnet20.pt2
      sita export keras:ResNet50 --weights resnet50.weights.h5 \\
        --out resnet50.tflite
      sita predict resnet50.onnx cat.jpg
    """
    from ..exported.export import export_checked
    from ..methods import open_recipe
    from ..models.loading import load_model

    open_recipe(recipe, task or "classification")  # reports a wrong name before a model is loaded
    console, errors = Console(highlight=False), Console(stderr=True)
    with errors.status(f"Loading {model} …"):
        loaded = load_model(model, weights, inputs=inputs, size=size, task=task, trust=trust)
        loaded.require_inputs()
        adapted = loaded.adapt(open_recipe(recipe, loaded.task))
    fields = {name: getattr(loaded, name) for name in ("inputs", "crop", "task", "names", "weights")}
    with errors.status(f"Writing {out} …"):
        out.parent.mkdir(exist_ok=True)
        example = np.ascontiguousarray(loaded.arrange(loaded.encode(_make_example(loaded))))
        exported = export_checked(adapted, out, example, {**fields, "model": loaded.spec}, diagnostics=diagnostics)
    console.print(Text(str(exported)), soft_wrap=True)
    if out.suffix == ".onnx":
        console.print(Text(f"Run it: sita predict {out} IMAGE"), soft_wrap=True)
    if loaded.weights == "random":
        console.print(Text("The weights are random, so its predictions are meaningless."))


def _make_example(loaded: LoadedModel) -> np.ndarray:
    """Return two images (uint8) of colored squares with some noise."""
    height, width = loaded.sides or (options.USUAL_SIDE, options.USUAL_SIDE)
    random = np.random.default_rng(0)
    coarse = random.uniform(0, 255, (2, -(-height // 8), -(-width // 8), 3)).repeat(8, axis=1).repeat(8, axis=2)
    noisy = coarse[:, :height, :width] + random.normal(0, 12, (2, height, width, 3))
    return np.clip(noisy, 0, 255).astype(np.uint8)
