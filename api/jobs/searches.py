"""A plan is searched for, as `planner search` does: the same bytes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from planner.api.jobs.caches import CACHE_BYTES
from planner.api.jobs.execute import Tell
from planner.api.jobs.requests import CONSTRAINTS, search_options
from planner.api.jobs.work import JobInput, JobResult
from planner.cache import Store
from planner.frontends.file.sandbox import Limits, run_limited
from planner.frontends.file.strip import strip_file
from planner.requests.answer import Answer, finished
from planner.requests.cancel import cancelled_by_signals
from planner.requests.key import request_key
from planner.requests.record_file import RECORD_FILE, record_text
from planner.requests.searcher import Searcher
from planner.terminal import plain

__all__ = ["search"]

SHOWN: Final = (
    *("devices", "mesh", "batch", "in_words", "step_time_s", "step_time_lower_bound_s", "gap", "status"),
    *("objective_s", "objective_lower_bound_s"),
    *("peak_memory_bytes", "memory_limit_bytes", "search_seconds", "operators", "solver", "cached", "cancelled"),
)
MESSAGES: Final = 50  # shown of all


def search(work: JobInput, tell: Tell) -> JobResult:
    """plan.json (and plan-2.json … of the next best), search.json, history.json, summary.txt, model.onnx without
    weights."""
    constraints = "constraints" in work.inputs
    options = search_options(work.options, constraints=constraints)
    model = work.lay_out("model", str(options.model))
    if constraints:
        work.lay_out("constraints", CONSTRAINTS)
    store = None if work.cache is None else Store(work.cache, CACHE_BYTES, note=tell.say)
    key = None if store is None else request_key(options)
    (devices,) = options.counts
    with cancelled_by_signals() as cancellation:
        answer = None if store is None or key is None else Answer.recall(store, key.of(devices))
        if answer is None:
            answer = Searcher(options, store, key, cancellation, tell).search(devices)
    if answer.cached:
        # Of an equal graph, perhaps in another's file: what else that file holds is nobody else's business.
        answer = replace(answer, model=_stripped(model))
    return _outcome(answer, timed=not options.reproducible)


def _outcome(answer: Answer, *, timed: bool) -> JobResult:
    names = ["plan.json" if k == 0 else f"plan-{k + 1}.json" for k in range(len(answer.plans))]
    document = finished(answer, names)
    summary: dict[str, Any] = {name: document[name] for name in SHOWN}
    files = {name: (text.encode(), "application/json") for name, text in zip(names, answer.plans, strict=True)}
    files["search.json"] = ((json.dumps(document, indent=1) + "\n").encode(), "application/json")
    record = record_text(answer.record, answer.plans, timed=timed)
    if record:
        files[RECORD_FILE] = (record.encode(), "application/json")
    text = "\n".join([*answer.messages, answer.summary]) + "\n"
    files["summary.txt"] = (plain(text, "\n\t").encode(), "text/plain; charset=utf-8")
    if answer.model:
        files["model.onnx"] = (answer.model, "application/octet-stream")
    return JobResult(
        files,
        summary | {"messages": list(answer.messages[:MESSAGES])},
        plan=answer.plans[0].encode(),
        cancelled=answer.cancelled,
    )


def _stripped(model: Path) -> bytes:
    found: bytes = run_limited(lambda: strip_file(model), limits=Limits(), what=f"model {model.stem}")
    return found
