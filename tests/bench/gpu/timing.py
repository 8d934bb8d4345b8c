"""Medians of times on the device, what the device says of itself, and results as JSON lines.

A time is that between two events in the device's own queue.  The host hands over the first event, the work and the last
event while the device is held up by a kernel that only waits, so that the time holds no gap in which the device waits
for the host.  Where there is no GPU, the host's clock is read instead: to try the scripts, not to measure.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, TextIO

import torch

__all__ = ["Lines", "Timer", "copies_for", "describe", "nvidia_smi", "sleep_cycles"]

COLD_BYTES = 160 << 20  # operand sets that take turns fill at least as much: three times the 50 MB of L2
MOST_COPIES = 64
_TOGETHER = 5  # calls handed over at once, while the device waits
_HOLD_S, _LONGEST_HOLD_S = 0.2e-3, 20.0e-3
_CYCLES_PER_S = 1.7e9
_QUERY = "clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_event_reasons.active"


def copies_for(size: int, least: int = 2) -> int:
    """Operand sets of `size` bytes that together lie beyond the caches."""
    return max(least, min(MOST_COPIES, -(-COLD_BYTES // max(size, 1))))


def sleep_cycles(seconds: float) -> int:
    """Cycles for which `torch.cuda._sleep` waits about so long."""
    return int(seconds * _CYCLES_PER_S)


class Timer:
    """Times calls on `device`; `budget_s` bounds the time spent on one measurement."""

    def __init__(self, device: torch.device, budget_s: float = 0.12) -> None:
        self.device, self.budget_s = device, budget_s

    @property
    def on_gpu(self) -> bool:
        return bool(self.device.type == "cuda")

    def synchronize(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def measure(self, calls: Sequence[Callable[[], Any]], *, least: int = 5, most: int = 40) -> dict[str, Any]:
        """Median, least, most and count of the seconds of one call, and the seconds the host took to hand one over; the
        calls, on operands of their own, take turns."""
        for call in calls[:2]:
            call()
        self.synchronize()
        begin = time.perf_counter()
        for call in calls[-2:]:
            call()
        host = (time.perf_counter() - begin) / min(2, len(calls))
        self.synchronize()
        once = max((time.perf_counter() - begin) / min(2, len(calls)), 1e-6)
        rounds = int(max(least, min(most, self.budget_s / once)))
        times = self._on_gpu(calls, rounds, host) if self.on_gpu else self._on_host(calls, rounds)
        found = {"median_s": median(times), "min_s": min(times), "max_s": max(times), "host_s": host}
        return {**found, "count": len(times)}

    def _on_host(self, calls: Sequence[Callable[[], Any]], rounds: int) -> list[float]:
        times = []
        for i in range(rounds):
            begin = time.perf_counter()
            calls[i % len(calls)]()
            times.append(time.perf_counter() - begin)
        return times

    def _on_gpu(self, calls: Sequence[Callable[[], Any]], rounds: int, host: float) -> list[float]:
        pairs = []
        hold = min(_LONGEST_HOLD_S, _HOLD_S + 2 * _TOGETHER * host)
        for i in range(rounds):
            first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            if i % _TOGETHER == 0:  # the queue is empty here: hold the device until the next ones are handed over
                torch.cuda.synchronize(self.device)
                torch.cuda._sleep(sleep_cycles(hold))
            first.record()
            calls[i % len(calls)]()
            last.record()
            pairs.append((first, last))
        torch.cuda.synchronize(self.device)
        return [a.elapsed_time(b) * 1e-3 for a, b in pairs]


class Lines:
    """Results as JSON lines in a file, each written at once, and shown in short."""

    def __init__(self, path: Path | None, *, quiet: bool = False) -> None:
        self._file: TextIO | None = None if path is None else path.open("a", encoding="utf-8")
        self.quiet, self.count = quiet, 0

    def put(self, row: dict[str, Any]) -> None:
        self.count += 1
        text = json.dumps(row)
        if self._file is not None:
            self._file.write(text + "\n")
            self._file.flush()
        if not self.quiet:
            print(text, flush=True)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def nvidia_smi() -> dict[str, str]:
    """Clocks, power and temperature as the driver reports them; empty where it does not."""
    try:
        asked = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
        said = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    values = [v.strip() for v in said.splitlines()[0].split(",")] if said.strip() else []
    return dict(zip(_QUERY.split(","), values, strict=False))


def describe(device: torch.device) -> dict[str, Any]:
    """Machine and versions."""
    out: dict[str, Any] = {"torch": torch.__version__, "device": device.type, "threads": torch.get_num_threads()}
    if device.type == "cuda":
        p = torch.cuda.get_device_properties(device)
        out |= {"gpu": p.name, "memory_bytes": p.total_memory, "units": p.multi_processor_count}
        out |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(), "l2_bytes": p.L2_cache_size}
        out["capability"] = list(torch.cuda.get_device_capability(device))
        try:
            asked = ["nvidia-smi", "--query-gpu=driver_version,clocks.max.sm,power.limit", "--format=csv,noheader"]
            out["driver"] = subprocess.run(asked, capture_output=True, text=True, timeout=10).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            out["driver"] = None
    return out
