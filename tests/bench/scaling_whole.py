"""How the search of the whole strategy grows with layers and with devices, in CPU seconds from file to plan.

    python -m tests.bench.scaling_whole [--out docs/scaling-whole.svg] [--quick]

measures, prints a table and draws it (drawing needs matplotlib).  The models are Llamas of the builder, each searched
by the command line with every lever (`--space whole`) and no cache, in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.bench.scaling import children_s

__all__ = ["main"]

LAYERS: Final = (8, 16, 32, 64, 96, 128)
DEVICES: Final = (8, 32, 128, 512, 2048, 8192)
AT_DEVICES: Final = 512  # what stays while layers grow
AT_LAYERS: Final = 32  # what stays while devices grow
SIZES: Final = {"hidden": 4096, "heads": 32, "ffn": 11008, "vocab": 32000, "seq": 4096}
HARDWARE: Final = "h100"
_SAMPLES: Final = 4  # of a device


@dataclass(frozen=True, slots=True)
class Point:
    """`configurations`: how many were in question; `cpu_s`: of the whole command."""

    layers: int
    devices: int
    operators: int
    configurations: int
    simulated: int
    cpu_s: float
    gap: float
    step_s: float
    parallelism: str


def measure(layers: int, devices: int) -> Point:
    from planner.builder import build

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(build("llama", {**SIZES, "layers": layers, "batch": _SAMPLES * devices}).SerializeToString())
        command = [sys.executable, "-m", "planner.cli.main", "search", str(path), "--devices", str(devices)]
        command += [
            "--hardware",
            HARDWARE,
            "--space",
            "whole",
            "--no-cache",
            "--out",
            str(Path(folder) / "out"),
            "--json",
        ]
        alone = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        begun = children_s()
        done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **alone})
        spent = children_s() - begun
    plan: dict[str, Any] = json.loads(done.stdout)
    uniform = plan["uniform"]
    return Point(
        layers,
        devices,
        plan["operators"],
        uniform["considered"],
        uniform["simulated"],
        spent,
        plan["gap"],
        plan["step_time_s"],
        uniform["best"][0]["parallelism"],
    )


def _table(points: Sequence[Point]) -> str:
    head = (
        "| layers | operators | devices | configurations | simulated | CPU s | step | gap | plan |",
        "|" + "---:|" * 8 + "---|",
    )
    rows = (
        f"| {p.layers} | {p.operators:,} | {p.devices:,} | {p.configurations:,} | {p.simulated:,} | {p.cpu_s:.1f} | "
        f"{p.step_s:.4g} s | {p.gap:.2%} | {p.parallelism} |"
        for p in points
    )
    return "\n".join((*head, *rows))


def _draw(by_layers: Sequence[Point], by_devices: Sequence[Point], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    pyplot.rcParams["svg.hashsalt"] = "scaling"
    figure, sides = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True)
    sides[0].set_ylabel("CPU seconds, file to plan")
    for axes, points, value, title in (
        (sides[0], by_layers, lambda p: p.layers, f"layers, on {AT_DEVICES} devices"),
        (sides[1], by_devices, lambda p: p.devices, f"devices, {AT_LAYERS} layers"),
    ):
        at = [value(p) for p in points]
        axes.plot(at, [p.cpu_s for p in points], marker="o")
        axes.set_xscale("log", base=2)
        axes.set_xticks(at, [f"{n:,}" for n in at])
        axes.set_ylim(bottom=0)
        axes.set_xlabel(title)
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true", help="the ends of both ranges alone")
    options = parser.parse_args()
    layers, devices = (LAYERS[::5], DEVICES[::5]) if options.quick else (LAYERS, DEVICES)
    by_layers = [measure(n, AT_DEVICES) for n in layers]
    by_devices = [measure(AT_LAYERS, n) for n in devices]
    print(_table(by_layers), _table(by_devices), sep="\n\n")
    if options.out:
        _draw(by_layers, by_devices, options.out)


if __name__ == "__main__":
    main()
