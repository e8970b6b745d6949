"""Where rounding could change the result of a vote: in another framework, file or machine."""

from __future__ import annotations

import numpy as np

NEAR = 1e-4
"""Entropies closer than this, in nats, may change order by rounding."""


def near_ties(entropies: np.ndarray, kept: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return where rounding could change the result of a vote, for numpy arrays (N, P, …): (N, …).

    The last candidate kept is as confident as the first that is not; or two labels have equally many votes, and their
    most confident candidates are equally confident.
    """
    outside = np.where(kept, np.inf, entropies).min(axis=1)
    inside = np.where(kept, entropies, -np.inf).max(axis=1)
    votes = ((labels[:, :, None] == labels[:, None]) & kept[:, None]).sum(axis=2)
    leads = kept & (votes == np.where(kept, votes, 0).max(axis=1, keepdims=True))
    confident = np.where(leads, entropies, np.inf)
    first = np.take_along_axis(labels, confident.argmin(axis=1, keepdims=True), axis=1)
    rivals = np.where(leads & (labels != first), entropies, np.inf).min(axis=1)
    with np.errstate(invalid="ignore"):
        return np.asarray((outside - inside < NEAR) | (rivals - confident.min(axis=1) < NEAR))
