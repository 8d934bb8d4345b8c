"""CPU seconds that the clock takes for a large program.

    python -m tests.bench.clock_speed [--layers 384] [--model MODEL.onnx] [--devices 64] [--rounds 5] [--json]

A GPT of the builder of some 10,000 operators (or MODEL), data-parallel with the cheapest layouts otherwise, is lowered;
then

cold        `planner.clock.play` of the program in a process that has traced nothing of this graph: tracing and playing
traced      the same again, when what no program changes is known of the graph
begins      when every instruction begins, which is found for the plan that is written alone
schedule    another schedule of pipeline stages over the traced program, each of `SCHEDULES` once, the slowest of them

The bars are 0.3 s for 10,000 operators cold, and 5 ms for a schedule; each is printed with the share of its bar that it
takes.  Exit status 1: one is above its bar.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from planner.builder import build
from planner.clock import Configuration, play, predict, usual, workload_of_plan
from planner.cost_models import load_profile
from planner.frontends import import_bytes, load_model
from planner.garbage import collect_seldom
from planner.ir import DeviceMesh, Graph
from planner.lowering import lower
from planner.pricing import Machine, Settings, active_tensors, bind_rules, price
from planner.search.solve import solve

__all__ = ["main", "measure"]

COLD_S = 0.3  # of so many operators:
OPERATORS = 10_000
SCHEDULE_S = 0.005
STAGES, MICRO_BATCHES = 8, 64
SCHEDULES: Sequence[dict[str, Any]] = (
    {"schedule": "1f1b"},
    {"schedule": "1f1b", "virtual_stages": 2},
    {"schedule": "zb-h1"},
    {"schedule": "zb-v", "virtual_stages": 2},
    {"schedule": "1f1b", "zero": 3},
)


def graph_of(layers: int) -> Graph:
    model = build("gpt", {"layers": layers, "batch": 64, "hidden": 2048, "heads": 16})
    return import_bytes(model.SerializeToString(), name=f"gpt_{layers}")


def measure(graph: Graph, devices: int) -> dict[str, float]:
    """CPU seconds of the three, in this process."""
    rules, _ = bind_rules(graph)
    settings = Settings(training=True)
    active = active_tensors(graph, rules)
    machine = Machine(load_profile("a100-80"), DeviceMesh.of(devices), settings)
    priced = price(graph, machine, rules, active, None)
    choice = solve(priced.problem).choice
    assert choice is not None
    program = lower(graph, machine.mesh, rules, active, priced.decode(choice))
    found = {"operators": float(len(graph.ops))}
    for name in ("cold", "traced"):
        begun = time.process_time()
        timeline = play(priced, choice, program)
        found[name] = time.process_time() - begun
    begun = time.process_time()
    assert len(timeline.begins) == len(program.instructions)
    found["begins"] = time.process_time() - begun
    workload, plain = workload_of_plan(priced, program), usual(program, settings)
    predict(workload, plain, machine.profile)
    slowest = 0.0
    for changes in SCHEDULES:
        c: Configuration = plain.with_(**{"pp": STAGES, "micro_batches": MICRO_BATCHES, **changes})
        begun = time.process_time()
        predict(workload, c, machine.profile)
        slowest = max(slowest, time.process_time() - begun)
    return found | {"schedule": slowest}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=384)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--devices", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    if given.rounds == 1:
        collect_seldom()  # as the command line does
        graph = graph_of(given.layers) if given.model is None else load_model(given.model)
        print(json.dumps(measure(graph, given.devices)))
        return 0
    # Each round in a process of its own, so that nothing is known from the one before.
    arguments = [sys.executable, "-m", "tests.bench.clock_speed", "--rounds", "1", "--devices", str(given.devices)]
    arguments += ["--layers", str(given.layers)] if given.model is None else ["--model", str(given.model)]
    rounds = [
        json.loads(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout)
        for _ in range(given.rounds)
    ]
    best = {name: min(r[name] for r in rounds) for name in rounds[0]}
    bars = {"cold": COLD_S * best["operators"] / OPERATORS, "schedule": SCHEDULE_S}
    ratios = {name: best[name] / bar for name, bar in bars.items()}
    if given.json:
        print(json.dumps({"least": best, "of_bar": ratios, "rounds": rounds}, indent=1))
    else:
        print(f"{best['operators']:,.0f} operators, least of {given.rounds} rounds, CPU seconds")
        for name in ("cold", "traced", "begins", "schedule"):
            share = f"{ratios[name]:7.2f} of its bar" if name in ratios else ""
            print(f"{name:10}{best[name]:9.4f}{share}")
    return 1 if max(ratios.values()) > 1 else 0


if __name__ == "__main__":
    raise SystemExit(main())
