"""Train the small segmentation network on CamVid, or find it trained, and print how well it labels clean pictures.

    python benchmarks/train_camvid.py DATA --out weights

DATA is the folder that holds camvid/train, camvid/trainannot, camvid/test and camvid/testannot. Training takes about a
quarter of an hour on one core. Settings are to be chosen by the validation pictures only.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from sita_adapters.errors import SitaError
from sita_workbench.console import ConsoleProgress
from sita_workbench.networks import camvid, camvid_torch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, metavar="DATA", help="the folder that holds camvid/")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where the weights are kept (else the user's cache)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    progress = ConsoleProgress(Console(highlight=False))
    try:
        pairs = camvid.find_pairs(options.data, "train")
        held_out = {split: camvid.load_split(options.data, split) for split in ("validation", "test")}
        training = camvid_torch.Training(seed=options.seed)
        network = camvid_torch.trained_network(pairs, training, options.out, progress)
    except (SitaError, OSError) as error:
        sys.exit(f"train_camvid: {error}")
    progress.say(f"Parameters: {sum(p.numel() for p in network.parameters()):,}")
    ious = {}
    for split, (images, labels) in held_out.items():
        with progress.track(f"One {split} picture at a time", len(images)) as advance:
            confusions = camvid.count_confusions(camvid_torch.predict(network, images, advance), labels)
        ious[split] = camvid.class_ious(confusions.sum(0))
    print(f"{'IoU, clean':<12}" + "".join(f"{split:>12}" for split in ious))
    for index, name in enumerate(camvid.CLASSES):
        print(f"{name:<12}" + "".join(f"{values[index]:>12.3f}" for values in ious.values()))
    print(f"{'mean':<12}" + "".join(f"{np.nanmean(values):>12.3f}" for values in ious.values()))


if __name__ == "__main__":
    main()
