"""The two settings of the paper's studies: a batch that shares its statistics, and views drawn for every image."""

from __future__ import annotations

PRIOR = 0.6
