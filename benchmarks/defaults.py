"""What should the defaults be? Puts recipes together from the candidates that `candidates.py` kept, and scores them.

Prints accuracy against the rows that an image costs, with 95 % intervals of the difference from today's default
(the same images, resampled together over all corruptions).
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sita_adapters.recipe import PAPER_PRIORS
from sita_workbench.metrics import draw_weights

_TODAY = ("ops", 2, tuple(round(p, 3) for p in PAPER_PRIORS), 3, "vote")


class Candidates:
    """What one network said of every image under every pair of views and prior."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with np.load(folder / "labels.npz") as stored:
            self.labels, self.kinds = stored["labels"], len(stored["kinds"])
        self.views = sorted({int(path.stem[1 : path.stem.index("_")]) for path in folder.glob("n[0-9]_*.npz")})
        self._logits: dict[tuple[int, float], np.ndarray] = {}

    def priors(self, views: int) -> list[float]:
        """The priors that were run with so many views; 1 needs none."""
        found = {float(path.stem.partition("_")[2]) for path in self.folder.glob(f"n{views}_*.npz")}
        return sorted(found | {1.0})

    def log_p(self, views: int, prior: float) -> np.ndarray:
        """Log-probabilities (images, classes)."""
        key = (0 if prior == 1 else views, round(prior, 3))
        if key not in self._logits:
            with np.load(self.folder / f"n{key[0]}_{key[1]:.3f}.npz") as stored:
                z = stored["logits"].astype(np.float64)
            z -= z.max(axis=1, keepdims=True)
            self._logits[key] = (z - np.log(np.exp(z).sum(axis=1, keepdims=True))).astype(np.float32)
        return self._logits[key]

    def shared(self, views: int, lowest: float) -> tuple[np.ndarray, np.ndarray, list[float]] | None:
        """Labels and entropies (images, priors) of the candidates whose views run once, under the lowest prior."""
        path = self.folder / f"shared_n{views}_{lowest:.3f}.npz"
        if not path.exists():
            return None
        with np.load(path) as stored:
            return stored["labels"], stored["entropies"], [round(float(p), 3) for p in stored["priors"]]


def entropy(log_p: np.ndarray) -> np.ndarray:
    return -(np.exp(log_p) * log_p).sum(axis=-1)


def decide(labels: np.ndarray, entropies: np.ndarray, k: int) -> np.ndarray:
    """Majority among the k most certain; ties to the tied label of the most certain voter."""
    order = np.argsort(entropies, axis=1, kind="stable")[:, :k]
    voters = np.take_along_axis(labels, order, axis=1)
    votes = (voters[:, :, None] == voters[:, None, :]).sum(axis=2)
    return voters[np.arange(len(voters)), votes.argmax(axis=1)]  # the first of the most: the most certain


def spread(priors: Sequence[float], lowest: float, count: int) -> tuple[float, ...]:
    """`count` of these priors, about evenly from the lowest to 1."""
    inside = np.array([p for p in priors if p >= lowest - 1e-6])
    wanted = np.linspace(lowest, 1, count)
    return tuple(dict.fromkeys(float(inside[np.abs(inside - w).argmin()]) for w in wanted))


