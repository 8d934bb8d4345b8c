"""The service in this process; the test plays the worker."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from planner.api.app import create_app
from planner.api.jobs.blobs import Blob
from planner.api.jobs.records import Claim
from planner.api.jobs.store import Store
from planner.api.settings import Settings

__all__ = ["ONNX", "Service", "serving"]

ONNX = {"content-type": "application/octet-stream"}


class Service:
    """`client` speaks to it; `work` does the next task with a result of your choice."""

    def __init__(self, client: TestClient, store: Store) -> None:
        self.client, self.store = client, store

    def post(self, model: bytes = b"a model", query: str = "devices=4", **headers: str) -> Any:
        told = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.post(f"/v1/plans?{query}", content=model, headers=ONNX | told)

    def claim(self) -> Claim:
        found = self.store.leases.claim("test", (0, 1, 2))
        assert found is not None, "nothing waits"
        return found

    def work(self, files: Mapping[str, bytes], summary: Mapping[str, Any] | None = None) -> Claim:
        """Does the next task; `files` become its result."""
        claim = self.claim()
        result = {n: Blob(self.store.blobs.put(c), _type(n), len(c)) for n, c in files.items()}
        plan = None if claim.kind != "plan" else result["plan.json"].digest[:32]
        self.store.leases.finish(claim, result, dict(summary or {}), plan=plan)
        return claim

    def working(self, files: Mapping[str, bytes]) -> threading.Thread:
        """Does the next task as soon as there is one, beside the test."""

        def work() -> None:
            for _ in range(500):
                if self.store.counts()["tasks"]["queued"]:
                    self.work(files)
                    return
                time.sleep(0.01)

        thread = threading.Thread(target=work)
        thread.start()
        return thread

    def planned(self, content: bytes = b'{"a": "plan"}', model: bytes = b"a model", query: str = "devices=4") -> str:
        """Id of a plan with these bytes, from a job of its own."""
        job = self.post(model, query).json()
        self.work({"plan.json": content, "summary.txt": b"a summary", "model.onnx": model}, {"gap": 0.0})
        return str(self.client.get(f"/v1/jobs/{job['id']}").json()["plan"])


def _type(name: str) -> str:
    types = {"json": "application/json", "txt": "text/plain", "html": "text/html", "zip": "application/zip"}
    return types.get(name.rpartition(".")[2], "application/octet-stream")


@contextmanager
def serving(folder: Path, key: str | None = None, **settings: Any) -> Iterator[Service]:
    given = Settings(data=folder, **settings)
    store = Store(folder, queue=given.queue)
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    with TestClient(create_app(given, store), base_url="http://127.0.0.1:8080", headers=headers) as client:
        yield Service(client, store)
