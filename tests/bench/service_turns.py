"""What a tenant waits for while another fills a service of one place with long work.

    python -m tests.bench.service_turns

Tenant `a` sends searches on four axes and evaluations of a pipeline; once they are under way, tenant `b` sends small
jobs one after the other, and then a long search.  Each line has the seconds until the job began, and until it ended."""

from __future__ import annotations

import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx

from planner.api.jobs.store import Store
from tests.service.process import served

SAMPLES = Path(__file__).parents[2] / "sample_graphs"
WIDE = {16: "2x2x2x2", 32: "2x2x2x4", 64: "2x2x4x4"}
UNDER_WAY_S = 15.0
OCTETS = {"content-type": "application/octet-stream"}
PATIENT = {"prefer": "wait=60"}


def main() -> None:
    with tempfile.TemporaryDirectory() as data:
        keys = {tenant: Store(Path(data)).keys.create(tenant, "")[1] for tenant in "ab"}
        with served(Path(data), "--workers", "1") as service:
            a, b = (_client(service.url, keys[tenant]) for tenant in "ab")
            with a, b:
                _flood(a)
                for model in ("mlp", "resnet18_tiny"):
                    _small(b, model)
                _large(b)


def _client(url: str, key: str) -> httpx.Client:
    return httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=120)


def _flood(client: httpx.Client) -> None:
    tiny, small = ((SAMPLES / f"{name}.onnx").read_bytes() for name in ("gpt_tiny", "gpt2_small"))
    for devices, mesh in WIDE.items():
        client.post("/v1/plans", params={"devices": devices, "mesh": mesh}, content=tiny, headers=OCTETS)
    for split in (1, 2, 4):
        for batch in (512, 1024, 2048):
            options = {"devices": 64, "strategy": f"megatron:tp={split},pp=4", "batch": batch}
            client.post("/v1/evaluations", params=options, content=small, headers=OCTETS)
    while not client.get("/v1/jobs?status=running").json()["items"]:
        time.sleep(0.1)
    time.sleep(UNDER_WAY_S)


def _small(client: httpx.Client, model: str) -> None:
    content = (SAMPLES / f"{model}.onnx").read_bytes()
    job = client.post("/v1/plans", params={"devices": 8}, content=content, headers=OCTETS).json()
    while job["status"] in ("queued", "running"):
        job = client.get(f"/v1/jobs/{job['id']}", headers=PATIENT).json()
    _tell(f"search of {model}", job)
    sent = time.monotonic()
    status = client.get(f"/v1/plans/{job['plan']}/artifacts/report.html", headers=PATIENT).status_code
    print(f"{'its report':30} {'':12} {time.monotonic() - sent:6.2f} s   {status}", flush=True)
    options = {"devices": 8, "strategy": "ddp"}
    job = client.post("/v1/evaluations", params=options, content=content, headers=OCTETS | PATIENT).json()
    _tell("an evaluation of it", job)


def _large(client: httpx.Client) -> None:
    content = (SAMPLES / "gpt_tiny.onnx").read_bytes()
    job = client.post("/v1/plans", params={"devices": 16, "mesh": "2x2x4"}, content=content, headers=OCTETS).json()
    while job["started_at"] is None:
        time.sleep(0.1)
        job = client.get(f"/v1/jobs/{job['id']}").json()
    _tell("a long search", job)


def _tell(what: str, job: dict[str, Any]) -> None:
    came, began, ended = (
        None if job[name] is None else datetime.fromisoformat(job[name])
        for name in ("created_at", "started_at", "finished_at")
    )
    assert came is not None
    began_s, ended_s = ("" if at is None else f"{(at - came).total_seconds():6.2f} s" for at in (began, ended))
    print(f"{what:30} {began_s:>12} {ended_s:>12}   {job['status']}", flush=True)


if __name__ == "__main__":
    main()
