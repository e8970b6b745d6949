"""Score images in Spark: `mapInPandas` over a table of paths.

    pip install 'sita-adapters[torch,score]' pyspark      # and Java
    python examples/spark_scoring.py MODEL WEIGHTS PATHS.parquet OUT
    python examples/spark_scoring.py timm:resnet50 pretrained paths.parquet scored

Spark splits the table, schedules the tasks and writes the rows; each of its Python workers loads the model once.
`sita score` needs no Spark: this is for you if you have a Spark cluster.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sita_workbench import ModelSpec
from sita_workbench.scoring import score_images, use_threads

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = """path string, label int, class_name string, probability double, entropy double, prior double,
source_label int, source_probability double, reason string"""


class Score:
    """What Spark sends to its workers: a spec of some hundred bytes, not a model."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec.resolved()

    def __call__(self, tables: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """Turn tables of paths into tables of answers; an image that cannot be read has a reason and no label."""
        import pandas as pd

        use_threads(1)  # Spark runs as many tasks on a machine as it has cores
        names = [column.split()[0] for column in COLUMNS.split(",")]
        for table in tables:
            yield pd.DataFrame(score_images(self._spec, table["path"].tolist()), columns=names)


def main() -> None:
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        sys.exit("This example needs pyspark, and Java. Try: pip install pyspark")
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    model, weights, paths, out = sys.argv[1:]
    session = SparkSession.builder.appName("sita").getOrCreate()
    table = session.read.parquet(paths).select("path")
    table.mapInPandas(Score(ModelSpec(model, weights)), schema=COLUMNS).write.parquet(out)
    answers = session.read.parquet(out)
    answers.where("label != source_label").select("path", "class_name", "prior").show(10, truncate=False)
    session.stop()


if __name__ == "__main__":
    main()
