"""Label a large set of images, as Parquet, with worker processes on this machine or on a Ray cluster.

    score                  the run: splits the list of images into shards, and follows the workers run.py
      open_folder            the output folder: its contents, and whether it belongs to this run   folder.py
      run_local, run_ray     the workers; the shard of a lost worker runs again               workers.py, cluster.py
        score_shard            writes the part of a shard, the same in every process               shard.py

Workers receive text and numbers, never a model: a lost worker can be replaced anywhere.
"""

from ..processes import use_threads
from .run import Scored, score
from .shard import Report, score_images
from .spec import ModelSpec

__all__ = ["ModelSpec", "Report", "Scored", "score", "score_images", "use_threads"]
