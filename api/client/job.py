"""A job of the service, watched and awaited."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Self

import httpx

from planner.api.client.connection import Connection
from planner.api.client.problems import ConnectionFailed, ServiceError, TooMany, Unavailable, WaitTimeout, problem_error
from planner.api.client.stream import read_events
from planner.api.client.values import ENDED, Artifact, Event, JobState, Progress
from planner.api.client.wire import JSON, document_of

__all__ = ["Job"]

SILENCE = 60.0  # seconds; the service gives a sign of life every 15
PAUSE = 0.5  # seconds between two attempts at a stream


class Job:
    """One job; `state` is what the service last said of it."""

    def __init__(self, connection: Connection, state: JobState) -> None:
        self._connection = connection
        self.state = state
        self._heard = ""  # the last event that `wait` has seen: it goes on behind it when it is called again

    @property
    def id(self) -> str:
        return self.state.id

    @property
    def status(self) -> str:
        return self.state.status

    @property
    def url(self) -> str:
        """Of the service."""
        return self._connection.url

    @property
    def plan_id(self) -> str:
        """ServiceError where the job has no plan (yet)."""
        if self.state.plan is None:
            raise ServiceError(f"job {self.id} has no plan: it is {self.status}")
        return self.state.plan

    def refresh(self) -> JobState:
        """Asks the service."""
        self.state = JobState.of(self._connection.document(f"/v1/jobs/{self.id}"))
        return self.state

    def cancel(self) -> JobState:
        """Asks for the end; the job ends as `cancelled`, with the best plan so far where there is one."""
        transport = self._connection.transport
        response = transport.send("POST", f"/v1/jobs/{self.id}:cancel", headers={"Accept": JSON})
        self.state = JobState.of(document_of(response))
        return self.state

    def events(self, after: str = "") -> Iterator[Event]:
        """Events to the last one, taken up again where a broken connection left them."""
        return (event for event in self._events(after, None) if event is not None)

    def wait(self, progress: Callable[[Progress], object] | None = None, *, timeout: float | None = None) -> Self:
        """Returns once the job has succeeded, or was cancelled with a plan; `progress` is called as it changes.

        ProblemError for what made it fail, WaitTimeout after `timeout` seconds.
        """
        until = None if timeout is None else time.monotonic() + timeout
        seen = self.state.progress
        if not self.state.ended and progress is not None:
            progress(seen)
        while not self.state.ended:
            for event in self._events(self._heard, until):
                self._heard = self._heard if event is None else event.id or self._heard
                fresh = seen if event is None else seen.updated(event.data)
                if fresh != seen and progress is not None:
                    progress(fresh)
                seen = fresh
            self.refresh()
            if until is not None and time.monotonic() > until and not self.state.ended:
                raise WaitTimeout(f"job {self.id} is still {self.status} after {timeout:g} s")
        if self.state.error is not None and self.state.plan is None:
            raise problem_error(self.state.error)
        return self

    def _events(self, last: str, until: float | None) -> Iterator[Event | None]:
        """Events and signs of life (None), to the last event or the deadline."""
        transport = self._connection.transport
        broken_since: float | None = None
        while True:
            left = SILENCE if until is None else until - time.monotonic()
            if left <= 0:
                return
            try:
                headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last} if last else {})
                with transport.stream(f"/v1/jobs/{self.id}/events", headers, min(left, SILENCE)) as chunks:
                    for event in read_events(chunks):
                        broken_since = None
                        if event is not None:
                            last = event.id or last
                        yield event
                        if event is not None and event.type in ENDED:
                            return
                        if until is not None and time.monotonic() > until:
                            return
                if self.refresh().ended:
                    return  # all events were read before
            except (httpx.TransportError, Unavailable, TooMany) as error:
                now = time.monotonic()
                broken_since = broken_since or now
                if now - broken_since > transport.patience and (until is None or now < until):
                    reason = str(error) or type(error).__name__
                    raise ConnectionFailed(
                        f"the service at {self.url} is gone ({reason}); job {self.id} goes on once it is back: send "
                        "the same request again, it joins"
                    ) from error
            time.sleep(PAUSE)

    def plan(self) -> bytes:
        """plan.json, byte for byte."""
        return self._connection.plan(self.plan_id)

    def artifacts(self) -> list[Artifact]:
        return self._connection.artifacts(self.plan_id)

    def artifact(self, name: str, to: str | os.PathLike[str] | None = None) -> bytes:
        return self._connection.artifact(self.plan_id, name, to)
