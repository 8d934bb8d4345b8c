"""What a job and a client have in common: one service, and what it keeps of plans."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

from planner.api.client.problems import ConnectionFailed, WaitTimeout
from planner.api.client.transport import Transport
from planner.api.client.values import Artifact
from planner.api.client.wire import JSON, document_of
from planner.files import write_whole

__all__ = ["Connection"]

WAIT = 30  # seconds that the service may hold an answer back


class Connection:
    """Documents, plans and the files made of plans, by `transport`."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self.transport.close()

    @property
    def url(self) -> str:
        return self.transport.url

    def document(self, path: str) -> Mapping[str, Any]:
        """The JSON object at this path."""
        return document_of(self.transport.send("GET", path, headers={"Accept": JSON}))

    def plan(self, plan_id: str) -> bytes:
        """plan.json, byte for byte.  ConnectionFailed where what came is not what the id stands for."""
        path = f"/v1/plans/{quote(plan_id, safe='')}"
        content = self.transport.send("GET", path, headers={"Accept": JSON}).content
        if hashlib.sha256(content).hexdigest()[: len(plan_id)] != plan_id:
            raise ConnectionFailed(f"plan {plan_id}: what came is another file, altered on its way")
        return content

    def artifacts(self, plan_id: str) -> list[Artifact]:
        """What can be had of a plan."""
        return [Artifact.of(d) for d in self.document(f"/v1/plans/{quote(plan_id, safe='')}/artifacts")["items"]]

    def artifact(
        self, plan_id: str, name: str, to: str | os.PathLike[str] | None = None, *, timeout: float = 600.0
    ) -> bytes:
        """One of them, made now if need be, and written to `to`, whole or not at all.

        TargetRefuses where a target cannot express the plan, WaitTimeout where it takes longer than `timeout`.
        """
        path = f"/v1/plans/{quote(plan_id, safe='')}/artifacts/{quote(name, safe='')}"
        content = self.made(path, "*/*", timeout).content
        if to is not None:
            write_whole(Path(to), content)
        return content

    def made(self, path: str, accept: str, timeout: float) -> httpx.Response:
        """The answer to something that may have to be made first."""
        until = time.monotonic() + timeout
        while True:
            left = until - time.monotonic()
            if left <= 0:
                raise WaitTimeout(f"{path}: not made within {timeout:g} s")
            wait = max(1, min(WAIT, int(left)))
            headers = {"Accept": accept, "Prefer": f"wait={wait}"}
            response = self.transport.send("GET", path, headers=headers, timeout=wait + 30.0)
            if response.status_code != 202:
                return response
            time.sleep(min(0.2, left))
