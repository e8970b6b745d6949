"""The zoo: every architecture family of five model libraries that has BatchNorm, checked against a reference.

    python -m benchmarks.zoo                          # all of it, in two processes; resumes where it stopped
    python -m benchmarks.zoo --only timm/levit        # what matches, again
    python -m benchmarks.zoo --find-timm              # choose timm's members again, after an upgrade of timm

Of each family the smallest member is built with seeded weights and checked (torch_checks.py, keras_checks.py).
The verdicts are written to docs/zoo.md.
"""
