"""`GET /healthz` at a steady rate from a process of its own: an open loop, timed from when each was due."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any
from urllib.parse import urlsplit

__all__ = ["pulse", "quantiles"]


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> int:
    writer.write(f"GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    status = int((await reader.readuntil(b"\r\n")).split()[1])
    size = 0
    while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            size = int(value)
    await reader.readexactly(size)
    return status


async def _run(url: str, rate: float, told: Connection) -> None:
    host = urlsplit(url).netloc
    name, _, port = host.rpartition(":")
    free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    waits: list[tuple[float, float]] = []
    failed: list[str] = []

    async def once(due: float) -> None:
        try:
            while True:
                kept = bool(free)
                pair = free.pop() if kept else await asyncio.open_connection(name, int(port))
                try:
                    status = await _ask(*pair, host)
                    break
                except (OSError, asyncio.IncompleteReadError) as e:
                    pair[1].close()
                    # One that was kept open may have been closed for its idleness, and nothing was asked by it.
                    if not kept or (isinstance(e, asyncio.IncompleteReadError) and e.partial):
                        raise
            free.append(pair)
            if status != 200:
                failed.append(str(status))
        except (OSError, asyncio.IncompleteReadError) as e:
            failed.append(type(e).__name__)
        waits.append((due, time.perf_counter() - due))

    told.send("ready")
    begun = time.perf_counter()
    at_work: set[asyncio.Task[None]] = set()
    number = 0
    late = 0.0
    while not told.poll(0):
        due = begun + number / rate
        number += 1
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        late = max(late, time.perf_counter() - due)  # of this process, which is no fault of the server
        task = asyncio.create_task(once(due))
        at_work.add(task)
        task.add_done_callback(at_work.discard)
    if at_work:
        await asyncio.wait(at_work, timeout=30)
    told.recv()
    told.send({"waits": waits, "failed": failed, "unanswered": len(at_work), "own_delay_max_s": late})


def _main(url: str, rate: float, told: Connection) -> None:
    asyncio.run(_run(url, rate, told))


@contextmanager
def pulse(url: str, rate: float = 50.0) -> Iterator[dict[str, Any]]:
    """Asks while the block runs; what it yields has the figures behind it."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_main, args=(url, rate, there), daemon=True)
    process.start()
    assert here.poll(60)
    here.recv()
    out: dict[str, Any] = {}
    try:
        yield out
    finally:
        here.send("stop")
        if here.poll(60):
            out |= here.recv()
        process.join(10)
        process.kill()


def quantiles(waits: list[float]) -> dict[str, float]:
    """Milliseconds."""
    ranked = sorted(waits)
    if not ranked:
        return {}
    return {
        "requests": len(ranked),
        **{
            f"p{q:g}_ms": round(1e3 * ranked[min(len(ranked) - 1, int(len(ranked) * q / 100))], 2)
            for q in (50, 99, 99.9)
        },
        "max_ms": round(1e3 * ranked[-1], 2),
    }


if __name__ == "__main__":
    import sys

    with pulse(sys.argv[1]) as found:
        time.sleep(float(sys.argv[2]))
    print(json.dumps(quantiles([w for _, w in found["waits"]])))
