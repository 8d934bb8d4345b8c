"""Problems (RFC 9457): every error answer of the service, with a type that never changes.

A problem is raised as `Problem("name", "what was found, what was expected")` anywhere below a route.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from planner.api.jobs.errors import (
    BlobDamaged,
    BlobMissing,
    IdempotencyConflict,
    JobUnfinished,
    NotFound,
    QueueFull,
    StoreBusy,
    StoreError,
    StoreFull,
)
from planner.api.jobs.problems import PROBLEMS as WORK
from planner.api.jobs.problems import URN

__all__ = [
    "COMPUTED",
    "MEDIA_TYPE",
    "MOST_ERRORS",
    "PROBLEMS",
    "Problem",
    "ProblemType",
    "from_store",
    "from_work",
    "invalid",
    "of_status",
    "type_of",
]

MEDIA_TYPE: Final = "application/problem+json"
MOST_ERRORS: Final = 20  # fields that a problem lists; of more only the number is given, as thousands may be wrong
MOST_DETAIL: Final = 4000  # characters of a detail, which may repeat what was sent
MOST_FIELD: Final = 500  # and of what is wrong with one field


@dataclass(frozen=True, slots=True)
class ProblemType:
    status: int
    title: str
    meaning: str


def type_of(name: str) -> str:
    """The `type` of a problem: a name, not an address."""
    return URN + name


_WORK: Final[Mapping[str, str]] = {
    "usage": "Each option is well-formed, but they contradict each other.",
    "input-invalid": "The planner cannot make sense of what was sent; `detail` says where.",
    "cannot-fit": "`lower_bound_bytes` is proven to be needed; `sufficient_bytes` suffices, where that is known.",
    "no-plan": "The search ended at its limit, or was cancelled, before it had one.",
    "target-refuses": "The plan itself is good; `detail` says what the target cannot express.",
    "verification-failed": "A fault of the planner: please report it.",
    "child-memory": "Send a smaller problem, or raise `--child-memory`.",
    "child-cpu": "Send a smaller problem or a time limit, or raise `--child-cpu`.",
    "child-wall": "Send a smaller problem or a time limit, or raise `--child-wall`.",
    "child-disk": "No real model needs so many files, or so large ones.",
    "child-processes": "No real model needs so many.",
    "child-died": "Its process was killed, or crashed, at every attempt.",
    "result-too-large": "Send a smaller problem.",
    "storage-full": "Nothing of the request was kept; come back later.",
    "input-lost": "It was kept and is no longer what it was; send the request again.",
    "internal": "The id in `detail` finds it in the log, as does that of the request in `instance`.",
}

PROBLEMS: Final[Mapping[str, ProblemType]] = {
    "bad-request": ProblemType(400, "The request is malformed", "It is no well-formed HTTP request of this service."),
    "cursor-invalid": ProblemType(400, "The cursor did not come from this service", "Begin again without `cursor`."),
    "unauthorised": ProblemType(401, "A key is needed", "No key, or one that is unknown or revoked, came along."),
    "origin-forbidden": ProblemType(
        403, "The request comes from another site", "Its `Origin` or `Sec-Fetch-Site` is not that of this service."
    ),
    "quota-exceeded": ProblemType(
        403,
        "The tenant's quota is used up",
        "`used_bytes` and `requested_bytes` are more than `limit_bytes`; remove jobs and plans that are not needed.",
    ),
    "not-found": ProblemType(
        404, "There is no such thing", "It does not exist, was removed, or is not visible with this key."
    ),
    "method-not-allowed": ProblemType(405, "The method does not apply", "`Allow` lists those that do."),
    "not-acceptable": ProblemType(406, "No representation is acceptable", "`Accept` names none of those on offer."),
    "body-timeout": ProblemType(408, "The request did not arrive", "Its body stopped arriving, or arrived too slowly."),
    "job-unfinished": ProblemType(409, "The job has not ended", "Cancel it first."),
    "precondition-failed": ProblemType(412, "The precondition does not hold", "`If-Match` names another version."),
    "too-large": ProblemType(413, "The body is too large", "`limit_bytes` is the most that is taken."),
    "unsupported-media-type": ProblemType(415, "The body's type is not taken", "`expected` lists those that are."),
    "host-unknown": ProblemType(
        421, "The request is addressed to another host", "`Host` is not a name of this service; see `--names`."
    ),
    "head-too-large": ProblemType(
        431, "The request's head is too large", "Its line and headers are more than 64 KiB: options are too long."
    ),
    "validation": ProblemType(
        422, "The request is not of its form", "`errors` lists every field that is not as documented."
    ),
    "idempotency-key-reused": ProblemType(
        422, "The idempotency key belongs to another request", "Send this one with a key of its own."
    ),
    "queue-full": ProblemType(429, "Too many requests wait", "`Retry-After` says when to come back."),
    "rate-limited": ProblemType(429, "Too many requests", "`Retry-After` says when to come back."),
    "unavailable": ProblemType(503, "The service is not ready", "It starts, stops, or cannot reach its store."),
    **{name: ProblemType(*fields, _WORK[name]) for name, fields in WORK.items()},
}
# What becomes of anything that is computed from stored inputs.
COMPUTED: Final = (
    *("not-found", "validation", "input-invalid", "result-too-large", "queue-full", "storage-full", "input-lost"),
    *(name for name in WORK if name.startswith("child-")),
)


def clipped(text: str, most: int) -> str:
    """The text, or its beginning where it is longer."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def invalid(errors: Sequence[Mapping[str, str]]) -> Problem:
    """Problem `validation` for these fields; its detail has the first three, and says how many are not listed."""
    message = "; ".join(f"{e['name']}: {clipped(e['detail'], MOST_FIELD)}" for e in errors[:3])
    unlisted = len(errors) - MOST_ERRORS
    more = f"; {unlisted} more are not listed" if unlisted > 0 else "; …" if len(errors) > 3 else ""
    return Problem("validation", message + more, errors=errors)


