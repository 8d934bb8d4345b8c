"""Every error the planner reports to its user, each with the exit status of the command line.

A message names the object, what was expected, what was found and what to do.  Anything else that
escapes is a bug.
"""

from __future__ import annotations

from typing import Literal

__all__ = [
    "EndedError",
    "InfeasibleError",
    "InputError",
    "LimitError",
    "NoPlanError",
    "NotFasterError",
    "NotFiniteError",
    "OptionError",
    "PlannerError",
    "UsageError",
    "VerificationError",
]


class PlannerError(Exception):
    """Base of all errors meant for the user; `exit_status` is what the command line returns."""

    exit_status = 1


class VerificationError(PlannerError):
    """A plan was executed and its numbers differ from the whole model's."""

    exit_status = 1


class NotFiniteError(PlannerError):
    """A training met a loss or gradients that are not finite."""

    exit_status = 1


class UsageError(PlannerError):
    """An option is unknown, malformed or inconsistent with another."""

    exit_status = 2


class OptionError(UsageError, TypeError):
    """A function of `planner` was called with an option that it does not have, or with a value of another type."""


class InputError(PlannerError):
    """The model, profile or plan given cannot be understood or is invalid."""

    exit_status = 3


class EndedError(PlannerError):
    """A process that worked on an input was ended before it had an answer, from outside or by a fault of native code.

    That says nothing of the input, so it is no InputError: the same again may succeed.
    """

    exit_status = 5


class LimitError(EndedError):
    """The work on an input met a limit of the process that did it; `limit` says of what."""

    def __init__(self, message: str, limit: Literal["memory", "cpu", "wall"] = "memory") -> None:
        super().__init__(message)
        self.limit = limit


class InfeasibleError(PlannerError):
    """No plan fits the memory limit.

    `sufficient_bytes` is a limit shown to suffice by a plan (None when none was found) and
    `lower_bound_bytes` the proven bound below which nothing fits.
    """

    exit_status = 4

    def __init__(self, message: str, *, lower_bound_bytes: int, sufficient_bytes: int | None) -> None:
        super().__init__(message)
        self.lower_bound_bytes = lower_bound_bytes
        self.sufficient_bytes = sufficient_bytes


class NoPlanError(PlannerError):
    """The search ended at its limit without a plan."""

    exit_status = 5


class NotFasterError(NoPlanError):
    """The search found no plan with a shorter step than one that is known; `bound_s`: seconds that a step of those that
    were searched takes at least."""

    def __init__(self, message: str, bound_s: float = 0.0) -> None:
        super().__init__(message)
        self.bound_s = bound_s
