"""Natural shifts: networks on images of another kind or origin than their training images.

    python -m benchmarks.natural --data DATA                       # resumes where it stopped
    python -m benchmarks.natural --data DATA --networks resnet50   # some networks
    python -m benchmarks.natural --data DATA --many-rows           # `augbn` and `ops` as well: most of the time
    python -m benchmarks.natural --show                            # the tables from what is stored

Renditions (ImageNet networks), photographs of the retina from another camera (segmentation), and faces (Keras) and
digits from other collections. Without `--many-rows`, their stored results are kept. The folder `--out` keeps
what every recipe predicted for every image, and what the rows measured: one file per network.
"""