def answers(found: Candidates) -> dict[tuple, tuple[int, np.ndarray]]:
    """Return rows and right answers (images,) of every recipe that can be put together."""
    source = _right(found, found.log_p(0, 1).argmax(1))
    made: dict[tuple, tuple[int, np.ndarray]] = {("source", 0, (1.0,), 1, "vote"): (1, source)}
    for views in found.views:
        priors = found.priors(views)
        for prior in priors[:-1]:
            made["augbn" if views else "bn", views, (prior,), 1, "vote"] = (
                1 + views,
                _right(found, found.log_p(views, prior).argmax(1)),
            )
        sets = {spread(priors, low, count) for low in (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8) if low >= priors[0] - 1e-6
                for count in (2, 3, 4, 5, 6, 8, 11, 15)}  # fmt: skip
        sets.add(tuple(round(p, 3) for p in PAPER_PRIORS))
        for lambdas in sorted(sets):
            log_p = np.stack([found.log_p(views, p) for p in lambdas], axis=1)
            uncertain, labels = entropy(log_p), log_p.argmax(axis=2)
            rows = (len(lambdas) - 1) * (1 + views) + 1
            order = np.argsort(uncertain, axis=1, kind="stable")
            for k in [k for k in (1, 2, 3, 4, 5, 8) if k <= len(lambdas)]:
                made["ops", views, lambdas, k, "vote"] = (rows, _right(found, decide(labels, uncertain, k)))
                kept = np.take_along_axis(log_p, order[:, :k, None], axis=1)
                made["ops", views, lambdas, k, "mean"] = (rows, _right(found, np.exp(kept).mean(axis=1).argmax(1)))
        for lowest in (0.3, 0.4, 0.5):
            kept_shared = found.shared(views, lowest)
            if kept_shared is None:
                continue
            labels, uncertain, priors = kept_shared
            for count in (2, 3, 4, 5, 6, 8, 11, 15):
                lambdas = spread(priors, lowest, count)
                if lowest == 0.5 and count == 8:
                    lambdas = tuple(round(p, 3) for p in PAPER_PRIORS)
                places = [priors.index(p) for p in lambdas]
                for k in [k for k in (1, 2, 3, 4, 5, 8) if k <= len(lambdas)]:
                    right = _right(found, decide(labels[:, places], uncertain[:, places], k))
                    made["ops_shared", views, lambdas, k, "vote"] = (len(lambdas) + views, right)
    return made


def _right(found: Candidates, said: np.ndarray) -> np.ndarray:
    return said == found.labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="+")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--top", type=int, default=12, help="how many of the best to print for each kind")
    options = parser.parse_args()
    tables = {}
    for folder in options.folder:
        found = Candidates(folder)
        made = answers(found)
        weights = draw_weights(len(found.labels) // found.kinds)
        today = made[_TODAY][1]

        def interval(right: np.ndarray, today: np.ndarray = today, weights: np.ndarray = weights) -> tuple:
            per_image = (right.astype(float) - today).reshape(-1, weights.shape[1]).mean(axis=0)
            low, high = np.percentile(100 * weights @ per_image, [2.5, 97.5])
            return float(100 * per_image.mean()), float(low), float(high)

        table = [
            {"recipe": key[0], "views": key[1], "priors": key[2], "top_k": key[3], "combine": key[4], "rows": rows,
             "accuracy": 100 * float(right.mean()), "against_default": interval(right)}
            for key, (rows, right) in made.items()
        ]  # fmt: skip
        tables[folder.name] = table
        print(f"\n{folder.name}: {len(found.labels)} images, source {table[0]['accuracy']:.2f}, "
              f"today's default {100 * today.mean():.2f}")  # fmt: skip
        best_so_far = -1.0
        for line in sorted(table, key=lambda line: (line["rows"], -line["accuracy"])):
            if line["accuracy"] > best_so_far:
                best_so_far = line["accuracy"]
                _print(line)
        for recipe, combine in itertools.product(("augbn", "ops", "ops_shared"), ("vote", "mean")):
            lines = [line for line in table if line["recipe"] == recipe and line["combine"] == combine]
            print(f"-- best {recipe}, {combine}")
            for line in sorted(lines, key=lambda line: -line["accuracy"])[: options.top]:
                _print(line)
    if options.json:
        options.json.write_text(json.dumps(tables))


def _print(line: dict) -> None:
    gain, low, high = line["against_default"]
    priors = f"{len(line['priors'])} from {line['priors'][0]:g}"
    print(f"{line['rows']:4} rows  {line['accuracy']:6.2f}  {gain:+5.2f} ({low:+5.2f} to {high:+5.2f})  "
          f"{line['recipe']:<10} n={line['views']} {priors:<14} k={line['top_k']} {line['combine']}")  # fmt: skip


if __name__ == "__main__":
    main()
