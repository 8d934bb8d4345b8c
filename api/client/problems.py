"""What goes wrong between a program and the service, one class for each family of problem types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = [
    "CannotFit",
    "Conflict",
    "ConnectionFailed",
    "Forbidden",
    "Invalid",
    "LimitMet",
    "NoPlan",
    "NotFound",
    "ProblemError",
    "ServerFault",
    "ServiceError",
    "TargetRefuses",
    "TooLarge",
    "TooMany",
    "Unauthorised",
    "Unavailable",
    "WaitTimeout",
    "problem_error",
]

_URN = "urn:planner:problem:"


class ServiceError(Exception):
    """Base of all errors of the client."""


class ConnectionFailed(ServiceError):
    """The service cannot be reached, or what answers is no such service."""


class WaitTimeout(ServiceError):
    """The job did not end in the time that the caller gave it; it goes on."""


class ProblemError(ServiceError):
    """A problem document (RFC 9457): `type`, `title`, `status`, `detail`, `instance`, and all of it as `document`.

    The message shows title, detail, the fields that are wrong, and the type.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = dict(document)
        self.type = str(document.get("type", "about:blank"))
        self.title = str(document.get("title", "The service refuses"))
        self.detail = str(document.get("detail", ""))
        self.instance = document.get("instance")
        status = document.get("status")
        self.status = status if isinstance(status, int) else 0
        super().__init__(self._message())

    @property
    def name(self) -> str:
        """The last part of the type: `input-invalid`."""
        return self.type.removeprefix(_URN)

    @property
    def fields(self) -> tuple[tuple[str, str], ...]:
        """(name, what is wrong with it) of every field that the service names."""
        errors = self.document.get("errors")
        listed = errors if isinstance(errors, list) else []
        return tuple((str(e.get("name", "")), str(e.get("detail", ""))) for e in listed if isinstance(e, Mapping))

    def _message(self) -> str:
        message = f"{self.title}: {self.detail}" if self.detail else self.title
        wrong = "; ".join(f"{name}: {detail}" for name, detail in self.fields)
        return f"{message}{f' [{wrong}]' if wrong and wrong not in message else ''} ({self.type})"


class Invalid(ProblemError):
    """The request is not as documented, its options contradict each other, or its model or plan is invalid."""


class Unauthorised(ProblemError):
    """A key is needed, or this one is unknown or revoked."""


class Forbidden(ProblemError):
    """The request comes from another site, or is addressed to another host."""


class NotFound(ProblemError):
    """There is no such thing, or it is not visible with this key."""


class Conflict(ProblemError):
    """It is not in a state for that, or the idempotency key belongs to another request."""


class TooLarge(ProblemError):
    """The body is larger than the service takes."""

    @property
    def limit_bytes(self) -> int | None:
        found = self.document.get("limit_bytes")
        return found if isinstance(found, int) else None


class CannotFit(ProblemError):
    """No plan fits the memory limit."""

    @property
    def lower_bound_bytes(self) -> int | None:
        """Nothing fits below it; bytes per device."""
        found = self.document.get("lower_bound_bytes")
        return found if isinstance(found, int) else None

    @property
    def sufficient_bytes(self) -> int | None:
        """A limit that suffices; None where none was found."""
        found = self.document.get("sufficient_bytes")
        return found if isinstance(found, int) else None


class NoPlan(ProblemError):
    """The search ended without a plan."""


class LimitMet(ProblemError):
    """It met a limit of the service: memory, CPU time, time, the tenant's quota, or it died again and again."""


class TargetRefuses(ProblemError):
    """The target cannot express the plan."""


class TooMany(ProblemError):
    """Too many requests or unfinished jobs; tried again until the client's patience ended."""


class Unavailable(ProblemError):
    """The service starts, stops, or cannot reach its store or disk."""


class ServerFault(ProblemError):
    """A fault of the service or the planner."""


_BY_NAME: dict[str, type[ProblemError]] = {
    "cannot-fit": CannotFit,
    "child-cpu": LimitMet,
    "child-died": LimitMet,
    "child-memory": LimitMet,
    "child-wall": LimitMet,
    "idempotency-key-reused": Conflict,
    "no-plan": NoPlan,
    "quota-exceeded": LimitMet,
    "result-too-large": LimitMet,
    "target-refuses": TargetRefuses,
}
_BY_STATUS: dict[int, type[ProblemError]] = {
    401: Unauthorised,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: NotFound,
    412: Conflict,
    413: TooLarge,
    421: Forbidden,
    429: TooMany,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
    507: Unavailable,
}


def problem_error(document: Mapping[str, Any], status: int = 0) -> ProblemError:
    """The error for a problem document; `status` where the document has none."""
    known = {"status": status, **document}
    number = known["status"] if isinstance(known["status"], int) else status
    name = str(document.get("type", "")).removeprefix(_URN)
    kind = _BY_NAME.get(name) or _BY_STATUS.get(number) or (Invalid if number < 500 else ServerFault)
    return kind(known)
