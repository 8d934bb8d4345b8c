"""What is seen of the service from outside: one JSON line a request, and Prometheus metrics."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
import uuid
from collections.abc import Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

__all__ = ["METRICS_TYPE", "JsonLines", "Metrics", "log_to", "request_id_of"]

METRICS_TYPE: Final = CONTENT_TYPE_LATEST
_SANE_ID = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


def request_id_of(given: bytes | None) -> str:
    """The caller's id where it is one that may stand in logs and headers, else a new one."""
    if given is not None and _SANE_ID.fullmatch(given):
        return given.decode("ascii")
    return uuid.uuid4().hex


class JsonLines(logging.Formatter):
    """One JSON object a line; `extra={"fields": {...}}` adds members."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields = getattr(record, "fields", None)
        if isinstance(fields, Mapping):
            line |= fields
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_to(stream: Any = None, level: int = logging.INFO) -> None:
    """All logs of this process as JSON lines."""
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)


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
