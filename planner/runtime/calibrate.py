"""Measures this machine and fits a profile to it."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

from planner.cost_models import load_profile
from planner.cost_models.calibrate import FitError, base_document, calibrated_text, fit_device, fit_links
from planner.errors import UsageError
from planner.runtime.measure.collectives import measure_collectives
from planner.runtime.measure.interference import measure_interference
from planner.runtime.measure.operators import measure_operators
from planner.runtime.workers import Workers

__all__ = ["Calibration", "calibrate"]

# Width of the large products.  On a GPU a product of 4096 fills its units some eight times over, and the largest
# vectors (four times its square) lie beyond its caches; at 8192 these take 1 GiB each, and nothing more is learned.
SCALE = {"cpu": 1024, "cuda": 4096}
_TILES = ("device.compute_units", "device.tile_rows", "device.tile_columns", "device.tile_depth")
_TILE_NOTE = (
    "derived: 2 * units * rows * columns * depth is the measured work that fills the matrix units, and all that prices "
    "read of them"
)


@dataclass(frozen=True, slots=True)
class Calibration:
    """A fitted profile as TOML, its values by dotted key, and the errors of the fit by class."""

    text: str
    values: Mapping[str, float | int]
    errors: Mapping[str, FitError]
    samples: int


def calibrate(
    name: str,
    *,
    base: str,
    processes: int,
    threads: int = 1,
    device: str = "cpu",
    quick: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Calibration:
    """Runs the microbenchmarks on `processes` processes at once and fits the profile `base` to them.

    UsageError where the device is not there; `processes` below 2 leave the links as they are.
    """
    if device == "cuda" and torch.cuda.device_count() < processes:
        raise UsageError(
            f"--device cuda: {processes} processes need as many GPUs, found {torch.cuda.device_count()}; "
            "give fewer --processes, or --device cpu"
        )
    start = load_profile(base)
    with Workers(processes, device=device, threads=threads) as workers:
        say(f"measuring operators on {processes} processes")
        operators = measure_operators(workers, scale=SCALE[device], quick=quick)
        say(f"measured {len(operators)} operators; measuring collectives")
        collectives = measure_collectives(workers, quick=quick) if processes > 1 else []
        interference = measure_interference(workers, quick=quick) if processes > 1 else None
    found = fit_device(start, operators)
    values: dict[str, float | int] = {**found.values, "device.memory_bytes": _memory(device, processes)}
    errors = dict(found.errors)
    if collectives:
        links = fit_links(start, collectives, protocol="gloo" if device == "cpu" else "nccl")
        values |= links.values
        errors |= links.errors
    if interference is not None:
        values["framework.collective_interference"] = round(interference, 3)
    where = torch.cuda.get_device_name() if device == "cuda" else f"{_processor()}, {threads} thread(s) a process"
    source = f"measured: {processes} processes on {where}; PyTorch {torch.__version__}; {datetime.now(UTC):%Y-%m-%d}"
    text = calibrated_text(
        base_document(base),
        values,
        name=name,
        description=f"{where}: measured by planner calibrate, the rest as in {base}",
        source=source,
        notes=dict.fromkeys(_TILES, _TILE_NOTE),
    )
    return Calibration(text, values, errors, len(operators) + len(collectives))


def _memory(device: str, processes: int) -> int:
    """Bytes of one device: of a host each process's share."""
    if device == "cuda":
        return int(torch.cuda.get_device_properties(0).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // processes


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
