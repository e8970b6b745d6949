"""The configuration of a model in Triton's repository: DIR/NAME/config.pbtxt beside DIR/NAME/1/model.onnx.

Triton makes batches of requests that wait at the same time: an image's answer does not depend on the others, so they
may be put together as they come.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .exported.runtimes import open_exported, run_checked
from .files import write_text

MAX_BATCH = 8
"""How many images Triton may run at once. Every one of them is several rows of the network's batch."""

_DELAY = 2000
"""How long a request may wait for others, in microseconds."""


def write_config(model: Path, max_batch: int = MAX_BATCH) -> Path:
    """Write the configuration of an ONNX file in a repository.

    The file is run once: its own description of its outputs may leave sizes open that are always the same.
    """
    import onnx

    file = open_exported(model, "onnx")
    shape = [size or 1 for size in file.input_shape or ()]
    outputs = run_checked(file, np.zeros(shape, np.float32))
    graph = onnx.load(str(model), load_external_data=False).graph
    kinds = {array.name: _type(array) for array in (*graph.input, *graph.output)}
    folder = model.parent.parent
    parts = [
        f'name: "{folder.name}"',
        'backend: "onnxruntime"',
        f"max_batch_size: {max_batch}",
        _list("input", {graph.input[0].name: tuple(shape)}, kinds),
        _list("output", {name: array.shape for name, array in outputs.items()}, kinds),
        f"dynamic_batching {{ max_queue_delay_microseconds: {_DELAY} }}",
    ]
    path = folder / "config.pbtxt"
    write_text(path, "\n".join(parts) + "\n")
    return path


def _list(title: str, shapes: Mapping[str, tuple[int, ...]], kinds: Mapping[str, str]) -> str:
    """Return arrays' names, types and sizes after the batch's."""
    entries = []
    for name, (_, *sizes) in shapes.items():
        # Triton takes no empty shape: an array (N,) is one of (N, 1) to its clients.
        dims = f"dims: [ {', '.join(map(str, sizes))} ]" if sizes else "dims: [ 1 ] reshape { shape: [ ] }"
        entries.append(f'  {{ name: "{name}" data_type: {kinds[name]} {dims} }}')
    return f"{title} [\n" + ",\n".join(entries) + "\n]"


def _type(array: Any) -> str:
    import onnx

    kind: str = onnx.TensorProto.DataType.Name(array.type.tensor_type.elem_type)
    return "TYPE_" + {"FLOAT": "FP32", "DOUBLE": "FP64", "FLOAT16": "FP16"}.get(kind, kind)
