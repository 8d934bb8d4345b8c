"""Pictures, traces and emitted files of a plan, and diffs of two: from plan.json, and the model where it is due."""

from __future__ import annotations

import contextlib
import io
import json
import zipfile
from collections.abc import Callable, Mapping
from typing import Any, Final

from planner.api.jobs.errors import BlobDamaged, BlobMissing
from planner.api.jobs.execute import Tell
from planner.api.jobs.explanations import explain
from planner.api.jobs.plan_model import lay_out_model
from planner.api.jobs.work import JobInput, JobResult
from planner.emit import TARGETS, Given, emit
from planner.errors import InputError, UsageError
from planner.planning import PlanDocument, read_plan
from planner.report.record import SearchRecord
from planner.requests.record_file import RECORD_FILE, record_beside

__all__ = ["ARTIFACTS", "Refused", "artifact", "diff"]

HTML: Final = "text/html; charset=utf-8"
JSON: Final = "application/json"


class Refused(InputError):
    """The target cannot express the plan."""

    problem = "target-refuses"


def _html(plan: PlanDocument, record: SearchRecord | None) -> bytes:
    from planner.report import report_html
    from planner.requests.headline import words

    return report_html(plan, record, words(plan)).encode()


def _report(plan: PlanDocument, record: SearchRecord | None) -> bytes:
    from planner.report import report_document

    return _text(report_document(plan, record))


def _trace(plan: PlanDocument, _: SearchRecord | None) -> bytes:
    from planner.report import trace_document

    return _text(trace_document(plan))


_PICTURES: Final[Mapping[str, tuple[Callable[[PlanDocument, SearchRecord | None], bytes], str]]] = {
    "report.html": (_html, HTML),
    "report.json": (_report, JSON),
    "trace.json": (_trace, JSON),
}
EXPLANATION: Final = "explain.json"
ARTIFACTS: Final = (*_PICTURES, EXPLANATION, *(f"{target}.zip" for target in TARGETS))


def artifact(work: JobInput, tell: Tell) -> JobResult:
    """The one file that `name` asks for.  Refused where a target cannot carry the plan."""
    name = str(work.options.get("name"))
    if name not in ARTIFACTS:
        raise UsageError(f"artifact {name[:80]!r}: expected one of {', '.join(ARTIFACTS)}")
    if name == EXPLANATION:
        return explain(work, tell)
    plan = read_plan(work.lay_out("plan.json", "plan.json"))
    if name in _PICTURES:
        make, media_type = _PICTURES[name]
        return JobResult({name: (make(plan, _record(work, plan)), media_type)})
    target = name.removesuffix(".zip")
    model = None
    if "model" in TARGETS[target].needs:
        model = lay_out_model(work, plan, name)
    try:
        emission = emit(target, Given(plan, model_file=model))
    except InputError as e:
        raise Refused(str(e)) from e
    files = {**emission.files, "lost.txt": "".join(f"{line}\n" for line in emission.lost).encode()}
    return JobResult({name: (_zip(files), "application/zip")}, {"files": sorted(files), "lost": list(emission.lost)})


def _record(work: JobInput, plan: PlanDocument) -> SearchRecord | None:
    """Of the search that made the plan; a report is made without it, too, where it is lost or was never kept."""
    with contextlib.suppress(BlobMissing, BlobDamaged):
        return record_beside(work.lay_out(RECORD_FILE, RECORD_FILE), plan)
    return None


def diff(work: JobInput, tell: Tell) -> JobResult:
    """diff.json or diff.html of plans `a` and `b`."""
    from planner.report import diff_document
    from planner.report.diff import diff as compared
    from planner.report.diff import page_of
    from planner.requests.headline import words

    a, b = (read_plan(work.lay_out(name, f"{name}.json")) for name in ("a", "b"))
    match work.options.get("form"):
        case "json":
            return JobResult({"diff.json": (_text(diff_document(a, b)), JSON)})
        case "html":
            page = page_of(compared(a, b), words=(words(a), words(b)))
            return JobResult({"diff.html": (page.encode(), HTML)})
        case form:
            raise UsageError(f"form {form!r}: expected json or html")


def _text(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=1) + "\n").encode()


def _zip(files: Mapping[str, bytes]) -> bytes:
    """The same files are the same bytes: no times in it."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o755 if name.endswith(".sh") else 0o644) << 16
            archive.writestr(entry, files[name])
    return out.getvalue()
