"""Alpa's answers and ours, compared: plans found or pinned, their collectives, and prices by Alpa's own formulas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from planner.cost_models import HardwareProfile, alpha_beta_profile
from planner.ir import DeviceMesh, Graph, Op
from planner.lowering import Program, lower
from planner.planning import Request, make_plan
from planner.pricing import Machine, Settings, active_tensors, bind_rules, price
from planner.redistribute.steps import FREE
from planner.search.problem import FORBIDDEN
from planner.search.solve import solve

__all__ = [
    "INFERENCE",
    "TRAINING",
    "Found",
    "Links",
    "Roles",
    "counts",
    "inner_counts",
    "of_weights",
    "paid",
    "pinned",
    "planned",
]

Roles = tuple[str | None, ...]  # per mesh axis the factor that it splits, None for any

TRAINING = Settings(training=True, precision="fp32", optimizer="adam")
INFERENCE = Settings(training=False, precision="fp32")


@dataclass(frozen=True)
class Links:
    """A mesh with the alpha and beta of its axes."""

    shape: tuple[int, int]
    alpha: tuple[float, float] = (1, 1)
    beta: tuple[float, float] = (1, 1)
    recompute: bool = False  # Alpa's allow_recompute_heavy_op: products may be repeated on the ranks of an axis

    @property
    def profile(self) -> HardwareProfile:
        return replace(alpha_beta_profile(self.alpha, self.beta), heavy_operators_must_split=not self.recompute)

    def cost(self, kind: str, axis: int, size: float) -> float:
        """Alpa's LogicalDeviceMesh, of `size` bytes."""
        n = self.shape[axis]
        if kind == "all_to_all":  # with Alpa's factor of half the ranks
            return self.alpha[axis] + self.beta[axis] * (n - 1) / n / 2 * size + 0.001
        times, offset = {"all_reduce": (2, 0.01), "all_gather": (1, 0.1), "reduce_scatter": (1, 0.001)}[kind]
        return self.alpha[axis] + self.beta[axis] * times * (n - 1) / n * size + offset


@dataclass(frozen=True, eq=False)
class Found:
    program: Program
    stored: dict[str, str]
    objective: float
    gap: float = 0.0

    @property
    def weights(self) -> dict[str, str]:
        return {n.removesuffix(".weight"): x for n, x in self.stored.items() if n.endswith(".weight")}


def planned(
    graph: Graph, links: Links, settings: Settings = TRAINING, recompute: Literal["auto", "blocks"] = "auto"
) -> Found:
    mesh = DeviceMesh.of(*links.shape)
    plan = make_plan(graph, Request(mesh.devices, links.profile, settings, meshes=(mesh,), recompute=recompute))
    stored = {n: str(x) for n, x in plan.assignment.stored.items()}
    return Found(plan.program, stored, plan.objective_s, plan.objective_gap)


def pinned(
    graph: Graph,
    links: Links,
    roles: Callable[[Op], Roles | None],
    stored: Callable[[str], set[str]],
    settings: Settings = TRAINING,
) -> Found:
    """The cheapest plan among those that run operators, and store parameters, as told.

    `roles`: what the mesh axes do for an operator, None for any; `stored`: the admitted layouts of a parameter.
    """
    mesh = DeviceMesh.of(*links.shape)
    rules, _ = bind_rules(graph)
    active = active_tensors(graph, rules)
    machine = Machine(links.profile, mesh, settings)
    priced = price(graph, machine, rules, active, None)
    nodes = list(priced.problem.nodes)

    def pin(node: int, allowed: list[bool]) -> None:
        assert any(allowed), nodes[node].name
        nodes[node] = replace(nodes[node], costs=np.where(allowed, nodes[node].costs, FORBIDDEN))

    for op in graph.ops:
        wanted = roles(op)
        if wanted is not None:
            offered = [tuple(map(str, s.roles)) for s in priced.tables[op.name].strategies]
            allowed = [all(w in (None, f) for w, f in zip(wanted, factors, strict=True)) for factors in offered]
            pin(priced.op_nodes[op.name], allowed)
    for name, node in priced.parameter_nodes.items():
        pin(node, [str(x) in stored(name) for x in priced.stored_layouts[name]])
    solution = solve(replace(priced.problem, nodes=nodes))
    assert solution.cost is not None, solution.status
    assert solution.bound is not None
    assignment = priced.decode(solution.choice)
    program = lower(graph, mesh, rules, active, assignment)
    layouts = {n: str(x) for n, x in assignment.stored.items()}
    return Found(program, layouts, solution.cost * machine.unit_s, 1 - solution.bound / max(1, solution.cost))


def of_weights(roles: Callable[[str], Roles]) -> Callable[[Op], Roles | None]:
    """Roles of the products with a weight, by its name."""
    return lambda op: roles(op.inputs[1]) if op.type == "MatMul" and op.inputs[1].endswith(".weight") else None


def counts(found: Found) -> dict[str, int]:
    """Collectives by kind, of a parameter and its gradient combined into one per set of axes; scalars ignored."""
    single: Counter[str] = Counter()
    combined = set()
    for redistribution in found.program.redistributions():
        if found.program.graph.tensors[redistribution.tensor].elements <= 1:
            continue
        for step in redistribution.steps:
            if step.kind in FREE:
                continue
            if redistribution.tensor in found.stored:
                combined.add((str(step.kind), step.axes, redistribution.gradient))
            else:
                single[str(step.kind)] += 1
    return dict(single + Counter(kind for kind, _, _ in combined))


def inner_counts(found: Found) -> dict[tuple[str, str], int]:
    """Collectives inside operators, by operator type and kind."""
    inner: Counter[tuple[str, str]] = Counter()
    for op in found.program.graph.ops:
        for c in found.program.strategies[op.name].inner:
            inner[op.type, c.kind] += c.count
    return dict(inner)


def paid(found: Found, links: Links) -> float:
    """The price of the program by Alpa's formulas, computed from its instructions without the planner's tables."""
    mesh, tensors = found.program.mesh, found.program.graph.tensors

    def cost(kind: str, over: tuple[str, ...], size: float) -> float:
        axes = [mesh.names.index(a) for a in over]
        if len(axes) == 1:
            return links.cost(kind, axes[0], size)
        return min(_over_two(links, kind, axes, size), _over_two(links, kind, axes[::-1], size))

    steps = [(s, c.tensor) for c in found.program.redistributions() for s in c.steps if s.kind not in FREE]
    between = sum(cost(str(s.kind), s.axes, s.group_bytes(4 * tensors[t].elements, mesh)) for s, t in steps)
    inside = [c for s in found.program.strategies.values() for c in s.inner]
    return between + sum(c.count * cost(c.kind, c.axes, c.bytes) for c in inside)


def _over_two(links: Links, kind: str, axes: list[int], size: float) -> float:
    """Over one axis after the other; the second moves as much less as the first has ranks (a gather backwards)."""
    first, second = axes
    less = size / links.shape[first]
    if kind in ("all_gather", "reduce_scatter"):
        return links.cost(kind, first, size) + links.cost(kind, second, less)
    assert kind == "all_reduce"
    there_and_back = links.cost("reduce_scatter", first, size) + links.cost("all_gather", first, size)
    return there_and_back + links.cost("all_reduce", second, less)
