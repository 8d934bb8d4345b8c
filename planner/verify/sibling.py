"""A smaller sibling of a planned graph, run under the plan's strategies.

Where the whole graph is too large to execute, two of its equal layers are kept, and then, if that is not enough,
the batch and the other input dimensions (the sequence) are made smaller as far as the strategies still divide them.
Every operator keeps its strategy and every parameter its stored layout; conversions between them are found anew,
since the layers that met in the whole graph may not be neighbours in the sibling.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from cost_models import HardwareProfile
from planner.errors import InputError, PlannerError, VerificationError
from planner.frontends.rebind import rebind
from planner.frontends.siblings import cut_layers
from planner.ir import DeviceMesh, Graph, Layout, Role
from planner.lowering import Program, lower
from planner.pricing import Machine, Settings, active_tensors, bind_rules, price
from planner.rules.rule import Rule
from planner.rules.strategy import AxisRole, bind
from planner.search.problem import FORBIDDEN, Node
from planner.search.solve import solve

__all__ = ["Budget", "Sibling", "Work", "make_sibling", "work_of"]

LAYERS = 2


@dataclass(frozen=True, slots=True)
class Work:
    """What executing a graph once takes: multiply-adds count two; bytes of all tensors at single precision."""

    flops: float
    parameter_bytes: int
    activation_bytes: int


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be executed in reasonable time and memory on an ordinary machine."""

    flops: float
    parameter_bytes: int = 6 << 30
    activation_bytes: int = 3 << 30

    def holds(self, work: Work) -> bool:
        return (
            work.flops <= self.flops
            and work.parameter_bytes <= self.parameter_bytes
            and work.activation_bytes <= self.activation_bytes
        )


@dataclass(frozen=True, eq=False)
class Sibling:
    """`description` says what was made smaller."""

    graph: Graph
    program: Program
    description: str


def work_of(graph: Graph, rules: Mapping[str, Rule] | None = None) -> Work:
    """Forward work of the graph."""
    rules = bind_rules(graph)[0] if rules is None else rules
    produced = [graph.tensors[t] for op in graph.ops for t in op.outputs if t]
    return Work(
        sum(r.flops for r in rules.values()),
        4 * sum(t.elements for t in graph.parameters),
        4 * sum(t.elements for t in produced),
    )


def make_sibling(
    graph: Graph,
    mesh: DeviceMesh,
    roles: Mapping[str, tuple[AxisRole, ...]],
    stored: Mapping[str, Layout],
    settings: Settings,
    profile: HardwareProfile,
    budget: Budget,
) -> Sibling:
    """Cuts and shrinks until the budget holds.  VerificationError when nothing tried fits it.

    `roles` and `stored` are the plan's, by operator and by parameter.
    """
    cut, _ = cut_layers(graph, LAYERS)
    notes = [f"{LAYERS} of each run of equal layers"] if len(cut.ops) < len(graph.ops) else []
    for axis, sizes in _input_sizes(cut):
        if budget.holds(work_of(cut)):
            break
        smaller = _shrunk(cut, axis, sizes, mesh, roles, stored)
        if smaller is not None:
            cut, size = smaller
            notes.append(f"input dimension {axis} of {size} for {sizes}")
    if not budget.holds(work_of(cut)):
        work = work_of(cut)
        raise VerificationError(
            f"{graph.name}: even a sibling of {'; '.join(notes) or 'the same size'} takes {work.flops:.2g} FLOPs, "
            f"{work.parameter_bytes / 2**30:.1f} GiB of parameters and {work.activation_bytes / 2**30:.1f} GiB of "
            f"activations, more than is executed here; plan and verify a smaller variant of the model"
        )
    return Sibling(cut, _program(cut, mesh, roles, stored, settings, profile), "; ".join(notes) or "the whole graph")


def _input_sizes(graph: Graph) -> list[tuple[int, int]]:
    """(axis, size) classes of the data inputs' dimensions, the batch first."""
    fed = [graph.tensors[t] for t in graph.inputs if graph.tensors[t].role is Role.INPUT]
    return sorted({(a, s) for t in fed for a, s in enumerate(t.shape or ()) if s > 1})


def _shrunk(
    graph: Graph,
    axis: int,
    size: int,
    mesh: DeviceMesh,
    roles: Mapping[str, tuple[AxisRole, ...]],
    stored: Mapping[str, Layout],
) -> tuple[Graph, int] | None:
    """The graph with the smallest size of that dimension which its shapes and the plan's strategies allow."""
    fed = [graph.tensors[t] for t in graph.inputs if graph.tensors[t].role is Role.INPUT]
    places = [(t.name, axis) for t in fed if t.shape is not None and len(t.shape) > axis and t.shape[axis] == size]
    least = 1 if axis == 0 else 16  # a sequence of one would hide errors along it
    for candidate in [d for d in range(least, size) if size % d == 0]:
        try:
            smaller = rebind(graph, dict.fromkeys(places, candidate))
        except (InputError, ValueError):
            continue
        rules, _ = bind_rules(smaller)
        if all(bind(rules[op.name], mesh, roles[op.name]) is not None for op in smaller.ops):
            return smaller, candidate
    return None


def _program(
    graph: Graph,
    mesh: DeviceMesh,
    roles: Mapping[str, tuple[AxisRole, ...]],
    stored: Mapping[str, Layout],
    settings: Settings,
    profile: HardwareProfile,
) -> Program:
    rules, _ = bind_rules(graph)
    active = active_tensors(graph, rules) if settings.training else frozenset[str]()
    priced = price(graph, Machine(profile, mesh, settings), rules, active, None)
    nodes = list(priced.problem.nodes)

    def keep_only(node: int, state: int) -> None:
        costs = np.full_like(nodes[node].costs, FORBIDDEN)
        costs[state] = 0
        nodes[node] = Node(costs, name=nodes[node].name)

    for name, node in priced.op_nodes.items():
        found = [i for i, s in enumerate(priced.tables[name].strategies) if s.roles == roles[name]]
        if not found:
            raise VerificationError(f"sibling of {graph.name}: operator {name} does not offer the plan's strategy")
        keep_only(node, found[0])
    for name, node in priced.parameter_nodes.items():
        if stored[name] in priced.stored_layouts[name]:
            keep_only(node, priced.stored_layouts[name].index(stored[name]))
    solution = solve(replace(priced.problem, nodes=nodes))
    if not solution.choice:
        raise PlannerError(f"sibling of {graph.name}: no conversions join the plan's strategies ({solution.status})")
    return lower(graph, mesh, rules, active, priced.decode(solution.choice))
