"""A plan.json taken at its word: its problem on a given profile, its choice, its program.

Unlike `recall`, nothing is searched or completed: the mesh, every operator's strategy, the layouts of parameters and
every redistribution, step by step, are those of the file.  Only the states of hubs and outputs are not written down;
they follow from the moves (`_Choice`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner.cost_models import HardwareProfile
from planner.errors import InputError
from planner.ir import DeviceMesh, Graph, Layout
from planner.lowering import Program
from planner.lowering.check import check_program
from planner.planning.document import PlanDocument
from planner.planning.least_memory import beside, edges_of_hubs
from planner.planning.programs import each_once, program_of
from planner.planning.roles import role_from_text
from planner.planning.targets import said_by
from planner.pricing import (
    Machine,
    PricedProblem,
    PriceTables,
    Redistribution,
    Settings,
    active_tensors,
    bind_rules,
    price,
)
from planner.pricing.hubs import Read, SetHub, StarHub, direct_moves
from planner.pricing.memory import recomputed_blocks
from planner.pricing.priced import Reader
from planner.search.problem import FORBIDDEN

__all__ = ["Restored", "restore_part", "settings_of"]

_Way = tuple[bool, Layout, Layout]  # a move: of the gradient?, source, target


@dataclass(frozen=True, eq=False)
class Restored:
    """`choice` holds a state for every node of the priced problem, which has no memory limit; `program` is what the
    plan says to run, and what is to be priced."""

    priced: PricedProblem
    choice: tuple[int, ...]
    program: Program


def settings_of(plan: PlanDocument) -> Settings:
    """What the plan was made for."""
    s = plan.schedule
    return Settings(s.mode == "training", s.precision, s.optimizer, s.target, recompute=bool(s.recompute))


def restore_part(
    plan: PlanDocument,
    graph: Graph,
    profile: HardwareProfile,
    source: str,
    tables: dict[DeviceMesh, PriceTables] | None = None,
) -> Restored:
    """The part of the plan that one micro-batch is, on the devices of one stage, as it was planned before it was cut;
    on `profile`, whatever it was planned for.

    `source` is what messages call the plan; `tables` keeps what was priced for further plans of this graph, profile and
    settings, recomputation aside.

    InputError where it is no plan of `graph`, contradicts itself, or where the profile cannot price its mesh.
    """
    _check_mesh(plan, profile, source)
    _check_model(plan, graph, source)
    try:
        program = program_of(plan, graph)
    except InputError as e:
        raise InputError(f"{source}: {str(e).removeprefix('plan: ')}") from e
    except (KeyError, ValueError) as e:
        raise InputError(f"{source}: its layouts cannot be understood ({e}); search again") from e
    wrong = check_program(program)
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise InputError(f"{source}: {wrong[0]}{more}; search again")
    settings = settings_of(plan)
    graph = said_by(settings.target, graph)
    rules, _ = bind_rules(graph)
    active = active_tensors(graph, rules) if settings.training else frozenset[str]()
    known = None if tables is None else tables.setdefault(plan.mesh, PriceTables())
    priced = price(graph, Machine(profile, plan.mesh, settings), rules, active, None, known)
    return Restored(priced, _Choice(plan, priced, source).states(), program)


def _check_mesh(plan: PlanDocument, profile: HardwareProfile, source: str) -> None:
    mesh, name = plan.mesh, plan.stages[0].mesh
    if plan.devices != plan.cluster.devices:
        raise InputError(
            f"{source}: at meshes.{name}: expected the {plan.cluster.devices} devices of cluster.devices, found "
            f"{len(plan.stages)} of mesh {mesh}, {plan.devices} in all; search again"
        )
    if len(set(mesh.names)) < len(mesh.names):
        raise InputError(f"{source}: at meshes.{name}.axes: expected distinct names, found {', '.join(mesh.names)}")
    known = len(mesh.axes) if profile.axes is None else len(profile.axes.alpha)
    if any(size > 1 for size in mesh.shape[known:]):
        raise InputError(
            f"{source}: at meshes.{name}.axes: expected at most the {known} mesh axes that hardware profile "
            f"{profile.name} has prices for, found {len(mesh.axes)} ({mesh}); choose another --hardware"
        )


def _check_model(plan: PlanDocument, graph: Graph, source: str) -> None:
    """That the plan speaks of this very graph; what differs first is named."""
    missing = [op for op in graph.ops if op.name not in plan.operators]
    if missing:
        raise InputError(
            f"{source}: at operators: expected the {len(graph.ops)} operators of the model {graph.name}, found "
            f"{len(graph.ops) - len(missing)} of them: {missing[0].name} ({missing[0].type}) is not there; "
            f"give the model that was planned ({plan.model.name})"
        )
    for name in graph.inputs:
        shape = graph.tensors[name].shape
        found = None if shape is None else list(shape)
        planned = plan.inputs.get(name)
        if planned is None or planned.shape != found:
            expected = "none" if planned is None else planned.shape
            same = graph.name == plan.model.name
            other = "" if same else f", or give the model that was planned ({plan.model.name}; this is {graph.name})"
            raise InputError(
                f"{source}: at inputs.{name}: expected shape {expected} as planned, found {found} in the model; "
                f"bind it as it was planned (--batch, --bind){other}"
            )
    if graph.digest != plan.model.digest:
        raise InputError(
            f"{source}: at model.digest: expected the model that was planned ({plan.model.name}, "
            f"{plan.model.digest[:12]}), found another one ({graph.name}, {graph.digest[:12]}); search again"
        )
    stored = [t.name for t in graph.parameters if t.name in graph.consumers]
    made = [o for op in graph.ops for o in op.outputs if o and graph.tensors[o].shape is not None]
    for field, names, known in (("parameters", stored, plan.parameters), ("tensors", [*stored, *made], plan.tensors)):
        absent = next((n for n in names if n not in known), None)
        if absent is not None:
            raise InputError(
                f"{source}: at {field}: expected all {len(names)}, found nothing of {absent}; search again"
            )
    for name in stored:
        there, here = (d.layout() for d in (plan.parameters[name].stored, plan.tensors[name].layout))
        if there != here:
            raise InputError(f"{source}: at parameters.{name}.stored: expected {here} as in tensors, found {there}")
    blocks = {name: k for k, block in enumerate(plan.schedule.recompute) for name in block}
    if blocks and blocks != recomputed_blocks(graph):
        raise InputError(
            f"{source}: at schedule.recompute: expected the blocks of equal layers, found {len(blocks)} operators in "
            f"{len(plan.schedule.recompute)} other blocks; search again"
        )


class _Choice:
    """The state of every node.

    Operators and parameters have theirs in the file.  A hub that keeps a set is in the smallest one that serves its
    readers; one that keeps a single layout in that from which the readers' moves start; an output of the graph in the
    layout that its tensor is moved to for no operator.
    """

    def __init__(self, plan: PlanDocument, priced: PricedProblem, source: str) -> None:
        self.plan, self.priced, self.source = plan, priced, source
        self.chosen: dict[int, int] = {}
        self.ways: dict[tuple[str, str], list[_Way]] = defaultdict(list)  # (tensor, reader) → its moves
        self.readers: dict[str, dict[str, None]] = {}  # tensor → those for whom it is moved, "" for all
        for r in each_once(plan):
            source_layout, target = (end.layout() for end in (r.source, r.target))
            self.ways[r.tensor, r.reader].append((r.direction == "gradient", source_layout, target))
            self.readers.setdefault(r.tensor, {})[r.reader] = None
        self.edges = edges_of_hubs(priced)

    def states(self) -> tuple[int, ...]:
        self._operators()
        self._parameters()
        for tensor, readers in self.priced.readers.items():
            ends = [r for r in readers if not r.name]
            if tensor in self.priced.hubs:
                self._hub(tensor, ends[0] if ends else None)
            elif ends:
                self.chosen[ends[0].node] = self._delivered(tensor, ends[0])[0]
        self._as_stated()
        return tuple(self.chosen[n] for n in range(len(self.priced.problem.nodes)))

    def _as_stated(self) -> None:
        """Where another state of a hub means the very moves of the file, and the cheapest does not, it is that one."""
        choice = [self.chosen[n] for n in range(len(self.priced.problem.nodes))]
        for tensor, (node, _) in self.priced.hubs.items():
            if self._moved(tensor, choice):
                continue
            costs, held = beside(self.priced.problem, self.edges[node], node, choice)
            for state in np.lexsort((held, costs)).tolist():
                choice[node] = state
                if costs[state] < FORBIDDEN and self._moved(tensor, choice):
                    self.chosen[node] = state
                    break
            choice[node] = self.chosen[node]

    def _moved(self, tensor: str, choice: Sequence[int]) -> bool:
        """Whether the moves of the choice are those of the file, in its order for each reader and way."""
        found: dict[tuple[str, bool], list[_Way]] = defaultdict(list)
        for m in self.priced.redistribution_plan(tensor, choice).moves:
            found[m.reader, m.gradient].append(_way(m))
        stated: dict[tuple[str, bool], list[_Way]] = defaultdict(list)
        for reader in self.readers.get(tensor, ()):
            for way in self.ways[tensor, reader]:
                stated[reader, way[0]].append(way)
        return found == stated

    def _operators(self) -> None:
        priced, names = self.priced, self.priced.machine.mesh.names
        index: dict[int, Mapping[object, int]] = {}
        for name, node in priced.op_nodes.items():
            strategies = priced.tables[name].strategies
            if id(strategies) not in index:  # layers that look alike share their tables
                index[id(strategies)] = {s.roles: k for k, s in enumerate(strategies)}
            roles = self.plan.operators[name].strategy
            state = index[id(strategies)].get(tuple(role_from_text(roles[n]) for n in names))
            if state is None:
                raise self._wrong(f"operators.{name}.strategy", "one that the operator offers", str(roles))
            if priced.problem.nodes[node].costs[state] >= FORBIDDEN:
                allowed = f"one that hardware profile {priced.machine.profile.name} and the target allow"
                raise self._wrong(f"operators.{name}.strategy", allowed, str(roles))
            self.chosen[node] = state

    def _parameters(self) -> None:
        for name, node in self.priced.parameter_nodes.items():
            stored = self.plan.parameters[name].stored.layout()
            layouts = self.priced.stored_layouts[name]
            if stored not in layouts:
                raise self._wrong(f"parameters.{name}.stored", "an even split with nothing pending", str(stored))
            self.chosen[node] = layouts.index(stored)

    def _hub(self, tensor: str, end: Reader | None) -> None:
        """The state of least cost, and then of least memory, of those that the moves leave."""
        node, hub = self.priced.hubs[tensor]
        states = list(range(len(hub.states))) if isinstance(hub, SetHub) else self._stars(tensor, hub)
        found: list[tuple[int, int, dict[int, int]]] = []
        for ends in [{}] if end is None else [{end.node: s} for s in self._delivered(tensor, end)]:
            costs, held = beside(self.priced.problem, self.edges[node], node, {**self.chosen, **ends})
            allowed = [s for s in states if costs[s] < FORBIDDEN]
            if allowed:
                best = min(allowed, key=lambda s: (costs[s], held[s]))
                found.append((int(costs[best]), int(held[best]), {node: best, **ends}))
        if not found:
            raise self._wrong(f"redistributions of {tensor}", "moves that serve every reader of it", "others")
        self.chosen |= min(found, key=lambda f: f[:2])[2]

    def _stars(self, tensor: str, hub: StarHub) -> list[int]:
        """States from which every operator's own moves start, and in which its gradient's end."""
        start = self._produced(tensor)
        reached = {start, *(b for gradient, _, b in self.ways[tensor, ""] if not gradient)}
        found = [k for k, (layout, _) in enumerate(hub.states) if layout in reached]
        for reader in self.priced.readers[tensor]:
            if reader.name:
                reads, own = self._reads(reader), set(self.ways[tensor, reader.name])
                found = [k for k in found if own == {_way(m) for r in reads for m in direct_moves(hub.states[k], r)}]
        return found

    def _reads(self, reader: Reader) -> tuple[Read, ...]:
        return reader.combinations[reader.rows[self.chosen[reader.node]]]

    def _produced(self, tensor: str) -> Layout:
        return self.plan.tensors[tensor].layout.layout()

    def _delivered(self, tensor: str, end: Reader) -> list[int]:
        """States of an output that the shared moves can mean: where they lead for no operator, if anywhere."""
        shared = [(a, b) for gradient, a, b in self.ways[tensor, ""] if not gradient]
        there = list(dict.fromkeys([self._produced(tensor), *(b for _, b in shared)]))
        read = {x for r in self.priced.readers[tensor] if r.name for x, _ in self._reads(r)}
        alone = [x for x in there if x not in read and x not in {a for a, _ in shared} and x in {b for _, b in shared}]
        states = {reads[0][0]: row for row, reads in enumerate(end.combinations)}
        rows = [states[x] for x in alone or there if x in states]
        found = [int(np.flatnonzero(end.rows == row)[0]) for row in rows]
        if not found:
            delivered = ", ".join(map(str, there))
            raise self._wrong(f"tensors.{tensor}", "an output delivered with nothing pending", delivered)
        return found

    def _wrong(self, field: str, expected: str, found: str) -> InputError:
        return InputError(f"{self.source}: at {field}: expected {expected}, found {found}; search again")


def _way(m: Redistribution) -> _Way:
    return m.gradient, m.source, m.target
