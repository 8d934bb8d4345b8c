"""`planner serve` as its user has it: a process, a worker beside it, a model, a plan."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from planner.api.jobs.sandbox import granted
from tests.service.http import ONNX
from tests.service.process import served

MODEL = Path(__file__).parents[2] / "sample_graphs" / "mlp.onnx"
QUERY = "/v1/plans?devices=4&name=mlp"


def _children(pid: int) -> list[int]:
    return [int(p) for found in Path(f"/proc/{pid}/task").glob("*/children") for p in found.read_text().split()]


def _until(what: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.05)


def _planned(c: httpx.Client, query: str) -> dict[str, Any]:
    """The job once it has ended, however busy the machine is."""
    job: dict[str, Any] = c.post(query, content=MODEL.read_bytes(), headers=ONNX | {"prefer": "wait=30"}).json()
    for _ in range(10):
        if job["finished_at"] is not None:
            break
        job = c.get(job["links"]["self"], headers={"prefer": "wait=30"}).json()
    assert job["status"] == "succeeded", job
    return job


def test_a_model_sent_to_the_service_becomes_the_plan_that_the_command_line_finds(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with (
        served(tmp_path / "data", "--workers", "1", log=log) as service,
        httpx.Client(base_url=service.url, timeout=60) as c,
    ):
        job = _planned(c, QUERY)
        plan = c.get(job["links"]["plan"]).content
        command = [sys.executable, "-m", "planner", "search", str(MODEL), "--devices", "4", "--no-cache"]
        subprocess.run([*command, "--out", str(tmp_path / "out")], check=True, capture_output=True)
        assert plan == (tmp_path / "out" / "plan.json").read_bytes()
        files = zipfile.ZipFile(io.BytesIO(c.get(f"{job['links']['artifacts']}/torch.zip").content))
        assert "lost.txt" in files.namelist()
        assert b"<!doctype html>" in c.get(f"{job['links']['artifacts']}/report.html").content
        assert c.get("/readyz").status_code == 200
        # A worker that is killed is begun again, and takes the work up.
        (worker,) = _children(service.process.pid)
        os.kill(worker, signal.SIGKILL)
        _planned(c, "/v1/plans?devices=2")
        (worker,) = _children(service.process.pid)
    assert service.process.returncode == 0
    _until(lambda: not Path(f"/proc/{worker}").exists())
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {"listening", "request", "worker ended"} <= {line["message"] for line in lines}
    said = [line["not_kept_from"] for line in lines if line["logger"] == "planner.sandbox"]
    assert said == [list(granted().missing)] * 3  # by the server, the worker, and the worker after that


def test_a_sandbox_that_is_no_mode_is_a_mistake_of_the_caller(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "planner", "serve", "--data", str(tmp_path), "--sandbox", "perhaps"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert found.returncode == 2
    assert "--sandbox 'perhaps': expected one of require, auto, off" in found.stderr


def test_the_worker_ends_when_the_server_is_killed(tmp_path: Path) -> None:
    with served(tmp_path / "data", "--workers", "1") as service:
        _until(lambda: _children(service.process.pid))
        (worker,) = _children(service.process.pid)
        service.process.kill()
        _until(lambda: not Path(f"/proc/{worker}").exists())


def test_a_damaged_store_ends_the_service_with_what_to_do(tmp_path: Path) -> None:
    log, data = tmp_path / "log", tmp_path / "data"
    with served(data, "--workers", "0", log=log) as service, httpx.Client(base_url=service.url, timeout=20) as c:
        assert c.post(QUERY, content=b"m", headers=ONNX).status_code == 202
        for name in ("store.sqlite", "store.sqlite-wal", "store.sqlite-shm"):
            with (data / name).open("r+b") as file:
                file.write(os.urandom((data / name).stat().st_size))
        assert c.get("/v1/jobs").status_code == 503
        assert service.process.wait(20) == 3
    assert log.read_text().count("the store is damaged") == 1
    assert "restore it, or move it away to begin anew" in log.read_text().splitlines()[-1]
