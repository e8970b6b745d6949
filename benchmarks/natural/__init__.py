"""Natural shifts: networks on images that differ from their training images, but that nobody corrupted.

    python -m benchmarks.natural --data DATA                       # everything; resumes where it stopped
    python -m benchmarks.natural --data DATA --networks resnet50   # some networks
    python -m benchmarks.natural --show                            # the pages from what is stored

Renditions (ImageNet networks), photographs of the retina from another camera (segmentation) and faces from another
collection (Keras). The cheap recipes run first, on every network, and `ops` last. What is kept of every image is in
the folder `--out`, one file per network.
"""
