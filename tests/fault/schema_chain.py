"""What clients do, from the upload to the webhook, with every answer held against the OpenAPI document."""

from __future__ import annotations

import hashlib
import hmac
import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import httpx

from tests.service.promises import broken_promise

__all__ = ["Chain", "Receiver", "receiving"]

SAMPLES: Final = Path(__file__).parents[2] / "sample_graphs"
MODELS: Final = {name: (SAMPLES / f"{name}.onnx").read_bytes() for name in ("mlp", "gpt_tiny", "moe_tiny")}
ONNX: Final = {"content-type": "application/octet-stream"}
PATIENCE_S: Final = 120.0  # for a job, on a busy machine


@dataclass
class Receiver:
    """Takes webhooks, every third at the second try alone."""

    url: str
    taken: dict[str, tuple[dict[str, Any], str]] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)


@contextmanager
def receiving() -> Iterator[Receiver]:
    found = Receiver("")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            job = self.headers["planner-job"]
            again = int(job, 16) % 3 == 0 and job not in found.refused
            if again:
                found.refused.add(job)
            else:
                found.taken[job] = (json.loads(body), f"{self.headers['planner-signature']} {body.hex()}")
            self.send_response(503 if again else 204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Nothing is written."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_address[1]}/ended"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()


class Chain:
    """One client with its key; `wrong` has what was not as documented, `calls` how many were made."""

    def __init__(self, url: str, key: str, other: str, receiver: Receiver) -> None:
        self.client = httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=90.0)
        self.other = {"authorization": f"Bearer {other}"}
        self.key, self.receiver = key, receiver
        self.operations: dict[str, Any] = self.client.get("/openapi.json").json()["paths"]
        self.wrong: list[str] = []
        self.calls = 0

    def __call__(self, method: str, template: str, expected: tuple[int, ...] = (), **given: Any) -> httpx.Response:
        """`given`: of the path by the names in it, else as of httpx."""
        path = template
        for name in [n for n in given if f"{{{n}}}" in template]:
            path = path.replace(f"{{{name}}}", str(given.pop(name)))
        answer = self.client.request(method, path, **given)
        self.calls += 1
        wrong = broken_promise(answer, self.operations[template][method.lower()])
        if wrong is None and expected and answer.status_code not in expected:
            wrong = f"{answer.status_code} where one of {expected} is due: {answer.text[:300]}"
        if wrong is not None:
            self.wrong.append(f"{method} {path}: {wrong}")
        return answer

    def run(self, rng: random.Random) -> None:
        """All of it once, with searches that nobody has made before."""
        plans = [p for devices in (2, 4) if (p := self.planned(rng, devices)) is not None]
        for plan in plans:
            self.artifacts(plan, rng)
        if len(plans) == 2:
            self.compared(*plans)
        self.evaluated(plans, rng)
        self.batch(rng)
        self.pages()
        self.ended_early(rng)
        for plan in plans:
            self("DELETE", "/v1/plans/{plan_id}", (412,), plan_id=plan, headers={"if-match": '"another"'})
        if plans:
            self("DELETE", "/v1/plans/{plan_id}", (204,), plan_id=plans[0])
            self("GET", "/v1/plans/{plan_id}", (404,), plan_id=plans[0])

    def query(self, rng: random.Random, devices: int) -> dict[str, Any]:
        return {
            "devices": devices,
            "memory_limit": str(rng.randrange(40 * 10**9, 60 * 10**9)),
            "webhook": self.receiver.url,
        }

    def planned(self, rng: random.Random, devices: int) -> str | None:
        """The id of a plan, from upload to the last event."""
        name = rng.choice(tuple(MODELS))
        headers = {**ONNX, "idempotency-key": rng.randbytes(8).hex()}
        query = {**self.query(rng, devices), "name": name}
        job = self("POST", "/v1/plans", (200, 202), params=query, content=MODELS[name], headers=headers).json()
        same = self("POST", "/v1/plans", (200, 202), params=query, content=MODELS[name], headers=headers).json()
        if same.get("id") != job["id"]:
            self.wrong.append(f"an idempotency key led to jobs {job['id']} and {same}")
        query["devices"] = 8
        self("POST", "/v1/plans", (422,), params=query, content=MODELS[name], headers=headers)
        self("GET", "/v1/jobs/{job_id}", (404,), job_id=job["id"], headers=self.other)
        last = self.events(job["id"])
        self("GET", "/v1/jobs/{job_id}/events", (204,), job_id=job["id"], headers={"last-event-id": last})
        ended = self.waited(job["id"])
        if ended["status"] != "succeeded":
            self.wrong.append(f"a search of {name} on {devices} devices: {ended['status']}: {ended['error']}")
        self.told(job["id"], ended)
        plan = ended["plan"]
        return None if plan is None else str(plan)

    def waited(self, job: str) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE_S
        while True:
            found: dict[str, Any] = self("GET", "/v1/jobs/{job_id}", job_id=job, headers={"prefer": "wait=5"}).json()
            if found.get("status") not in ("queued", "running") or time.monotonic() > until:
                return found

    def events(self, job: str) -> str:
        """The id of the last event; a stream that ended is taken up again, as browsers do."""
        last, until = "0", time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            answer = self("GET", "/v1/jobs/{job_id}/events", job_id=job, headers={"last-event-id": last})
            if answer.status_code == 204:
                break
            fields = [line.partition(": ") for line in answer.text.splitlines() if line]
            last = ([v for k, _, v in fields if k == "id"] or [last])[-1]
        return last

    def told(self, job: str, ended: dict[str, Any]) -> None:
        """A webhook came, says how the job ended, and is signed with the key that the request came with."""
        until = time.monotonic() + 30.0
        while job not in self.receiver.taken:
            if time.monotonic() > until:
                self.wrong.append(f"no webhook came of job {job}")
                return
            time.sleep(0.05)
        document, signed = self.receiver.taken[job]
        if document["status"] != ended["status"] or document["plan"] != ended["plan"]:
            self.wrong.append(f"the webhook of job {job} says {document}")
        given, body = signed.split()
        moment, sent = (part.partition("=")[2] for part in given.split(","))
        secret = hashlib.sha256(self.key.encode()).hexdigest().encode()
        if not hmac.compare_digest(
            sent, hmac.new(secret, f"{moment}.".encode() + bytes.fromhex(body), "sha256").hexdigest()
        ):
            self.wrong.append(f"the signature of the webhook of job {job} is wrong")

    def artifacts(self, plan: str, rng: random.Random) -> None:
        kept = self("GET", "/v1/plans/{plan_id}", (200,), plan_id=plan)
        tag = kept.headers.get("etag", "")
        self("GET", "/v1/plans/{plan_id}", (304,), plan_id=plan, headers={"if-none-match": tag})
        self("GET", "/v1/plans/{plan_id}", (404,), plan_id=plan, headers=self.other)
        listed = self("GET", "/v1/plans/{plan_id}/artifacts", (200,), plan_id=plan).json()
        names = [entry["name"] for entry in listed["items"]]
        for name in rng.sample(names, min(6, len(names))):
            self.fetched("/v1/plans/{plan_id}/artifacts/{name}", plan_id=plan, name=name)
        self("GET", "/v1/plans/{plan_id}/artifacts/{name}", (404,), plan_id=plan, name="nothing.zip")
        self.fetched("/v1/plans/{plan_id}/explanation", plan_id=plan)

    def fetched(self, template: str, **given: Any) -> httpx.Response:
        """What is made first, asked for until it is there."""
        until = time.monotonic() + PATIENCE_S
        while True:
            answer = self("GET", template, (200, 202, 422), **given)
            if answer.status_code != 202 or time.monotonic() > until:
                return answer
            time.sleep(0.2)

    def compared(self, a: str, b: str) -> None:
        self.fetched("/v1/diffs/{a}/{b}", a=a, b=b)
        self.fetched("/v1/diffs/{a}/{b}", a=a, b=b, headers={"accept": "text/html"})
        self("GET", "/v1/diffs/{a}/{b}", (406,), a=a, b=b, headers={"accept": "image/png"})
        self("GET", "/v1/diffs/{a}/{b}", (404,), a=a, b="0" * 32)
        self.fetched("/v1/transfers/{a}/{b}", a=b, b=a, params={"lost": "1"})

    def evaluated(self, plans: list[str], rng: random.Random) -> None:
        queries: list[dict[str, Any]] = [{"strategy": "fsdp", "devices": 2, "webhook": self.receiver.url}]
        for query in [*queries, *({"plan": p} for p in plans[:1])]:
            body = {"content": MODELS["mlp"], "headers": ONNX} if "strategy" in query else {}
            job = self("POST", "/v1/evaluations", (200, 202), params=query, **body).json()
            self.waited(job["id"])
        self("POST", "/v1/evaluations", (422,), params={"devices": 2})

    def batch(self, rng: random.Random) -> None:
        requests = [self.query(rng, devices) for devices in (2, 4)] + [{"devices": 2, "target": "megatron"}]
        for given, status in ((requests, 202), ([], 422), ([{"devices": 0}], 422), ([{"device": 1}], 422)):
            form = {"model": MODELS["mlp"], "requests": json.dumps(given).encode()}
            answer = self("POST", "/v1/batches", (status,), files=form)
            for job in answer.json().get("jobs", []):
                ended = self.waited(job["id"])
                if given[answer.json()["jobs"].index(job)].get("webhook"):
                    self.told(job["id"], ended)

    def pages(self) -> None:
        for template in ("/v1/jobs", "/v1/plans"):
            query: dict[str, Any] = {"limit": 2}
            for _ in range(4):
                found = self("GET", template, (200,), params=query).json()
                if not found.get("next"):
                    break
                query = dict(httpx.URL(found["next"]).params)
            self("GET", template, (400,), params={"cursor": "not one of ours"})

    def ended_early(self, rng: random.Random) -> None:
        """Jobs that are cancelled, forgotten too soon, and refused."""
        query = {**self.query(rng, 8), "space": "whole"}
        job = self("POST", "/v1/plans", (200, 202), params=query, content=MODELS["gpt_tiny"], headers=ONNX).json()["id"]
        self("DELETE", "/v1/jobs/{job_id}", (204, 409), job_id=job)
        if self("POST", "/v1/jobs/{job_id}:cancel", (200, 404), job_id=job).status_code == 200:
            self.told(job, self.waited(job))
            self("DELETE", "/v1/jobs/{job_id}", (204,), job_id=job)
        bad = self("POST", "/v1/plans", (200, 202), params=self.query(rng, 2), content=rng.randbytes(40), headers=ONNX)
        ended = self.waited(bad.json()["id"])
        if ended["status"] != "failed" or not str(ended["error"]["type"]).endswith("input-invalid"):
            self.wrong.append(f"what is no model is {ended['status']}: {ended['error']}")
        self.told(bad.json()["id"], ended)
