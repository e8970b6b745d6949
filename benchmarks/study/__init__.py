"""The study that decides the defaults: recipes × networks × (clean, severities 1, 3 and 5 of 15 kinds of corruption).

    python -m benchmarks.study confirm --data DATA --cifar CIFAR     # everything; goes on where it stopped
    python -m benchmarks.study confirm --data DATA --cifar CIFAR --networks resnet20,lite0
    python -m benchmarks.study confirm --show                        # docs/study.md and its figures from what is stored

Rules were chosen on one half of the pictures and on three of the networks ("choose"), and are confirmed on the other
half and on all networks ("confirm"), once. Each part of a network is a run of `sita bench` in a folder of its own.
"""
