"""Spans of requests and tasks, sent by OTLP where the environment says where to.

Off unless `OTEL_EXPORTER_OTLP_ENDPOINT` (or `…_TRACES_ENDPOINT`) is set: nothing is imported then.  Children, which
read strangers' models, have no sockets and send nothing: their worker sends what it heard of their phases.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from planner.version import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span, Tracer

__all__ = ["Spans", "parent_now", "spans_of"]

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_log = logging.getLogger("planner.service")
_now: ContextVar[str | None] = ContextVar("traceparent", default=None)


def parent_now() -> str | None:
    """The context of the request that is being answered, as `traceparent` has it; None where nothing is traced."""
    return _now.get()


def spans_of(component: str, environment: Mapping[str, str] | None = None) -> Spans | None:
    """None where no spans are wanted, or they cannot be made, which is said."""
    given = os.environ if environment is None else environment
    if not any(given.get(name) for name in _ENDPOINTS) or given.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        exporter = _exporter()
    except ImportError as e:
        why = f"{e.name} is missing; install it with `pip install '.[otel]'` in the repository"
        _log.warning("no spans are sent", extra={"fields": {"why": why}})
        return None
    names = {"service.name": given.get("OTEL_SERVICE_NAME") or component, "service.version": __version__}
    provider = TracerProvider(resource=Resource.create(names))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Spans(provider)


def _exporter() -> SpanExporter:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


class Spans:
    """`provider`: a TracerProvider of the SDK."""

    def __init__(self, provider: Any) -> None:
        self._provider = provider
        self._tracer: Tracer = provider.get_tracer("planner", __version__)

    def close(self) -> None:
        """Sends what waits."""
        self._provider.shutdown()

    @contextmanager
    def request(self, method: str, headers: Mapping[bytes, bytes]) -> Iterator[Span]:
        """One request, in the trace of the caller where it has one."""
        from opentelemetry.trace import SpanKind, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        w3c = TraceContextTextMapPropagator()
        names = ("traceparent", "tracestate")
        context = w3c.extract({n: headers[n.encode()].decode("latin-1") for n in names if n.encode() in headers})
        span = self._tracer.start_span(method, context=context, kind=SpanKind.SERVER)
        carrier: dict[str, str] = {}
        w3c.inject(carrier, set_span_in_context(span))
        before = _now.set(carrier.get("traceparent"))
        try:
            yield span
        finally:
            _now.reset(before)
            span.end()

    def task(
        self,
        kind: str,
        parents: Sequence[tuple[str, float]],
        begun: float,
        ended: float,
        marks: Sequence[tuple[str, float]],
        attributes: Mapping[str, Any],
        failed: bool,
    ) -> None:
        """One attempt at a task, from `begun` to `ended`, and the phases of its child, which begin at `marks`.

        `parents`: contexts of the requests for it, and when each came.  The span is in the trace of the
        first, linked to those of the others.
        """
        from opentelemetry.trace import Link, SpanKind, Status, StatusCode, get_current_span, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        contexts = [TraceContextTextMapPropagator().extract({"traceparent": parent}) for parent, _ in parents]
        first = contexts[0] if contexts else None
        links = [Link(get_current_span(context).get_span_context()) for context in contexts[1:]]
        if parents and parents[0][1] < begun:
            waited = self._tracer.start_span("queued", context=first, start_time=_ns(parents[0][1]))
            waited.end(_ns(begun))
        span = self._tracer.start_span(
            f"task {kind}",
            context=first,
            kind=SpanKind.CONSUMER,
            links=links,
            start_time=_ns(begun),
            attributes=dict(attributes),
        )
        inside = set_span_in_context(span)
        ends = [at for _, at in marks[1:]] + [ended]
        for (name, at), end in zip(marks, ends, strict=True):
            phase = self._tracer.start_span(f"child {name}", context=inside, start_time=_ns(at))
            phase.end(_ns(max(at, end)))
        if failed:
            span.set_status(Status(StatusCode.ERROR))
        span.end(_ns(ended))


def _ns(moment: float) -> int:
    return int(moment * 1e9)
