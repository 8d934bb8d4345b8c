"""`Client`: the requests of one service as methods."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import httpx

from planner.api.client.connection import Connection
from planner.api.client.job import Job
from planner.api.client.transport import Transport
from planner.api.client.values import Hardware, JobState, PlanEntry
from planner.api.client.wire import JSON, OCTETS, Option, document_of, file_bytes, list_of, model_bytes, query_of

__all__ = ["Client"]


class Client(Connection):
    """One service.  `key`: a secret of `planner keys create`, where the service asks for one.

    `timeout`: seconds for one answer; `patience`: seconds for which a request is repeated while the service is away,
    full or overloaded.  May be used by several threads.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8080",
        key: str | None = None,
        *,
        timeout: float = 60.0,
        patience: float = 30.0,
        http: httpx.Client | None = None,
    ) -> None:
        super().__init__(Transport(url, key, timeout, patience, http))

    # Jobs

    def submit(
        self,
        model: str | os.PathLike[str] | bytes,
        *,
        devices: int,
        constraints: str | os.PathLike[str] | bytes | None = None,
        idempotency_key: str | None = None,
        strip: bool = True,
        **options: Option,
    ) -> Job:
        """Starts a search.  `options` are those of `planner search`, with underscores; `name` is the model's name in
        the plan, by default that of the file.  Sent again after a broken connection it is still one job.

        InputError where the model cannot be read, ProblemError where the service refuses.
        """
        body, name = model_bytes(model, strip)
        given = {"devices": devices, "name": name, **options}
        return self._job("/v1/plans", body, given, constraints, idempotency_key)

    def submit_all(
        self,
        model: str | os.PathLike[str] | bytes,
        requests: Sequence[Mapping[str, Option]],
        *,
        constraints: str | os.PathLike[str] | bytes | None = None,
        idempotency_key: str | None = None,
        strip: bool = True,
    ) -> list[Job]:
        """Starts a search for each of `requests`, whose entries have `devices` and options as of `submit`; the model is
        sent once.  All are accepted, or none; errors as of `submit`."""
        body, name = model_bytes(model, strip)
        named = [{"name": name, **given} for given in requests]
        sent = [{option: value for option, value in given.items() if value is not None} for given in named]
        files = {
            "model": ("model.onnx", body, OCTETS),
            "requests": ("requests.json", json.dumps(sent).encode(), JSON),
        }
        if constraints is not None:
            held, stem = (constraints, "constraints") if isinstance(constraints, bytes) else file_bytes(constraints)
            files["constraints"] = (stem, held, OCTETS)
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex, "Accept": JSON}
        response = self.transport.send("POST", "/v1/batches", headers=headers, files=files)
        return [Job(self, JobState.of(found)) for found in document_of(response)["jobs"]]

    def evaluate(
        self,
        model: str | os.PathLike[str] | bytes | None = None,
        *,
        timeout: float | None = None,
        strip: bool = True,
        **options: Option,
    ) -> Mapping[str, Any]:
        """What `strategy` costs on a model, or `plan` (an id) on other hardware: the document of `planner evaluate`."""
        body, name = (b"", None) if model is None else model_bytes(model, strip)
        job = self._job("/v1/evaluations", body, {"name": name, **options}, None, None)
        return job.wait(timeout=timeout).state.summary

    def _job(
        self,
        path: str,
        body: bytes,
        options: Mapping[str, Option],
        constraints: str | os.PathLike[str] | bytes | None,
        key: str | None,
    ) -> Job:
        headers = {"Idempotency-Key": key or uuid.uuid4().hex, "Accept": JSON}
        query = query_of(options)
        if constraints is None:
            headers["Content-Type"] = OCTETS
            response = self.transport.send("POST", path, query=query, headers=headers, content=body)
        else:
            held, stem = (constraints, "constraints") if isinstance(constraints, bytes) else file_bytes(constraints)
            files = {"model": ("model.onnx", body, OCTETS), "constraints": (stem, held, OCTETS)}
            response = self.transport.send("POST", path, query=query, headers=headers, files=files)
        return Job(self, JobState.of(document_of(response)))

    def job(self, job_id: str) -> Job:
        """A job of this key.  NotFound where there is none."""
        return Job(self, JobState.of(self.document(f"/v1/jobs/{quote(job_id, safe='')}")))

    def jobs(self, status: str | None = None) -> Iterator[Job]:
        """All jobs of this key, the newest first."""
        for item in self._pages("/v1/jobs", {"status": status}):
            yield Job(self, JobState.of(item))

    # Plans

    def plans(self) -> Iterator[PlanEntry]:
        """All plans of this key, the newest first."""
        return map(PlanEntry.of, self._pages("/v1/plans", {}))

    def forget(self, plan_id: str) -> None:
        """Removes the plan from this key's list."""
        self.transport.send("DELETE", f"/v1/plans/{quote(plan_id, safe='')}")

    def diff(self, a: str, b: str, *, timeout: float = 600.0) -> Mapping[str, Any]:
        """The document of `planner diff` between two plans, by their ids."""
        return document_of(self.made(f"/v1/diffs/{quote(a, safe='')}/{quote(b, safe='')}", JSON, timeout))

    def diff_html(self, a: str, b: str, *, timeout: float = 600.0) -> str:
        """The same as one HTML page."""
        return self.made(f"/v1/diffs/{quote(a, safe='')}/{quote(b, safe='')}", "text/html", timeout).text

    # Hardware

    def hardware(self) -> list[Hardware]:
        """The machines that the service plans for."""
        return [Hardware.of(d) for d in list_of(self.transport.send("GET", "/v1/hardware", headers={"Accept": JSON}))]

    # Inside

    def _pages(self, path: str, options: Mapping[str, Option]) -> Iterator[Mapping[str, Any]]:
        cursor: str | None = None
        while True:
            query = query_of({**options, "cursor": cursor})
            page = document_of(self.transport.send("GET", path, query=query, headers={"Accept": JSON}))
            yield from page["items"]
            cursor = page.get("next")
            if cursor is None:
                return
