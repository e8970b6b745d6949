"""`benchmark`: what recipes gain on a model and labeled images in memory, as a small table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sita_adapters.errors import InputError
from sita_adapters.recipe import DEFAULT, Recipe, Task

from .methods import SOURCE, Method, make_methods
from .metrics import CHUNK, METRIC, Parts, compare, make_entry
from .models.loaded import LoadedModel


class Table(list[dict[str, Any]]):
    """The results of `benchmark`: one dict per condition and recipe. Print it, or let a notebook display it."""

    def __str__(self) -> str:
        texts = (
            [f"{each:.2f}" if isinstance(each, float) else str(each or "") for each in row.values()] for row in self
        )
        lines = [list(self[0]), *texts]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        lines.insert(1, ["-" * width for width in widths])
        return "\n".join(f"| {' | '.join(map(str.ljust, line, widths))} |" for line in lines)

    _repr_markdown_ = __str__


def benchmark(
    model: Any, data: Any, recipes: Sequence[str | Recipe] = (SOURCE, DEFAULT), *, ignore: int | None = None
) -> Table:
    """Measure what recipes gain on labeled images.

    Args:
        model: A plain PyTorch model in eval mode, or a Keras model.
        data: (images, labels), arrays or tensors with the images as the model takes them; or an iterable of such
            batches, such as a DataLoader; or a dict of such data by the name of the condition. Labels are whole
            numbers, (N,), or (N, h, w) for segmentation.
        recipes: Names as in `sita bench --recipes`, or `Recipe`s. The source model always runs.
        ignore: The label of pixels to ignore.

    Returns:
        A `Table`: for each condition (and "mean" over several) and recipe, the accuracy or mean IoU in percent, its
        paired gain over the source model with a 95 % interval, NLL, and the numbers of images and of rows per image.

    Raises:
        SitaError: The model, the data and the recipes do not fit each other.

    Example:
        >>> print(benchmark(model, (images, labels), ["auto", "ops"]))
    """
    if any(module.training for module in getattr(model, "modules", list)()):  # of PyTorch
        raise InputError("model: expected a model in eval mode; received one in training mode. Try: model.eval().")
    conditions = data if isinstance(data, Mapping) else {"images": data}
    prepared: dict[Method, Any] = {}
    parts: Parts = {}
    for condition, images, labels in _read_batches(conditions):
        if not prepared:
            loaded = LoadedModel(type(model).__name__, model, None, task=_task_of(labels))
            prepared = {method: method.prepare(loaded) for method in make_methods(recipes, loaded.task)}
        encoded = np.moveaxis(images, 1, -1) if loaded.framework == "torch" else images
        for method, adapted in prepared.items():
            entry = make_entry(method.predict(loaded, adapted, encoded), labels, ignore)
            parts.setdefault(method.name, {}).setdefault(condition, []).append(entry)
    if not parts or len(parts[SOURCE]) < len(conditions):
        raise InputError("data: expected at least one image under every condition; received none.")
    groups = {condition: [condition] for condition in parts[SOURCE]}
    groups |= {"mean": list(groups)} if len(groups) > 1 else {}
    found, table = compare(parts, groups), Table()
    for group, members in groups.items():
        for method in prepared:
            own = found[method.name]
            gain = own[group]["gain"] or dict.fromkeys(("score", "low", "high"))
            table.append(
                {"condition": group, "recipe": method.name, METRIC[loaded.task]: own[group]["score"]}
                | {"gain": gain["score"], "low": gain["low"], "high": gain["high"], "nll": own[group]["nll"]}
                | {"images": sum(own["conditions"][each]["images"] for each in members), "rows": method.rows}
            )
    return table


def _read_batches(conditions: Mapping[str, Any]) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield the condition, images and labels in numpy, after checking them, in chunks that fit the memory."""
    for condition, data in conditions.items():
        single = isinstance(data, tuple | list) and len(data) == 2 and hasattr(data[0], "shape")
        for batch in [data] if single else data:
            pair = batch if isinstance(batch, tuple | list) and len(batch) == 2 else ((), ())
            images, labels = (np.asarray(each.detach().cpu() if hasattr(each, "detach") else each) for each in pair)
            if images.ndim != 4 or labels.dtype.kind not in "iu" or images.shape[:1] != labels.shape[:1]:
                raise InputError(
                    "data: expected (images, labels), or batches of them: images with 4 axes, and for each a label or "
                    f"a label map of whole numbers; {condition!r} has a {type(batch).__name__} of images "
                    f"{images.shape} and labels {labels.shape}, {labels.dtype}. Try: labels.argmax(-1) if one-hot."
                )
            step = CHUNK[_task_of(labels)]
            for start in range(0, len(images), step):
                yield condition, images[start : start + step], labels[start : start + step].astype(np.int64)


def _task_of(labels: np.ndarray) -> Task:
    return "classification" if labels.ndim == 1 else "segmentation"
