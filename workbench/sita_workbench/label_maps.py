"""Label maps as pictures: PNG files whose values are the labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .files import write_atomically


def write_label_map(path: Path, labels: np.ndarray, classes: int) -> None:
    """Write a label map (h, w): in 8 bits with a palette, or in 16 bits where there are more than 256 classes."""
    from PIL import Image

    picture = Image.fromarray(labels.astype(np.uint8 if classes <= 256 else np.uint16))
    if classes <= 256:
        picture.putpalette(palette().tobytes())
    with write_atomically(path) as temporary:
        picture.save(temporary)


def palette() -> np.ndarray:
    """Return Pascal VOC's colours of 256 labels, (256, 3): a label's bits, three at a time, from the top bit on."""
    labels = np.arange(256)
    colours = np.zeros((256, 3), np.uint8)
    for bit in range(8):
        for channel in range(3):
            colours[:, channel] |= ((labels >> (3 * bit + channel) & 1) << (7 - bit)).astype(np.uint8)
    return colours
