"""Where the views of an image end: after the last adapted layer, nobody needs their statistics.

What runs after it then has the rows that answer alone. Where the model's graph cannot be read, or a trial run shows
that its values do not have their rows side by side there, all rows run to the end.
"""

from __future__ import annotations

import inspect
import operator
import pickle
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from sita_adapters.outputs import flatten, rebuild

from .calls import running
from .folding import spoilt_pair
from .layers import ImageLayout, is_batchnorm
from .recording import CannotRecordError, Code, compiled, record
from .structure import share, walk

_TRIAL_SIZES = {1: (64, 1024), 2: (64, 32, 224), 3: (32, 64)}
"""Of the images of a trial run, by how many axes they have; the next is taken where a model cannot run the first."""

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True)
class Ending:
    """A model's forward, in which the rows that only serve statistics end after a layer. It holds no model."""

    after: str
    """The last adapted layer, or the module around it that is a single call in the graph."""
    parameter: str | None
    """What the image is called in the model's own forward."""
    code: Code
    opened: tuple[tuple[str, dict[str, Any]], ...]
    """The modules whose operations are in the graph, and the settings that they had when it was recorded."""

    def covers(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether this call is what was recorded: of images alone, on modules that nobody has changed since."""
        alone = (len(args) == 1 and not kwargs) or (not args and list(kwargs) == [self.parameter])
        return alone and all(_is_as_recorded(model, name, settings) for name, settings in self.opened)

    def run(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the model's forward."""
        return self.code.function(model, *args, *kwargs.values())


def end_views(values: tuple[Any, ...], has_rows: tuple[bool, ...]) -> tuple[Any, ...]:
    """Return what is used from here on: of its arrays with rows, the rows that answer. A node of the graph.

    It does nothing where a value turns out to have other leading entries: more folded into the batch.
    """
    call = running.call
    if call is None or not call.answers:
        return values
    found = [array for _, array in flatten(values, _is_tensor)]
    entries = call.images * call.rows
    if any(rows and array.shape[0] != entries for array, rows in zip(found, has_rows, strict=True)):
        return values
    kept: dict[int, torch.Tensor] = {}  # what was one tensor is one afterwards, for operations in place
    for array, rows in zip(found, has_rows, strict=True):
        if id(array) not in kept:
            kept[id(array)] = _answering(array, call.images, call.rows, call.answers) if rows else array
    call.rows = len(call.answers)
    return rebuild(values, iter([kept[id(array)] for array in found]), _is_tensor)  # type: ignore[no-any-return]


def _answering(array: torch.Tensor, images: int, rows: int, answers: tuple[int, ...]) -> torch.Tensor:
    by_row = array.reshape(images, rows, *array.shape[1:])
    kept = torch.stack([by_row[:, row] for row in answers], dim=1).flatten(0, 1)
    if array.ndim == 4 and array.is_contiguous(memory_format=torch.channels_last) and not array.is_contiguous():
        return kept.contiguous(memory_format=torch.channels_last)
    return kept


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def find_ending(model: nn.Module, adapted: Iterable[str], layout: ImageLayout) -> Ending | None:
    """Return where the views of a model end, whose layers with these names are adapted; None: nowhere for sure."""
    if "forward" in vars(model) or layout.dimensions not in _TRIAL_SIZES or layout.channels is None:
        return None
    trial = _trial_copy(model)
    held = dict(walk(trial))
    layers = {id(held[name]) for name in adapted}
    try:
        graph, last, opened = _record_to_last(model, trial, layers)
        after = list(graph.nodes)[list(graph.nodes).index(last) + 1 :]
        if not any(_holds(_module(trial, node), is_batchnorm) for node in after):
            return None
        code = _cut(trial, graph, last, layout)
        settings = tuple((name, _settings(model.get_submodule(name))) for name in sorted(opened))
        ending = Ending(str(last.target), _first_parameter(model), code, settings)
        _check_storable(ending)
    except CannotRecordError:
        return None
    return ending


def _trial_copy(model: nn.Module) -> nn.Module:
    """Return a copy for runs that nobody else may notice: without hooks, and with buffers of its own."""
    trial = share(model).eval()
    for module in trial.modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue
        for hooks in _HOOKS:
            getattr(module, hooks).clear()
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else buffer.clone()
    return trial


def _record_to_last(model: nn.Module, trial: nn.Module, layers: set[int]) -> tuple[fx.Graph, fx.Node, set[str]]:
    """Return a graph, the last node in it that runs one of these layers, and the names of the modules opened for it.

    A module is opened only if the last layer is inside, and stays a single call if it cannot be.
    """
    opened = {""}
    graph = record(trial, opened)
    while True:
        calls = [node for node in graph.nodes if _holds(_module(trial, node), lambda item: id(item) in layers)]
        if not calls:
            raise CannotRecordError("None of the layers is called.")
        last = calls[-1]
        name = str(last.target)
        if id(_module(trial, last)) in layers or not _calls_nothing_else(model.get_submodule(name)):
            return graph, last, opened
        try:
            graph = record(trial, opened | {name})
        except CannotRecordError:
            return graph, last, opened
        opened = opened | {name}


def _module(model: nn.Module, node: fx.Node) -> nn.Module | None:
    return model.get_submodule(str(node.target)) if node.op == "call_module" else None


def _holds(module: nn.Module | None, wanted: Any) -> bool:
    return module is not None and any(wanted(item) for _, item in walk(module))


def _cut(trial: nn.Module, graph: fx.Graph, last: fx.Node, layout: ImageLayout) -> Code:
    """Return the code of the graph with `end_views` after this node, if runs of it show that this is safe."""
    nodes = list(graph.nodes)
    place = nodes.index(last) + 1
    before, after = nodes[:place], nodes[place:]
    of_images: set[fx.Node] = set()
    for node in before:
        if node.op == "placeholder" or of_images.intersection(node.all_input_nodes):
            of_images.add(node)
    crossing = [node for node in before if node in of_images and any(user in after for user in node.users)]
    pair, expected = _trial_run(trial, layout)
    has_rows = _compare_crossing(_part(before, crossing), trial, pair)
    with graph.inserting_after(last):
        ended = graph.call_function(end_views, (tuple(crossing), has_rows))
    for number, node in reversed(list(enumerate(crossing))):
        with graph.inserting_after(ended):
            value = graph.call_function(operator.getitem, (ended, number))
        for user in after:
            user.replace_input_with(node, value)
    code = compiled(graph)
    if not _same(_run(code, trial, pair), expected):
        raise CannotRecordError("The graph does not give what the forward gives.")
    return code


def _part(nodes: list[fx.Node], results: list[fx.Node]) -> Code:
    """Return the code of these nodes alone."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in results))
    return compiled(graph)


def _trial_run(trial: nn.Module, layout: ImageLayout) -> tuple[torch.Tensor, Any]:
    """Return two images, the first of them NaN, that the model can run, and what it gives for them."""
    like = next((parameter for parameter in trial.parameters() if parameter.is_floating_point()), torch.empty(0))
    if like.is_meta:
        raise CannotRecordError("The model has no values to run on.")
    draw = torch.Generator().manual_seed(0)
    for size in _TRIAL_SIZES[layout.dimensions or 2]:
        image = torch.randn(1, layout.channels or 1, *[size] * (layout.dimensions or 2), generator=draw)
        pair = spoilt_pair(image).to(like)
        try:
            return pair, _run(type(trial).forward, trial, pair)
        except CannotRecordError:
            continue
    raise CannotRecordError("The model runs on none of the trial images.")


def _run(function: Any, trial: nn.Module, images: torch.Tensor) -> Any:
    """Run what a user wrote, on images that it may change."""
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            return (function.function if isinstance(function, Code) else function)(trial, images.clone())
    except Exception as error:
        raise CannotRecordError(str(error)) from error


def _compare_crossing(part: Code, trial: nn.Module, pair: torch.Tensor) -> tuple[bool, ...]:
    """Return which of the arrays that cross have rows: of two images they have two, of five they have five.

    Raise where what crosses depends on the number of rows in another way, or where a row is not of one image: the first
    image is NaN, and so must be its row alone.
    """
    five = torch.cat([pair, pair[1:].expand(3, *pair.shape[1:])])
    two_rows, five_rows = _run(part, trial, pair), _run(part, trial, five)
    if _bare(two_rows) != _bare(five_rows):
        raise CannotRecordError("A size of the batch is used later.")
    has_rows = []
    memory: dict[int, torch.Tensor] = {}
    for (_, two), (_, more) in zip(flatten(two_rows, _is_tensor), flatten(five_rows, _is_tensor), strict=True):
        if two.shape == more.shape and torch.equal(two, more):
            has_rows.append(False)
            continue
        side_by_side = two.ndim > 0 and (len(two), len(more)) == (2, 5) and two.shape[1:] == more.shape[1:]
        if not side_by_side or not bool(two[0].isnan().any()) or bool(two[1].isnan().any()):
            raise CannotRecordError("Rows are not side by side.")
        if memory.setdefault(two.untyped_storage().data_ptr(), two) is not two:
            raise CannotRecordError("A change of one value in place would change another.")
        has_rows.append(True)
    return tuple(has_rows)


def _same(output: Any, expected: Any) -> bool:
    arrays = zip(flatten(output, _is_tensor), flatten(expected, _is_tensor), strict=False)
    return _bare(output) == _bare(expected) and all(
        x.shape == y.shape and x.dtype == y.dtype and torch.allclose(x, y, equal_nan=True) for (_, x), (_, y) in arrays
    )


def _bare(values: Any) -> str:
    """Return all but the arrays in a text, in which a dict is not an OrderedDict."""
    return repr(rebuild(values, iter([None] * len(flatten(values, _is_tensor))), _is_tensor))


def _first_parameter(model: nn.Module) -> str | None:
    first = list(inspect.signature(type(model).forward).parameters.values())[1:2]
    return first[0].name if first and first[0].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD else None


def _is_as_recorded(model: nn.Module, name: str, settings: dict[str, Any]) -> bool:
    module = model.get_submodule(name)
    now = _settings(module)
    return (not name or _calls_nothing_else(module)) and all(now.get(key) == value for key, value in settings.items())


def _calls_nothing_else(module: nn.Module) -> bool:
    """Whether calling the module is running its class's forward."""
    return "forward" not in vars(module) and not any(getattr(module, hooks) for hooks in _HOOKS)


def _settings(module: nn.Module) -> dict[str, Any]:
    """Return what a forward may decide by: a module's plain attributes, and what children it has."""
    plain = {name: value for name, value in vars(module).items() if isinstance(value, bool | int | float | str)}
    return {**plain, "children": tuple(module._modules)}


def _check_storable(ending: Ending) -> None:
    try:
        pickle.dumps(ending)
    except Exception as error:
        raise CannotRecordError(str(error)) from error
