"""What Prometheus reads at /metrics, counted over all workers.

Each worker counts in files of its own (`prometheus_client`'s multiprocess mode), in the folder that the parent names in
PROMETHEUS_MULTIPROC_DIR before a worker imports the library. A worker that was killed leaves its files, so that nothing
is forgotten; any worker can read them all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

FOLDER = "PROMETHEUS_MULTIPROC_DIR"

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_PRIORS = tuple(step / 20 for step in range(21))
_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64)


class Metrics:
    """The counters of one worker, and the page of all."""

    def __init__(self, baseline: float | None = None) -> None:
        from prometheus_client import CollectorRegistry, Counter, Histogram

        own = CollectorRegistry()  # of this process alone: the page is made from the files
        self._baseline = baseline
        self._requests = Counter("sita_requests", "Requests to /predict by outcome.", ["outcome"], registry=own)
        self._seconds = Histogram(
            "sita_request_seconds", "From a request's arrival to its answer.", buckets=_SECONDS, registry=own
        )
        self._batches = Histogram("sita_batch_images", "Images per call of the model.", buckets=_BATCHES, registry=own)
        self._priors = Histogram(
            "sita_prior",
            "Chosen prior (lambda) of each image: 1 is like the training images, the lower the stranger.",
            buckets=_PRIORS,
            registry=own,
        )
        self._rows = Counter("sita_rows", "Rows of the network's batch that were run.", registry=own)
        self._compared = Counter(
            "sita_answers_compared", "Answers that were compared with the source model's.", registry=own
        )
        self._changed = Counter(
            "sita_answers_changed", "Answers that are not the source model's; of label maps, shares.", registry=own
        )

    def count_request(self, outcome: str, seconds: float) -> None:
        """Count a request that ended."""
        self._requests.labels(outcome).inc()
        self._seconds.observe(seconds)

    def count_batch(self, images: int) -> None:
        """Count a call of the model."""
        self._batches.observe(images)

    def count_answer(self, prior: float | None, changed: float | None, rows: int) -> None:
        """Count an answer."""
        self._rows.inc(rows)
        if prior is not None:
            self._priors.observe(prior)
        if changed is not None:
            self._compared.inc()
            self._changed.inc(changed)

    def page(self) -> tuple[bytes, str]:
        """Return the page of all workers, and its content type."""
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        registry.register(_AllWorkers(self._baseline))
        return generate_latest(registry), CONTENT_TYPE_LATEST


class _AllWorkers:
    """Collects what all workers counted, and the gauge of shift that follows from it."""

    def __init__(self, baseline: float | None) -> None:
        self._baseline = baseline

    def collect(self) -> Iterator[Any]:
        """Yield every metric."""
        from prometheus_client.core import GaugeMetricFamily
        from prometheus_client.multiprocess import MultiProcessCollector

        totals = {"sita_answers_compared_total": 0.0, "sita_answers_changed_total": 0.0}
        workers = MultiProcessCollector(None, os.environ[FOLDER])  # type: ignore[no-untyped-call]
        for metric in workers.collect():  # type: ignore[no-untyped-call]
            for sample in metric.samples:
                if sample.name in totals:
                    totals[sample.name] += sample.value
            yield metric
        compared, changed = totals.values()
        if compared:
            yield GaugeMetricFamily(
                "sita_changed_share",
                "Share of answers that adaptation changed, since the start: the gauge of shift.",
                value=changed / compared,
            )
        if self._baseline is not None:
            yield GaugeMetricFamily(
                "sita_changed_share_baseline", "That share on clean images, by sita bench.", value=self._baseline
            )
