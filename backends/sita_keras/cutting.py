"""Where the views of an image end: after the last adapted layers, nobody needs their statistics.

A graph (Functional, Sequential, and such inside each other) is made again from the same layers, with an `EndViews` on
every tensor that goes from what those layers need to the rest. Where a tensor's rows cannot be told to stand side by
side there, and in models that are no graph, all rows run to the end.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops, tree
from keras.src.models import Functional, Sequential

from .blending import Blending
from .calls import running
from .twin import copy_input, walk_layers


class EndViews(keras.layers.Layer):
    """(B·R, …) → (B·P, …): of every image, the rows that answer go on."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{**kwargs, "dtype": "float32", "autocast": False})
        self.supports_masking = True
        self.leading: set[int | None] = set()
        """The leading sizes that it was asked about, while shapes are worked out."""
        self.built = True

    def call(self, rows: Any) -> Any:
        """Return the rows that answer, where the call that runs has others."""
        call = running.call
        if call is None or len(call.answers) in (0, call.rows):
            return rows
        by_row = ops.reshape(rows, (-1, call.rows, *ops.shape(rows)[1:]))
        kept = ops.stack([by_row[:, row] for row in call.answers], axis=1)
        return ops.reshape(kept, (-1, *ops.shape(rows)[1:]))

    def compute_mask(self, inputs: Any, previous_mask: Any) -> Any:
        """Return the mask of the rows that answer."""
        return None if previous_mask is None else self.call(previous_mask)

    def compute_output_spec(self, rows: Any) -> Any:
        """Fewer rows, where their number is known."""
        call, leading = running.call, rows.shape[0]
        self.leading.add(leading)
        if call is not None and call.answers and leading is not None:
            leading = leading // call.rows * len(call.answers)
        return keras.KerasTensor((leading, *rows.shape[1:]), dtype=rows.dtype)


def end_views(twin: Any, rows: int) -> tuple[Any, tuple[str, ...]] | None:
    """Return the twin of a model, whose images have so many rows each, with its views ending; and after which layers.

    None where that is not safe for sure: then nothing has changed.
    """
    if not isinstance(twin, Functional | Sequential):
        return None
    ending = EndViews(name=f"views_end_in_{twin.name}")
    try:
        ended, last = _ended(twin, ending)
        for images in (2, 3):  # a leading size that follows their number is that of the rows
            ending.leading.clear()
            shapes = [(images * rows, *tensor.shape[1:]) for tensor in ended._inputs]
            specs = [keras.KerasTensor(shape, x.dtype) for shape, x in zip(shapes, ended._inputs, strict=True)]
            ended.compute_output_spec(tree.pack_sequence_as(ended._inputs_struct, specs))
            if ending.leading != {images * rows}:
                return None
    except Exception:  # whatever a user's layers make of shapes
        return None
    return ended, last


def _ended(model: Any, ending: EndViews) -> tuple[Any, tuple[str, ...]]:
    """Return the model with rows ending on the way, so that all its outputs have those that answer; and after what."""
    graph = model._functional if isinstance(model, Sequential) else model
    order = sorted(graph._nodes_by_depth.items(), reverse=True)
    nodes = [node for _, same in order for node in same if node.operation and not node.is_input]
    producers = {id(tensor): node for node in nodes for tensor in node.outputs}
    adapted = [node for node in nodes if _blends(node.operation)]
    earlier = _ancestors(adapted, producers)
    last = [node for node in adapted if id(node) not in earlier]
    uses = [id(node.operation) for node in nodes]
    opened = {
        id(node): _ended(node.operation, ending)
        for node in last
        if isinstance(node.operation, Functional | Sequential) and uses.count(id(node.operation)) == 1
    }
    with_all_rows = earlier | {id(node) for node in adapted}
    inputs = tree.map_structure(copy_input, graph._inputs_struct)
    made = {id(old): new for old, new in zip(graph._inputs, tree.flatten(inputs), strict=True)}
    unended = set(made)
    few: dict[int, Any] = {}

    def answering(old: Any) -> Any:
        if id(old) not in unended:
            return made[id(old)]
        if id(old) not in few:
            few[id(old)] = ending(made[id(old)])
        return few[id(old)]

    for node in nodes:
        every_row = id(node) in with_all_rows
        values = made if every_row else {id(old): answering(old) for old in node.input_tensors}
        operation = opened[id(node)][0] if id(node) in opened else node.operation
        args, kwargs = node.arguments.fill_in(values)
        for old, new in zip(node.outputs, tree.flatten(operation(*args, **kwargs)), strict=True):
            made[id(old)] = new
            if every_row and id(node) not in opened:
                unended.add(id(old))
    outputs = tree.pack_sequence_as(graph._outputs_struct, [answering(old) for old in graph._outputs])
    new = Functional(inputs, outputs, name=model.name)
    new._trainable, new._dtype_policy = model._trainable, model._dtype_policy
    return new, tuple(name for node in last for name in _names(node, opened))


def _ancestors(nodes: list[Any], producers: dict[int, Any]) -> set[int]:
    """Return the ids of the nodes that these need."""
    found: set[int] = set()
    waiting = list(nodes)
    while waiting:
        for tensor in waiting.pop().input_tensors:
            node = producers.get(id(tensor))
            if node is not None and id(node) not in found:
                found.add(id(node))
                waiting.append(node)
    return found


def _blends(operation: Any) -> bool:
    if isinstance(operation, Blending):
        return True
    return isinstance(operation, keras.layers.Layer) and any(isinstance(x, Blending) for _, x in walk_layers(operation))


def _names(node: Any, opened: dict[int, Any]) -> tuple[str, ...]:
    name = str(node.operation.name)
    return tuple(f"{name}/{inner}" for inner in opened[id(node)][1]) if id(node) in opened else (name,)
