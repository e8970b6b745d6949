"""The study behind the default: recipes × networks × (clean, severities 1, 3 and 5 of 15 kinds, 4 hold-out kinds).

    python -m benchmarks.study --data DATA --cifar CIFAR                      # everything; resumes where it stopped
    python -m benchmarks.study --data DATA --cifar CIFAR --networks resnet20 lite0
    python -m benchmarks.study --show                                         # the tables from what is stored

Rules are chosen on one half of the images, and on some of the networks; the study runs on the other half. Each row runs
once per image and serves all recipes that use it; `ops` runs on fewer images. Two processes may run different networks
at the same time.
"""
