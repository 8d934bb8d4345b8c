"""A client of the service, for Python programs.

    from planner.api.client import Client

    with Client("http://127.0.0.1:8080", key=None) as client:
        job = client.submit(Path("gpt2_small.onnx"), devices=16)
        plan = job.wait().plan()

Weights are taken out before a model is sent.  Every error is a `ServiceError`; what the service answers with as a
problem document is a `ProblemError` of the class that its type has in `planner.api.client.problems`.
"""

from __future__ import annotations

from planner.api.client.client import Client
from planner.api.client.job import Job
from planner.api.client.problems import (
    CannotFit,
    Conflict,
    ConnectionFailed,
    Forbidden,
    Invalid,
    LimitMet,
    NoPlan,
    NotFound,
    ProblemError,
    ServerFault,
    ServiceError,
    TargetRefuses,
    TooLarge,
    TooMany,
    Unauthorised,
    Unavailable,
    WaitTimeout,
)
from planner.api.client.values import Artifact, Event, Hardware, JobState, PlanEntry, Progress

__all__ = [
    "Artifact",
    "CannotFit",
    "Client",
    "Conflict",
    "ConnectionFailed",
    "Event",
    "Forbidden",
    "Hardware",
    "Invalid",
    "Job",
    "JobState",
    "LimitMet",
    "NoPlan",
    "NotFound",
    "PlanEntry",
    "ProblemError",
    "Progress",
    "ServerFault",
    "ServiceError",
    "TargetRefuses",
    "TooLarge",
    "TooMany",
    "Unauthorised",
    "Unavailable",
    "WaitTimeout",
]
