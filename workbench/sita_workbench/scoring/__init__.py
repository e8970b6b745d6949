"""Large sets of images: an answer for each, as Parquet, by worker processes here or on a cluster.

    score                the run: the list of images, its shards, an engine, the summary        run.py
      prepare_folder       what the output folder holds, and whether it belongs to this run     folder.py
      run_local, run_ray   who scores which shard, and what happens if a worker is lost         local.py, ray_engine.py
        score_shard          a shard's images into a part, the same in every process            shard.py
          Scorer               a model made from its spec, on batches of images                 scorer.py
      finish               failures and figures of all parts                                    summary.py

An engine is handed texts and numbers, never a model: what is lost can be made again anywhere.
"""

from .run import score
from .shard import ScoredImages, score_images, score_shard
from .spec import Job, ModelSpec
from .summary import Scored

__all__ = ["Job", "ModelSpec", "Scored", "ScoredImages", "score", "score_images", "score_shard"]
