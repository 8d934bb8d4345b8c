"""A trace goes from whoever asks through the service to the worker and the phases of its child."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from planner.api import spans as spans_module
from planner.api.jobs.worker import Worker
from planner.api.spans import Spans, parent_now, spans_of
from tests.service.http import serving
from tests.service.working import SMALL, until

MLP = Path(__file__).parents[2] / "sample_graphs" / "mlp.onnx"
TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = f"00-{TRACE}-b7ad6b7169203331-01"
WANTED = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}


class Seen:
    """Spans in memory."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.spans = Spans(provider)

    def named(self, name: str) -> ReadableSpan:
        (found,) = [s for s in self.exporter.get_finished_spans() if s.name == name]
        return found


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def test_nothing_is_imported_where_no_spans_are_wanted() -> None:
    """FastAPI imports the interface by itself where that is installed; what costs something are SDK and exporter."""
    code = (
        "import sys, planner.api.jobs.command; from planner.api.spans import spans_of;"
        " print(spans_of('x', {}), [m for m in sys.modules if m.startswith('opentelemetry')]); import planner.api.app;"
        " print([m for m in sys.modules if m.startswith(('opentelemetry.sdk', 'opentelemetry.exporter'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n") == ["None []", "[]", ""]


def test_they_are_wanted_where_the_environment_says_where_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans_module, "_exporter", InMemorySpanExporter)
    for given, name in ((WANTED, "planner-api"), (WANTED | {"OTEL_SERVICE_NAME": "plans"}, "plans")):
        found = spans_of("planner-api", given)
        assert found is not None
        assert found._provider.resource.attributes["service.name"] == name
        found.close()
    assert spans_of("planner-api", WANTED | {"OTEL_SDK_DISABLED": "true"}) is None


def test_the_extra_that_is_missing_is_said_and_the_service_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    assert spans_of("planner-api", WANTED) is None
    assert "pip install '.[otel]'` in the repository" in caplog.records[0].fields["why"]  # type: ignore[attr-defined]


def test_a_trace_goes_from_the_caller_to_the_phases_of_the_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Seen()
    monkeypatch.setattr("planner.api.app.spans_of", lambda component: seen.spans)
    with serving(tmp_path) as service:
        first = service.post(MLP.read_bytes(), "devices=2", traceparent=CALLER)
        assert first.status_code == 202
        joined = service.post(MLP.read_bytes(), "devices=2")  # a trace of its own
        service.client.get("/healthz")
        worker = Worker(service.store, 1, SMALL, spans=seen.spans)
        with worker.place():
            try:
                until(worker, lambda: any(s.name == "task plan" for s in seen.exporter.get_finished_spans()))
            finally:
                worker._leave()
        jobs = [r.json()["id"] for r in (first, joined)]
        states = [service.client.get(f"/v1/jobs/{job}").json()["status"] for job in jobs]
    assert states == ["succeeded", "succeeded"]
    posts = [s for s in seen.exporter.get_finished_spans() if s.name == "POST /v1/plans"]
    assert [f"{s.context.trace_id:032x}" == TRACE for s in posts] == [True, False]
    assert parent_of(posts[0]) == int(CALLER.split("-")[2], 16)
    assert posts[0].attributes is not None
    assert posts[0].attributes["http.response.status_code"] == 202
    task = seen.named("task plan")
    assert f"{task.context.trace_id:032x}" == TRACE
    assert parent_of(task) == posts[0].context.span_id
    assert [link.context.span_id for link in task.links] == [posts[1].context.span_id]
    assert task.attributes is not None
    assert tuple(task.attributes["planner.jobs"]) == tuple(jobs)  # type: ignore[arg-type]
    assert task.attributes["planner.outcome"] == "result"
    phases = [s for s in seen.exporter.get_finished_spans() if s.name.startswith("child ")]
    assert {"child begins", "child search"} <= {s.name for s in phases}
    assert all(parent_of(s) == task.context.span_id for s in phases)
    assert parent_of(seen.named("queued")) == posts[0].context.span_id
    assert not any("healthz" in s.name for s in seen.exporter.get_finished_spans())
    assert parent_now() is None


def test_where_no_spans_are_wanted_the_trace_of_a_caller_leaves_nothing(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        job = service.post(traceparent=CALLER).json()["id"]
        assert service.store.traces.of(service.store.job("local", job).task) == []


def test_a_trace_goes_with_its_job(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        job = service.store.job("local", service.post().json()["id"])
        service.store.traces.add([job.id], CALLER)
        service.client.post(f"/v1/jobs/{job.id}:cancel")
        service.store.forget_job("local", job.id)
        assert service.store.traces.of(job.task) == []
