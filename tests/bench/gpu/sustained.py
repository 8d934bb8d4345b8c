"""What the clock and the power limit leave of a rate that is asked for seconds on end.

Run as `python -m tests.bench.gpu.sustained --out FILE.jsonl [--seconds N] [--device cpu --tiny]`.  Each line is one
operator: the rate of every half second, and what the driver said meanwhile of clocks, power and temperature.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from tests.bench.gpu.timing import Lines, describe, nvidia_smi
from tests.bench.gpu.work import Place

__all__ = ["main"]

_AT_ONCE_S = 0.1  # so much work is handed over between two readings of the clock


def _cases(place: Place) -> Iterator[tuple[str, float, float, list[Callable[[], Any]], float]]:
    """Name, operations and bytes of a call, calls that take turns, and the share of the time."""
    for n, dtype, share in ((8192, torch.bfloat16, 1.0), (4096, torch.bfloat16, 0.7), (8192, torch.float32, 0.5)):
        n = place.size(n)
        torch.backends.cuda.matmul.allow_tf32 = True
        pairs = [(place.normal(n, n, dtype=dtype), place.normal(n, n, dtype=dtype)) for _ in range(4)]
        calls: list[Callable[[], Any]] = [lambda a=a, b=b: torch.mm(a, b) for a, b in pairs]
        yield f"product {n}, {'tf32' if dtype is torch.float32 else 'bf16'}", 2.0 * n**3, 0.0, calls, share
    zeros = [(torch.zeros(place.size(8192), place.size(8192), device=place.device, dtype=torch.bfloat16))] * 2
    calls = [lambda a=zeros[0], b=zeros[1]: torch.mm(a, b)]
    yield "product 8192 of zeros, bf16", 2.0 * place.size(8192) ** 3, 0.0, calls, 0.3
    n = place.size(1 << 27)
    moved = [(place.normal(n), place.normal(n)) for _ in range(2)]
    calls = [lambda a=a, b=b: a.add_(b) for a, b in moved]
    yield "add in place, bf16", 0.0, 6.0 * n, calls, 0.5


def _run(place: Place, calls: list[Callable[[], Any]], seconds: float) -> dict[str, Any]:
    gpu = place.device.type == "cuda"

    def wait() -> None:
        if gpu:
            torch.cuda.synchronize()

    states: list[dict[str, Any]] = []
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            states.append({"at_s": time.perf_counter() - begin, **nvidia_smi()})
            over.wait(0.7)

    for call in calls:
        call()
    wait()
    at = time.perf_counter()
    calls[0]()
    wait()
    once = max(time.perf_counter() - at, 1e-5)
    number, count, done, marks = 0, max(1, int(_AT_ONCE_S / once)), 0, []
    begin = time.perf_counter()
    thread = threading.Thread(target=watch)
    thread.start()
    while (now := time.perf_counter()) - begin < seconds:
        for _ in range(count):
            calls[number % len(calls)]()
            number += 1
        wait()
        marks.append((now - begin, (time.perf_counter() - now) / count))
        done += count
    over.set()
    thread.join()
    tenth = max(1, len(marks) // 10)
    return {
        "first_s": sum(s for _, s in marks[:1]),
        "last_s": sum(s for _, s in marks[-3 * tenth :]) / len(marks[-3 * tenth :]),
        "seconds_of_a_call": [[round(at, 2), s] for at, s in marks[::tenth]],
        "states": states,
        "calls": done,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file of JSON lines that is added to")
    parser.add_argument("--seconds", type=float, default=8.0, help="of the first operator; others take a part of it")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="sizes for a trial without a GPU")
    options = parser.parse_args()
    place = Place(torch.device(options.device), options.tiny)
    lines = Lines(options.out)
    lines.put({"group": "machine", **describe(place.device), "state": nvidia_smi()})
    for name, flops, moved, calls, share in _cases(place):
        row: dict[str, Any] = {"group": "sustained", "name": name, "flops": flops, "bytes": moved}
        row |= _run(place, calls, options.seconds * share)
        for which in ("first", "last"):
            row[f"{which}_tflops"] = flops / row[f"{which}_s"] * 1e-12
            row[f"{which}_gbps"] = moved / row[f"{which}_s"] * 1e-9
        lines.put(row)
        time.sleep(0.5)
    lines.close()


if __name__ == "__main__":
    main()
