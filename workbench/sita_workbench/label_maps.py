"""Label maps as PNG images whose values are the labels."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from .files import write_atomically


def encode_label_map(labels: np.ndarray, classes: int) -> bytes:
    """Return a label map (h, w) as a PNG: 8 bits with a palette, or 16 bits if there are more than 256 classes."""
    from PIL import Image

    image, buffer = Image.fromarray(labels.astype(np.uint8 if classes <= 256 else np.uint16)), io.BytesIO()
    if classes <= 256:
        image.putpalette(palette().tobytes())
    image.save(buffer, "PNG")
    return buffer.getvalue()


def write_label_map(path: Path, labels: np.ndarray, classes: int) -> None:
    """Write a label map (h, w) to a PNG file."""
    with write_atomically(path) as temporary:
        temporary.write_bytes(encode_label_map(labels, classes))


def palette() -> np.ndarray:
    """Return Pascal VOC's colors of 256 labels, (256, 3): a label's bits, three at a time, from the top bit on."""
    labels = np.arange(256)
    colors = np.zeros((256, 3), np.uint8)
    for bit in range(8):
        for channel in range(3):
            colors[:, channel] |= ((labels >> (3 * bit + channel) & 1) << (7 - bit)).astype(np.uint8)
    return colors
