"""`benchmark`: what recipes gain on a model and labeled images in memory, as a small table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sita_adapters.backend import backend_of
from sita_adapters.errors import InputError
from sita_adapters.recipe import DEFAULT, Recipe, Task

from . import metrics
from .methods import SOURCE, PreparedMethod, make_methods, prepare
from .models.loaded import LoadedModel


@dataclass(frozen=True)
class Row:
    """A recipe's result under one condition, or the mean over all ("mean").

    - `score`: accuracy or mean IoU, in percent.
    - `gain`: the score minus the source model's on the same images, with its paired 95 % interval, `low` to `high`.
    - `rows`: the forward rows per image; None for baselines that train.
    """

    condition: str
    recipe: str
    score: float
    gain: float | None
    low: float | None
    high: float | None
    nll: float
    images: int
    rows: int | None


@dataclass(frozen=True)
class Table:
    """The results of `benchmark`. Print it, or let a notebook display it."""

    metric: str
    rows: tuple[Row, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the metric, and every row as a dict."""
        return {"metric": self.metric, "rows": [asdict(row) for row in self.rows]}

    def __str__(self) -> str:
        lines = [["condition", "recipe", f"{self.metric}, %", "gain (95 % interval)", "NLL", "images", "rows"]]
        for row in self.rows:
            gain = "" if row.gain is None else f"{row.gain:+.1f} ({row.low:+.1f} to {row.high:+.1f})"
            numbers = f"{row.score:.1f}", gain, f"{row.nll:.3f}", str(row.images), str(row.rows or "")
            lines.append([row.condition, row.recipe.replace("|", "\\|"), *numbers])
        lines = lines if len({row.condition for row in self.rows}) > 1 else [line[1:] for line in lines]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        lines.insert(1, ["-" * width for width in widths])
        return "\n".join(f"| {' | '.join(map(str.ljust, line, widths))} |" for line in lines)

    _repr_markdown_ = __str__


def benchmark(
    model: Any, data: Any, recipes: Sequence[str | Recipe] = (SOURCE, DEFAULT), *, ignore: int | None = None
) -> Table:
    """Measure what recipes gain on labeled images.

    Args:
        model: A plain PyTorch model in eval mode, a Keras model, or a `LoadedModel`.
        data: (images, labels), arrays or tensors with the images as the model takes them; or an iterable of such
            batches, such as a DataLoader; or a dict of such data by the name of the condition. Labels are whole
            numbers, (N,), or (N, h, w) for segmentation.
        recipes: Names as in `sita bench --recipes`, or `Recipe`s. The source model always runs.
        ignore: The label of pixels that do not count.

    Returns:
        A `Table` with a row per recipe and condition, and the mean over several conditions.

    Raises:
        SitaError: The model, the data and the recipes do not fit each other.

    Example:
        >>> print(benchmark(model, (images, labels), ["auto", "ops"]))
    """
    conditions = data if isinstance(data, Mapping) else {"images": data}
    prepared: list[PreparedMethod] = []
    found: dict[str, dict[str, metrics.Condition]] = {}
    for condition, batches in conditions.items():
        kept: dict[str, list[dict[str, Any]]] = {}
        for images, labels in _read_batches(condition, batches):
            if not prepared:
                loaded = _load(model, "classification" if labels.ndim == 1 else "segmentation")
                prepared = [prepare(method, loaded) for method in make_methods(recipes, loaded.task)]
            encoded = np.moveaxis(images, 1, -1) if loaded.framework == "torch" else images
            for each in prepared:
                entry = metrics.score_images(each, encoded, labels, ignore)
                kept.setdefault(each.method.name, []).append(entry)
        if not kept:
            raise InputError(f"data: {condition!r} has no images. Expected at least one.")
        entries = {name: metrics.join_entries(parts) for name, parts in kept.items()}
        count = len(entries[SOURCE]["nll"])
        weights = metrics.draw_weights(count, seed=count)  # resamples of another number of images are independent
        found[condition] = {name: metrics.summarize_condition(entry, weights) for name, entry in entries.items()}
    groups = {condition: [condition] for condition in found} | ({"mean": list(found)} if len(found) > 1 else {})
    rows = [_make_row(name, each, [found[one] for one in group]) for name, group in groups.items() for each in prepared]
    return Table("accuracy" if loaded.task == "classification" else "mIoU", tuple(rows))


def _make_row(condition: str, prepared: PreparedMethod, found: Sequence[Mapping[str, metrics.Condition]]) -> Row:
    method = prepared.method
    own, source = [each[method.name] for each in found], [each[SOURCE] for each in found]
    mean = metrics.summarize_group(own, source)
    gain = {} if method.name == SOURCE else mean["gain"]
    interval = gain.get("score"), gain.get("low"), gain.get("high")
    images = sum(facts["images"] for _, facts in own)
    return Row(condition, method.name, mean["score"], *interval, mean["nll"], images, method.rows)


def _load(model: Any, task: Task) -> LoadedModel:
    loaded = model if isinstance(model, LoadedModel) else LoadedModel(type(model).__name__, model, None, task=task)
    backend = backend_of(loaded.model)
    if backend.adaptation_of(loaded.model) is not None:
        raise InputError("model: expected a plain model; received an adapted one. Try: sita.unwrap(model).")
    if backend.label == "torch" and any(module.training for module in loaded.model.modules()):
        raise InputError("model: expected a model in eval mode; received one in training mode. Try: model.eval().")
    if loaded.task != task:
        raise InputError(f"labels: expected those of {loaded.task}, the task of {loaded.spec}; received {task}'s.")
    return loaded


def _read_batches(condition: str, data: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield images and labels in numpy, after checking them, in chunks that limit the memory of the predictions."""
    single = isinstance(data, tuple | list) and len(data) == 2 and hasattr(data[0], "shape")
    for batch in [data] if single else data:
        try:
            images, labels = (_as_array(each) for each in batch)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"data: expected (images, labels), batches of them, or a dict of these; {condition!r} contains a "
                f"{type(batch).__name__}, which is no such pair: {error}."
            ) from error
        if images.ndim != 4 or labels.dtype.kind not in "iu" or labels.ndim not in (1, 3) or len(images) != len(labels):
            raise InputError(
                f"data: expected images with 4 axes and integer labels (N,) or (N, h, w); {condition!r} has images "
                f"{images.shape} and labels {labels.shape}, {labels.dtype}. Try: labels.argmax(-1) if they are one-hot."
            )
        step = metrics.CHUNK["classification" if labels.ndim == 1 else "segmentation"]
        for start in range(0, len(images), step):
            yield images[start : start + step], labels[start : start + step].astype(np.int64)


def _as_array(values: Any) -> np.ndarray:
    if hasattr(values, "detach"):  # a torch.Tensor; numpy has no bfloat16
        values = values.detach().cpu()
        values = values.float() if values.is_floating_point() and values.element_size() < 4 else values
    return np.asarray(values)
