"""Prometheus metrics of the service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

__all__ = ["METRICS_TYPE", "Metrics"]

METRICS_TYPE: Final = CONTENT_TYPE_LATEST
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """The numbers of one process; tenants are no label, as their number has no bound."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "planner_requests", "Requests answered", ("method", "route", "status"), registry=self.registry
        )
        self.seconds = Histogram(
            "planner_request_seconds",
            "Seconds until the answer was complete (event streams are not counted)",
            ("method", "route"),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.open = Gauge("planner_open_requests", "Requests being answered", registry=self.registry)
        self.streams = Gauge("planner_event_streams", "Event streams open", registry=self.registry)
        self.uploaded = Counter("planner_uploaded_bytes", "Bytes of models received", registry=self.registry)
        self.problems = Counter("planner_problems", "Problems answered", ("type",), registry=self.registry)
        self.counts = Gauge("planner_store", "Rows of the store, by kind and state", ("what",), registry=self.registry)

    def text(self, counts: Mapping[str, int | float]) -> bytes:
        """The exposition; `counts` are those of the store at this moment."""
        self.counts.clear()
        for what, number in counts.items():
            self.counts.labels(what).set(number)
        return generate_latest(self.registry)
