"""What clients that stall cost the others: `python -m tests.bench.service_stalled [--readers 400] [--seconds 20]`.

Method.  `planner serve` runs in a process of its own without workers; this process plays the worker, and the clients,
over loopback.  Readers ask for a plan of 12 MB, as it is and compressed in turns, and never read; 500 event streams and
500 waiting requests of five tenants lie open, of which half is for jobs that change; 30 writes a second change the
store.  Meanwhile `GET /healthz`, `GET` of a small plan and `POST` of a model that was planned before are sent 50 a
second, each due at its time, once all have come.  Memory is what the server's process has resident, before any reader
came and at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from planner.api.jobs.blobs import Blob
from planner.api.jobs.store import Store
from tests.bench.service_latency import Connections
from tests.service.process import Served, served

PLAN_BYTES = 12_000_000
TENANTS = 5
SETTLED_S = 5.0  # until all have come
HEAD = "host: 127.0.0.1\r\nauthorization: Bearer {key}\r\n"
QUERY = "/v1/plans?devices=4"


def _resident_mb(served: Served) -> float:
    status = Path(f"/proc/{served.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


class Stalled:
    """The clients, and the worker whose events they wait for."""

    def __init__(self, store: Store, server: Served, readers: int) -> None:
        self.store, self.server, self.readers = store, server, readers
        self.keys = [store.keys.create(f"t{k}", "")[1] for k in range(TENANTS)]
        self.host, port = server.url.removeprefix("http://").split(":")
        self.port = int(port)
        self.open: list[asyncio.StreamWriter] = []

    async def ask(self, k: int, line: str, more: str = "", body: bytes = b"") -> tuple[str, bytes]:
        """The whole answer."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        writer.write(self._request(k, line, more + "connection: close\r\n", body))
        head, _, rest = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        return head.decode(), rest

    def _request(self, k: int, line: str, more: str = "", body: bytes = b"") -> bytes:
        length = f"content-type: application/octet-stream\r\ncontent-length: {len(body)}\r\n" if body else ""
        head = HEAD.format(key=self.keys[k % TENANTS])
        return f"{line} HTTP/1.1\r\n{head}{length}{more}\r\n".encode() + body

    async def stall(self, k: int, line: str, more: str = "") -> None:
        """Asks, and never reads."""
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=2**12)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(self._request(k, line, more))
        self.open.append(writer)
        del reader

    async def job(self, k: int, model: bytes) -> dict[str, Any]:
        _, body = await self.ask(k, f"POST {QUERY}", body=model)
        found: dict[str, Any] = json.loads(body)
        return found

    async def plan(self, model: bytes, content: bytes) -> str:
        """Path of a plan of the first tenant."""
        job = await self.job(0, model)
        claim = self.store.leases.claim("bench", (0, 1), 600.0)
        assert claim is not None
        blob = Blob(self.store.blobs.put(content), "application/json", len(content))
        self.store.leases.finish(claim, {"plan.json": blob}, {}, plan=blob.digest[:32])
        _, body = await self.ask(0, f"GET {job['links']['self']}")
        return str(json.loads(body)["links"]["plan"])

    async def measured(self, seconds: float) -> dict[str, Any]:
        small, large = await self.plan(b"small", b'"small"'), await self.plan(b"large", os.urandom(PLAN_BYTES))
        jobs = [await self.job(k, b"model %d" % k) for k in range(2 * TENANTS)]
        claims = [self.store.leases.claim("bench", (0, 1), 600.0) for _ in range(TENANTS)]
        await self.ask(0, f"GET {large}")
        before = _resident_mb(self.server)
        for k in range(self.readers):
            await self.stall(0, f"GET {large}", "accept-encoding: gzip\r\n" if k % 2 else "")
        for k in range(500):
            await self.stall(k, f"GET {jobs[k % len(jobs)]['links']['events']}")
            await self.stall(k, f"GET {jobs[k % len(jobs)]['links']['self']}", "prefer: wait=60\r\n")
        await asyncio.sleep(SETTLED_S)
        cpu, stop = self.server.cpu_s(), time.monotonic() + seconds
        times: dict[str, list[float]] = {"health": [], "plan": [], "post": []}
        lines = {
            "health": self._request(0, "GET /healthz"),
            "plan": self._request(0, f"GET {small}"),
            "post": self._request(0, f"POST {QUERY}", "prefer: wait=30\r\n", b"small"),
        }
        connections = Connections(self.server.url)

        async def one(name: str, due: float) -> None:
            await connections.send(lines[name])
            times[name].append(time.monotonic() - due)

        async def write() -> None:
            while time.monotonic() < stop:
                for claim in claims:
                    assert claim is not None
                    await asyncio.to_thread(self.store.leases.report, claim, [("progress", {"gap": 0.1})], {"gap": 0.1})
                    await asyncio.sleep(1 / 30)

        writing = asyncio.create_task(write())
        begun, sent = time.monotonic(), []
        while (due := begun + len(sent) / 50) < stop:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            sent.append(asyncio.create_task(one(tuple(times)[len(sent) % 3], due)))
        await asyncio.gather(*sent, writing)
        after, cpu = _resident_mb(self.server), round((self.server.cpu_s() - cpu) / seconds, 2)
        ms = {n: [round(1000 * float(np.quantile(t, q)), 1) for q in (0.5, 0.99, 1.0)] for n, t in times.items()}
        memory = {"before_mb": round(before), "after_mb": round(after)}
        return memory | {"p50_p99_max_ms": ms, "server_cpu": cpu, "load": os.getloadavg()[0]}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--readers", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        with served(Path(folder), "--workers", "0") as server:
            print(json.dumps(asyncio.run(Stalled(store, server, options.readers).measured(options.seconds)), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
