"""CPU seconds that pricing takes, from a graph with its rules to the Problem of every mesh the search looks at.

`python -m tests.bench.pricing_speed MODEL.onnx [--batch 256] [--devices 64] [--profile a100-80] [--json]` from the
repository root.  Every round prices a graph of its own, so that nothing is known from the round before but what
belongs to no graph (layouts of tensor shapes); the first one is cold.

structure    what no mesh changes: classes of operators, nodes, edges, and which of them are alike
strategies   every strategy of every operator: whether the mesh allows it, its layouts, its price
moves        the price of every step of every redistribution
problem      shortest ways between layouts, tensors with several readers, memory, nodes and edges
recompute    the second Problem of the mesh, in which blocks run again in the backward pass
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import planner.pricing.cases as cases_module
from planner.cost_models import load_profile
from planner.frontends import load_model
from planner.ir import Graph
from planner.planning.meshes import logical_meshes
from planner.pricing import Machine, PriceTables, Settings, active_tensors, bind_rules, price
from planner.pricing.structure import structure_of
from planner.pricing.tables import operator_tables
from planner.redistribute import Redistributions

__all__ = ["main", "measure"]

PARTS = ("structure", "strategies", "moves", "problem", "recompute")


def measure(graph: Graph, devices: int, profile_name: str) -> dict[str, Any]:
    """CPU seconds by part, and the strategies priced, over all meshes."""
    profile = load_profile(profile_name)
    rules, _ = bind_rules(graph)
    active = active_tensors(graph, rules)
    spent = dict.fromkeys(PARTS, 0.0)
    counts = {"meshes": 0, "strategies": 0, "classes": 0}
    seconds_by_mesh: dict[str, float] = {}
    begun = time.process_time()
    structure_of(graph, rules, active, training=True)
    spent["structure"] = time.process_time() - begun
    with _timed(spent):
        for mesh in logical_meshes(devices):
            tables, machine = PriceTables(), Machine(profile, mesh, Settings(training=True))
            begun, parts = time.process_time(), spent["strategies"] + spent["moves"]
            priced = price(graph, machine, rules, active, None, tables)
            middle = time.process_time()
            spent["problem"] += middle - begun - (spent["strategies"] + spent["moves"] - parts)
            again = replace(machine, settings=Settings(training=True, recompute=True))
            price(graph, again, rules, active, None, tables)
            spent["recompute"] += time.process_time() - middle
            seconds_by_mesh[str(mesh)] = time.process_time() - begun
            distinct = {id(t): t for t in priced.tables.values()}
            counts["meshes"] += 1
            counts["classes"] = len(distinct)
            counts["strategies"] += sum(len(t.costs) for t in distinct.values())
    return {**counts, "parts": spent, "meshes_s": seconds_by_mesh, "total_s": sum(spent.values())}


class _timed:
    """Times the calls that price strategies and steps while it is entered.

    They are exchanged where they are looked up, which types do not allow; the product has no hook for a stopwatch.
    """

    def __init__(self, spent: dict[str, float]) -> None:
        self.spent = spent
        self.tables, self.moves = operator_tables, Redistributions.of_all

    def __enter__(self) -> None:
        cases_module.operator_tables = self._within("strategies", self.tables)  # type: ignore[attr-defined]
        Redistributions.of_all = staticmethod(self._within("moves", self.moves))  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        cases_module.operator_tables = self.tables  # type: ignore[attr-defined]
        Redistributions.of_all = self.moves  # type: ignore[method-assign]

    def _within(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            begun = time.process_time()
            try:
                return call(*arguments)
            finally:
                self.spent[part] += time.process_time() - begun

        return timed


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="CPU seconds of pricing a model on every mesh")
    parser.add_argument("model", type=Path)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--devices", type=int, default=64)
    parser.add_argument("--profile", default="a100-80")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    graph = load_model(given.model, batch=given.batch)
    rounds = [measure(replace(graph), given.devices, given.profile) for _ in range(given.rounds)]
    if given.json:
        print(json.dumps(rounds, indent=1))
        return 0
    first = rounds[0]
    print(
        f"{given.model.name}: {len(graph.ops)} operators of {first['classes']} classes, {first['meshes']} meshes of "
        f"{given.devices}, {first['strategies']} strategies"
    )
    print("CPU seconds" + "".join(f"{p:>12}" for p in (*PARTS, "total")))
    for number, found in enumerate(rounds, 1):
        figures = (*found["parts"].values(), found["total_s"])
        print(f"round {number:<5}" + "".join(f"{x:12.3f}" for x in figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
