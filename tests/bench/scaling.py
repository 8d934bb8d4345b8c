"""How import, pricing and search grow with layers and with devices, in CPU seconds.

`python -m tests.bench.scaling [--out docs/scaling.svg] [--quick]` from the repository root measures, prints a table
and draws it (drawing needs matplotlib).  The models are GPTs of the builder; all one- and two-dimensional meshes are
searched.  Every point runs in a process of its own, so that nothing is warm but the interpreter.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["Point", "children_s", "main", "measure"]

LAYERS = (8, 16, 24, 32, 48, 64, 96)
DEVICES = (8, 16, 32, 64, 128, 256, 512, 1024)
AT_DEVICES, AT_LAYERS = 64, 24  # what stays while the other grows
PHASES = ("import", "pricing", "search", "rest")


@dataclass(frozen=True, slots=True)
class Point:
    layers: int
    devices: int
    operators: int
    meshes: int
    seconds: dict[str, float]
    gap: float


def measure(layers: int, devices: int) -> Point:
    """Plans one model in this process.  Pricing and search are told apart by timing the calls to `price`."""
    import onnx

    import planner.planning.outer as outer
    from planner.builder import build
    from planner.cost_models import load_profile
    from planner.frontends import load_model
    from planner.planning import Request, make_plan
    from planner.pricing import Settings

    spent = dict.fromkeys(PHASES, 0.0)
    price = outer.price

    def timed(*arguments: Any) -> Any:
        begun = time.process_time()
        try:
            return price(*arguments)
        finally:
            spent["pricing"] += time.process_time() - begun

    outer_search = outer.search_options

    def searched(*arguments: Any) -> Any:
        begun, priced = time.process_time(), spent["pricing"]
        found = outer_search(*arguments)
        spent["search"] += time.process_time() - begun - (spent["pricing"] - priced)
        return found

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        sizes = {"layers": layers, "batch": 4 * devices, "hidden": 2048, "heads": 16, "seq": 1024}
        onnx.save(build("gpt", sizes), path)
        begun = time.process_time() + children_s()
        graph = load_model(path)
        spent["import"] = time.process_time() + children_s() - begun
    profile = load_profile("a100-80")
    planner_module = sys.modules["planner.planning.planner"]
    outer.price, planner_module.search_options = timed, searched  # type: ignore[attr-defined]
    begun = time.process_time()
    plan = make_plan(graph, Request(devices, profile, Settings(training=True)))
    spent["rest"] = time.process_time() - begun - spent["pricing"] - spent["search"]
    return Point(layers, devices, len(graph.ops), len(plan.candidates), spent, plan.gap)


def children_s() -> float:
    """CPU seconds of the processes that this one began, and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _apart(layers: int, devices: int) -> Point:
    command = [sys.executable, "-m", "tests.bench.scaling", "--one", str(layers), str(devices)]
    alone = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **alone})
    return Point(**json.loads(done.stdout))


def _table(points: list[Point]) -> str:
    lines = ["| layers | operators | devices | meshes | " + " | ".join(PHASES) + " | gap |", "|" + "---:|" * 9]
    for p in points:
        seconds = " | ".join(f"{p.seconds[phase]:.2f}" for phase in PHASES)
        lines.append(f"| {p.layers} | {p.operators} | {p.devices} | {p.meshes} | {seconds} | {100 * p.gap:.3f} % |")
    return "\n".join(lines)


def _draw(by_layers: list[Point], by_devices: list[Point], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    pyplot.rcParams["svg.hashsalt"] = "scaling"
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True)
    for axes, points, value, title in (
        (left, by_layers, lambda p: p.layers, f"layers, on {AT_DEVICES} devices"),
        (right, by_devices, lambda p: p.devices, f"devices, {AT_LAYERS} layers"),
    ):
        for phase in PHASES[:3]:
            x, y = [value(p) for p in points], [p.seconds[phase] for p in points]
            axes.plot(x, y, marker="o", label=phase)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks([value(p) for p in points], [str(value(p)) for p in points])
        axes.set_xlabel(title)
        axes.grid(alpha=0.3)
    left.set_ylabel("CPU seconds, all meshes")
    left.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=2, type=int, metavar=("LAYERS", "DEVICES"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true", help="the ends of both ranges alone")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(asdict(measure(*options.one))))
        return
    layers, devices = (LAYERS[::6], DEVICES[::7]) if options.quick else (LAYERS, DEVICES)
    by_layers = [_apart(n, AT_DEVICES) for n in layers]
    by_devices = [_apart(AT_LAYERS, n) for n in devices]
    print(_table(by_layers), _table(by_devices), sep="\n\n")
    if options.out:
        _draw(by_layers, by_devices, options.out)


if __name__ == "__main__":
    main()
