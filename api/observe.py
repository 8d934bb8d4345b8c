"""Prometheus metrics of the service."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

__all__ = ["METRICS_TYPE", "Metrics"]

METRICS_TYPE: Final = CONTENT_TYPE_LATEST
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
# Totals of the store: name, text, label, and what they are called there.
_TOTALS: Final = (
    ("planner_lost_leases", "Leases of workers that died or were silent for too long", "task", "lost-leases"),
    ("planner_task_restarts", "Tasks that began to wait again", "cause", "restarts"),
    ("planner_child_deaths", "Children that ended without an answer", "how", "deaths"),
    ("planner_task_failures", "Tasks that failed", "type", "failures"),
    ("planner_purged", "Rows and blobs that were purged, bytes of these blobs, and runs", "what", "purged"),
)


class _Totals(Collector):
    """Counters that all processes on the store share: each shows the same."""

    def __init__(self) -> None:
        self.found: Mapping[str, Mapping[str, int]] = {}

    def collect(self) -> Iterator[CounterMetricFamily]:
        for name, text, label, what in _TOTALS:
            family = CounterMetricFamily(name, text, labels=(label,))
            for which, n in self.found.get(what, {}).items():
                family.add_metric((which,), n)
            yield family


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
        self.worker_ends = Counter(
            "planner_worker_ends",
            "Workers of this server that ended and were begun again",
            ("why",),
            registry=self.registry,
        )
        self._totals = _Totals()
        self.registry.register(self._totals)

    def text(self, counts: Mapping[str, int | float], totals: Mapping[str, Mapping[str, int]]) -> bytes:
        """The exposition; `counts` are those of the store at this moment, `totals` those since it was made."""
        self._totals.found = totals
        self.counts.clear()
        for what, number in counts.items():
            self.counts.labels(what).set(number)
        return generate_latest(self.registry)
