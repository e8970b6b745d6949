"""Detectors: what each returns, what `auto` does with it, and whether that is right.

    python -m benchmarks.detectors          # writes docs/detectors.md; five minutes
    python -m benchmarks.detectors yolo     # prints the rows of those whose names contain "yolo"

Each model has random weights, and statistics measured on random images. The reference runs the source model twice per
image, in float64: unchanged, and with the statistics that the rule of `auto` gives every normalization. It decides by
itself which of the two an image's outputs come from.
"""