@dataclass(frozen=True, slots=True)
class _Fields:
    name: str
    detail: str
    errors: Sequence[Mapping[str, str]] = ()
    more: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


class Problem(Exception):
    """`name` is a key of PROBLEMS; `errors` lists fields; `more` are members of this type; `headers` go beside."""

    def __init__(
        self,
        name: str,
        detail: str,
        *,
        errors: Sequence[Mapping[str, str]] = (),
        more: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        listed = [{k: clipped(v, MOST_FIELD) for k, v in e.items()} for e in errors[:MOST_ERRORS]]
        self.fields = _Fields(name, clipped(detail, MOST_DETAIL), listed, more or {}, headers or {})
        self.kind = PROBLEMS[name]

    @property
    def status(self) -> int:
        return self.kind.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self.fields.headers

    def document(self, request_id: str | None = None) -> dict[str, Any]:
        """The problem as JSON has it; `request_id` becomes its `instance`."""
        f = self.fields
        out: dict[str, Any] = {
            "type": type_of(f.name),
            "title": self.kind.title,
            "status": self.kind.status,
            "detail": f.detail,
        }
        if request_id is not None:
            out["instance"] = f"urn:planner:request:{request_id}"
        if f.errors:
            out["errors"] = [dict(e) for e in f.errors]
        return out | dict(f.more)

    def body(self, request_id: str) -> bytes:
        return json.dumps(self.document(request_id), ensure_ascii=False).encode("utf-8", "replace")


def from_store(error: StoreError) -> Problem:
    """What the store cannot do, as a problem."""
    names: tuple[tuple[type[StoreError], str, str], ...] = (
        (NotFound, "not-found", ""),
        (IdempotencyConflict, "idempotency-key-reused", ""),
        (JobUnfinished, "job-unfinished", ""),
        (QueueFull, "queue-full", "5"),
        (StoreFull, "storage-full", "60"),
        (StoreBusy, "unavailable", "1"),
        (BlobMissing, "input-lost", ""),
        (BlobDamaged, "input-lost", ""),
    )
    name, wait = next(((n, w) for kind, n, w in names if isinstance(error, kind)), ("unavailable", "60"))
    message = str(error)
    if name in ("unavailable", "storage-full"):
        message = PROBLEMS[name].meaning  # the message names files of the server: it is for the log
    return Problem(name, message, headers={"Retry-After": wait} if wait else None)


def from_work(document: Mapping[str, Any]) -> Problem:
    """The problem document of a task, as an answer."""
    name = str(document.get("type", "")).rpartition(":")[2]
    known = {"type", "title", "status", "detail", "instance", "errors"}
    more = {k: v for k, v in document.items() if k not in known}
    return Problem(name if name in PROBLEMS else "internal", str(document.get("detail", "")), more=more)


def of_status(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Problem:
    """The problem for a bare HTTP status, as the framework raises it."""
    names = {400: "bad-request", 404: "not-found", 405: "method-not-allowed", 406: "not-acceptable", 413: "too-large"}
    names |= {415: "unsupported-media-type", 422: "validation", 503: "unavailable"}
    name = names.get(status, "bad-request" if status < 500 else "internal")
    if detail == HTTPStatus(status).phrase:
        detail = PROBLEMS[name].meaning
    return Problem(name, detail, headers=headers)
