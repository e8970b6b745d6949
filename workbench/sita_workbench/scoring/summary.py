"""What a run found: read from the parts, of this run and of earlier ones alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..files import write_atomically, write_json
from .folder import OutputFolder, leftovers
from .shard import failed_schema

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_BARS = 12
_WIDTH = 30


@dataclass(frozen=True)
class Scored:
    """A set of images that were scored: how many have a row, and how many failed.

    - `changed`: the share whose label differs from the source model's; of label maps, of their pixels. None where it is
      not known what the source model says.
    - `priors`: how many images have which λ, of the most certain candidate; rounded where there are many values.
    - `reasons`: the first few reasons of failures.
    """

    output: Path
    rows: int
    failed: int
    changed: float | None
    priors: dict[float, int]
    reasons: tuple[str, ...] = ()

    def read(self) -> pa.Table:
        """Return all rows, in the order of the list; `output / "parts"` is a Parquet dataset for any reader."""
        import pyarrow.dataset as ds

        return ds.dataset(self.output / "parts", format="parquet").to_table()

    def read_failed(self) -> pa.Table:
        """Return the paths that failed, each with the reason."""
        import pyarrow.parquet as pq

        return pq.read_table(self.output / "failed.parquet")

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as JSON."""
        return {
            "rows": self.rows,
            "failed": self.failed,
            "changed": self.changed,
            "priors": [{"prior": prior, "images": count} for prior, count in self.priors.items()],
        }

    def lines(self) -> Iterator[str]:
        """Yield the summary as text."""
        yield f"{self.rows:,} images have an answer, {self.failed:,} failed."
        if self.changed is not None:
            yield f"{100 * self.changed:.1f} % of the labels differ from the source model's."
        if self.priors:
            yield "λ of the most certain candidate (1: like the training images; the lower, the stranger):"
            most = max(self.priors.values())
            for prior, count in self.priors.items():
                bar = "█" * round(_WIDTH * count / most)
                yield f"  {prior:5.3f}  {100 * count / self.rows:5.1f} %  {bar}"
        for reason in self.reasons:
            yield f"Failed: {reason}"


def finish(folder: OutputFolder, shards: int) -> Scored:
    """Gather the failures, count the rows, and remove what killed workers left."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for path in leftovers(folder):
        path.unlink(missing_ok=True)
    numbers = range(shards)
    failed = [pq.read_table(path) for number in numbers if (path := folder.failed_part(number)).exists()]
    table = pa.concat_tables([failed_schema().empty_table(), *failed]).replace_schema_metadata()
    with write_atomically(folder.path / "failed.parquet") as temporary:
        pq.write_table(table, temporary)
    counts = [_count(folder.part(number)) for number in numbers]
    rows, compared = sum(count.rows for count in counts), sum(count.compared for count in counts)
    changed = sum(count.changed for count in counts) / compared if compared else None
    priors = sum((count.priors for count in counts), Counter[float]())
    reasons = tuple(table.column("reason").slice(0, 3).to_pylist())
    scored = Scored(folder.path, rows, len(table), changed, _round(priors), reasons)
    write_json(folder.path / "summary.json", scored.to_dict())
    return scored


@dataclass(frozen=True)
class _Count:
    """The rows of a part, how many were compared with the source model and changed, and how often each λ is there."""

    rows: int
    compared: int
    changed: float
    priors: Counter[float]


def _count(part: Path) -> _Count:
    import pyarrow.parquet as pq

    with pq.ParquetFile(part) as file:
        maps = "changed" in file.schema_arrow.names
        table = file.read(columns=["prior", "label", "source_label", *(["changed"] if maps else [])])
    compared = table.filter(table.column("source_label").is_valid())
    if maps:
        changed = compared.column("changed").to_numpy().sum()
    else:
        changed = (compared.column("label").to_numpy() != compared.column("source_label").to_numpy()).sum()
    priors = table.column("prior").drop_null().to_numpy()
    return _Count(len(table), len(compared), float(changed), Counter(np.round(priors, 3).tolist()))


def _round(priors: Counter[float]) -> dict[float, int]:
    """Return the counts in order; of more values than fit on a screen, by twentieths."""
    if len(priors) > _MOST_BARS:
        merged = Counter[float]()
        for prior, count in priors.items():
            merged[round(20 * prior) / 20] += count
        priors = merged
    return dict(sorted(priors.items()))
