"""How quickly the service answers: `python -m tests.bench.service_latency [--rate 100] [--seconds 20] [--hostile]`.

Method.  `planner serve` runs in a process of its own with its defaults; the load comes from this process, another one
of the same machine, over loopback.  The loop is open: request i is due at i/rate after the beginning, whether or not
earlier ones were answered, and its time runs from when it was due until the last byte of its answer, so that a stall
counts for every request that it delays.  Requests go over kept connections, a free one each.  `processors_busy` is the
share of all processors that anything on the machine used meanwhile; `server_cpu_ms` a request.  Cases:

  post      the same model and options as a plan that exists: POST /v1/plans with `Prefer: wait=30`, answered by 200
  plan      GET /v1/plans/ID, compressed
  known     the same with If-None-Match, answered by 304
  health    GET /healthz

With --hostile, hostile models are uploaded and worked on all the while, so that children burn the processor.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.service.process import Served, served

GRAPHS = Path(__file__).parents[2] / "sample_graphs"
HOSTILE = Path(__file__).parents[1] / "hostile"
QUERY = "/v1/plans?devices=16&batch=64&name=gpt2_small"
ONNX = "content-type: application/octet-stream"


class Connections:
    """Kept connections to one server; grows as many as are busy at once."""

    def __init__(self, url: str) -> None:
        self.host, port = url.removeprefix("http://").split(":")
        self.port = int(port)
        self.free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self.opened = 0

    async def send(self, request: bytes) -> int:
        """The answer's status, once all of it is there."""
        if self.free:
            reader, writer = self.free.pop()
        else:
            reader, writer = await asyncio.open_connection(self.host, self.port)
            self.opened += 1
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode().lower().split("\r\n")
        length = next((int(line.split(":")[1]) for line in lines if line.startswith("content-length:")), 0)
        await reader.readexactly(length)
        self.free.append((reader, writer))
        return int(lines[0].split(" ")[1])


def request(method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1", *headers, f"content-length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


async def load(url: str, sent: bytes, rate: float, seconds: float, expected: int) -> dict[str, Any]:
    connections = Connections(url)
    took: list[float] = []
    wrong: list[int] = []
    late: list[float] = []
    begin = time.perf_counter() + 0.1

    async def one(due: float) -> None:
        late.append(time.perf_counter() - due)
        status = await connections.send(sent)
        took.append(time.perf_counter() - due)
        if status != expected:
            wrong.append(status)

    tasks = []
    for i in range(round(rate * seconds)):
        due = begin + i / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(one(due)))
    await asyncio.gather(*tasks)
    ms = np.sort(np.array(took)) * 1e3
    return {
        "requests": len(took),
        "rate_per_s": rate,
        "p50_ms": round(float(np.percentile(ms, 50)), 2),
        "p99_ms": round(float(np.percentile(ms, 99)), 2),
        "p999_ms": round(float(np.percentile(ms, 99.9)), 2),
        "max_ms": round(float(ms[-1]), 2),
        "sender_late_p99_ms": round(float(np.percentile(late, 99)) * 1e3, 2),
        "connections": connections.opened,
        "unexpected_statuses": sorted(set(wrong)),
    }


def plan(url: str) -> tuple[bytes, str]:
    """Plans a graph; its bytes, and the plan's id."""
    model = (GRAPHS / "gpt2_small.onnx").read_bytes()
    headers = {"content-type": "application/octet-stream", "prefer": "wait=60"}
    asked = urllib.request.Request(f"{url}{QUERY}", data=model, headers=headers, method="POST")
    with urllib.request.urlopen(asked, timeout=120) as answer:
        job = json.load(answer)
    assert job["status"] == "succeeded", job
    return model, job["plan"]


async def feed(url: str, seconds: float) -> dict[str, int]:
    """Uploads hostile models, one after the other, each as a job of its own; answers by status."""
    counts: dict[str, int] = {}
    until = time.monotonic() + seconds
    connections = Connections(url)
    models = [(p.stem, p.read_bytes()) for p in sorted(HOSTILE.glob("*.onnx"))]
    models.append(("large", bytes(20 * 2**20)))
    devices = 1
    while True:
        devices = devices % 4096 + 1
        for name, model in models:
            query = f"/v1/plans?devices={devices}&name={name}"
            status = await connections.send(request("POST", query, model, ONNX))
            counts[str(status)] = counts.get(str(status), 0) + 1
            await asyncio.sleep(0.05)
            if time.monotonic() > until:
                return counts


def cpu_share(before: Sequence[int], after: Sequence[int]) -> float:
    busy = [b - a for a, b in zip(before, after, strict=True)]
    return 1 - busy[3] / max(1, sum(busy))


def cpu() -> list[int]:
    return [int(x) for x in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]


async def measure(service: Served, rate: float, seconds: float, hostile: bool, chosen: Sequence[str]) -> dict[str, Any]:
    url = service.url
    model, found = await asyncio.to_thread(plan, url)
    with urllib.request.urlopen(f"{url}/v1/plans/{found}") as answer:
        tag = answer.headers["etag"]
    path = f"/v1/plans/{found}"
    cases = {
        "post": (request("POST", QUERY, model, ONNX, "prefer: wait=30"), 200),
        "plan": (request("GET", path, b"", "accept-encoding: gzip"), 200),
        "known": (request("GET", path, b"", f"if-none-match: {tag}"), 304),
        "health": (request("GET", "/healthz"), 200),
    }
    out: dict[str, Any] = {"plan_json_bytes": len(urllib.request.urlopen(f"{url}{path}").read()), "cases": {}}
    # A third process uploads: what that costs is not to delay the measuring.
    told = [sys.executable, "-m", "tests.bench.service_latency", "--feed", url]
    whole = str(len(chosen or cases) * (seconds + 3))
    feeding = subprocess.Popen([*told, "--seconds", whole], stdout=subprocess.PIPE, text=True) if hostile else None
    for name in chosen or cases:
        sent, expected = cases[name]
        await load(url, sent, rate, 1.0, expected)  # warm
        before, used = cpu(), service.cpu_s()
        out["cases"][name] = await load(url, sent, rate, seconds, expected)
        out["cases"][name]["processors_busy"] = round(cpu_share(before, cpu()), 2)
        out["cases"][name]["server_cpu_ms"] = round((service.cpu_s() - used) / (rate * seconds) * 1e3, 2)
    if feeding is not None:
        out["hostile_uploads_by_status"] = json.loads(feeding.communicate()[0])
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=100.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--case", action="append", choices=("post", "plan", "known", "health"), help="default: all")
    parser.add_argument("--hostile", action="store_true")
    parser.add_argument("--feed", metavar="URL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.feed:
        print(json.dumps(asyncio.run(feed(options.feed, options.seconds))))
        return
    with tempfile.TemporaryDirectory() as folder, served(Path(folder), "--queue", "100000") as service:
        found = asyncio.run(measure(service, options.rate, options.seconds, options.hostile, options.case))
    print(json.dumps({"processors": os.cpu_count(), **found}, indent=1))


if __name__ == "__main__":
    main()
