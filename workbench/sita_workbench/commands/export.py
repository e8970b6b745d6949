"""`sita export`: an adapted model as a file that runs without this library."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from rich.console import Console
from rich.text import Text

from sita_adapters.errors import InputError
from sita_adapters.recipe import DEFAULT

from .options import USUAL_SIDE, ModelSpec, PixelInputs, RecipeName, Side, TaskName, Trust, Weights

if TYPE_CHECKING:
    from ..models.loaded import LoadedModel


def export(
    model: ModelSpec,
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The file to write. A PyTorch model: .onnx or .pt2 (torch.export). A Keras model: .onnx, .tflite "
            "(LiteRT), or a folder name without a suffix (SavedModel).",
            show_default=False,
        ),
    ] = None,
    diagnostics: Annotated[
        bool,
        typer.Option(
            "--diagnostics",
            help="Also return λ (prior), the entropy and the source model's scores (source), for watching shift.",
        ),
    ] = False,
    triton: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write a Triton model repository here, instead of --out: an ONNX file and its config.pbtxt.",
            show_default=False,
        ),
    ] = None,
    weights: Weights = None,
    recipe: RecipeName = DEFAULT,
    task: TaskName = None,
    inputs: PixelInputs = None,
    size: Side = None,
    trust: Trust = False,
) -> None:
    """Write an adapted model to a file that runs without Python.

    The file takes a batch of images, as the model does, and returns the
    adapted predictions: the views, the blending of statistics and the vote
    are in its graph. It takes any number of images of one size. The file is
    run once and compared with the adapted model. The pixel encoding is
    stored with it (inside an ONNX file, or in a .json beside other files),
    where sita predict finds it.

    Examples:
      sita export timm:resnet50 --weights pretrained --out resnet50.onnx
      sita export cifar10-resnet20 --weights resnet20.safetensors \\
        --recipe ops_shared --out resnet20.pt2
      sita export keras:ResNet50 --weights resnet50.weights.h5 \\
        --out resnet50.tflite
      sita predict resnet50.onnx cat.jpg
      sita export timm:resnet50 --weights pretrained --diagnostics --triton models
    """
    from ..exported.export import export_checked
    from ..methods import open_recipe
    from ..models.loading import load_model

    target = _read_target(model, out, triton)
    open_recipe(recipe, task or "classification")  # reports a wrong name before a model is loaded
    console, errors = Console(highlight=False), Console(stderr=True)
    with errors.status(f"Loading {model} …"):
        loaded = load_model(model, weights, inputs=inputs, size=size, trust=trust)
        loaded = replace(loaded, task=task or loaded.task)
        adapted = loaded.adapt(open_recipe(recipe, loaded.task))
        example = loaded.arrange(_make_example(loaded))
    fields = {name: getattr(loaded, name) for name in ("inputs", "crop", "task", "names", "weights")}
    with errors.status(f"Writing {target} …"):
        target.parent.mkdir(parents=triton is not None, exist_ok=True)
        exported = export_checked(
            adapted,
            target,
            np.ascontiguousarray(example),
            metadata_fields={**fields, "model": loaded.spec},
            diagnostics=diagnostics,
        )
        if triton is not None:
            from ..triton import write_config

            console.print(Text(f"{write_config(target)}: Triton's, for batches of any size"), soft_wrap=True)
    console.print(Text(str(exported)), soft_wrap=True)
    trusted = "" if target.suffix == ".onnx" else " --trust"
    given = "" if loaded.inputs else " --inputs NAME"
    console.print(Text(f"Run it: sita predict {target} IMAGE{trusted}{given}"), soft_wrap=True)
    if loaded.weights == "random":
        console.print(Text("Random weights: its predictions mean nothing."))


def _read_target(model: str, out: Path | None, triton: Path | None) -> Path:
    """Return the file to write: the one that was named, or the first version of a model in Triton's repository."""
    if (out is None) == (triton is None):
        received = "neither" if out is None else "both"
        raise InputError(f"Expected --out FILE or --triton DIR; received {received}. Try: give one of them.")
    if out is not None:
        return out
    assert triton is not None
    name = "".join(letter if letter.isalnum() else "_" for letter in Path(model.rpartition("/")[2]).name)
    return triton / name / "1" / "model.onnx"


def _make_example(loaded: LoadedModel) -> np.ndarray:
    """Return two images of colored squares with some noise, encoded as the model takes them."""
    height, width = loaded.sides or (USUAL_SIDE, USUAL_SIDE)
    random = np.random.default_rng(0)
    coarse = random.uniform(0, 255, (2, -(-height // 8), -(-width // 8), 3)).repeat(8, axis=1).repeat(8, axis=2)
    noisy = coarse[:, :height, :width] + random.normal(0, 12, (2, height, width, 3))
    images = np.clip(noisy, 0, 255).astype(np.uint8)
    if loaded.inputs is None:
        return np.asarray((images / 127.5 - 1).astype(np.float32))
    return loaded.encode(images)
