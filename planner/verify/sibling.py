"""A smaller sibling of a planned graph, run under the plan's strategies.

Where the whole graph is too large to execute, two of its equal layers are kept, and then, if that is not enough,
dimensions are made smaller as far as the strategies still divide them (`planner.verify.shrink`).
Every operator keeps its strategy and every parameter its stored layout; conversions between them are found anew,
since the layers that met in the whole graph may not be neighbours in the sibling.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from cost_models import HardwareProfile
from planner.errors import PlannerError, VerificationError
from planner.frontends.experts import EXPERT_MATMUL
from planner.frontends.siblings import cut_layers
from planner.ir import DeviceMesh, Graph, Layout
from planner.lowering import Program, lower
from planner.pricing import Machine, Settings, active_tensors, bind_rules, price
from planner.rules.rule import Rule
from planner.rules.strategy import AxisRole
from planner.search.problem import FORBIDDEN, Node
from planner.search.solve import solve
from planner.verify.shrink import Shrinker

__all__ = ["Budget", "Sibling", "Work", "make_sibling", "work_of"]

LAYERS = (2, 1)  # how many of each run are kept: two that meet, or one where two are too large


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
    computing = [op for op in graph.ops if rules[op.name].kind != "free"]  # the others give views of their operands
    produced = sum(graph.tensors[t].elements for op in computing for t in op.outputs if t)
    # The reference makes the weights of every token, where a rank groups the tokens.
    spelled = sum(int(rules[op.name].flops) // 2 for op in graph.ops if op.type == EXPERT_MATMUL)
    return Work(
        sum(r.flops for r in rules.values()), 4 * sum(t.elements for t in graph.parameters), 4 * (produced + spelled)
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
    for keep in LAYERS:
        cut, _ = cut_layers(graph, keep)
        notes = [f"{keep} of each run of equal layers"] if len(cut.ops) < len(graph.ops) else []
        steps = Shrinker(mesh, roles).steps(cut)
        while not budget.holds(work := work_of(cut)) and (smaller := next(steps, None)) is not None:
            cut, note = smaller
            notes.append(note)
        if budget.holds(work):
            program = _program(cut, mesh, roles, stored, settings, profile)
            return Sibling(cut, program, "; ".join(notes) or "the whole graph")
    raise VerificationError(
        f"{graph.name}: even a sibling of {'; '.join(notes) or 'the same size'} takes {work.flops:.2g} FLOPs, "
        f"{work.parameter_bytes / 2**30:.1f} GiB of parameters and {work.activation_bytes / 2**30:.1f} GiB of "
        f"activations, more than is executed here; plan and verify a smaller variant of the model"
    )


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
