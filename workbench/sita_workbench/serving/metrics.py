"""The metrics for Prometheus at /metrics, counted over all workers.

Each worker counts in its own files (`prometheus_client`'s multiprocess mode), in the folder that
PROMETHEUS_MULTIPROC_DIR names before the library is imported. The files of a worker that was killed remain, and any
worker can read them all.
"""

from __future__ import annotations

from fastapi import Response

FOLDER = "PROMETHEUS_MULTIPROC_DIR"

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_PRIORS = tuple(step / 20 for step in range(21))
_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64)


class Metrics:
    """The counters of one worker, and the page of all."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Histogram

        own = CollectorRegistry()  # of this process alone: the page is made from the files
        self._requests = Counter("sita_requests", "Requests to /predict by outcome.", ["outcome"], registry=own)
        about = "Time from a request's arrival to its answer."
        self._seconds = Histogram("sita_request_seconds", about, buckets=_SECONDS, registry=own)
        self.batches = Histogram("sita_batch_images", "Images per call of the model.", buckets=_BATCHES, registry=own)
        about = "Prior (lambda) of the most confident candidate: near 1, an image is similar to the training images."
        self._priors = Histogram("sita_prior", about, buckets=_PRIORS, registry=own)
        about = "Answers that were compared with the source model's."
        self._compared = Counter("sita_answers_compared", about, registry=own)
        about = "Answers that differ from the source model's; for a label map, the share of its pixels."
        self._changed = Counter("sita_answers_changed", about, registry=own)

    def count_request(self, outcome: str, seconds: float) -> None:
        """Count a request that ended."""
        self._requests.labels(outcome).inc()
        self._seconds.observe(seconds)

    def count_answer(self, prior: float | None, changed: float | None) -> None:
        """Count an answer."""
        if prior is not None:
            self._priors.observe(prior)
        if changed is not None:
            self._compared.inc()
            self._changed.inc(changed)

    def page(self) -> Response:
        """Return the page of all workers."""
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
        from prometheus_client.multiprocess import MultiProcessCollector

        every = CollectorRegistry()
        MultiProcessCollector(every)  # type: ignore[no-untyped-call]
        return Response(generate_latest(every), media_type=CONTENT_TYPE_LATEST)
