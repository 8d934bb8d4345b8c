"""A plan made before, as a choice for a new problem: of the same model at another batch, limit or number of devices.

Operators keep their roles by mesh axis and parameters their stored layouts, where the new problem offers them.  What
does not carry over, and everything in between, is completed at least cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.errors import InputError
from planner.planning.document import PlanDocument
from planner.planning.roles import role_from_text
from planner.pricing import PricedProblem
from planner.search.control import Control
from planner.search.evaluate import evaluate
from planner.search.problem import FORBIDDEN, Edge, IntArray, Node, Problem
from planner.search.solve import solve

__all__ = ["Recall", "complete", "narrowed", "plain_choice"]

AllowedStates = Mapping[int, NDArray[np.int64]]  # node → the states it may take; all where it is not named
LEAST_SHARE = 0.5  # of the operators that must be found again


@dataclass(frozen=True, slots=True)
class Recall:
    """Finds `plan` again in priced problems; gives up after `seconds` (None: limits in work alone)."""

    plan: PlanDocument
    seconds: float | None = None

    def check(self, names: Sequence[str]) -> None:
        """InputError where the plan is of a model that shares too few of the operators `names`."""
        shared = sum(n in self.plan.operators for n in names)
        if names and shared < LEAST_SHARE * len(names):
            raise InputError(
                f"plan of {self.plan.model.name}: {shared} of the model's {len(names)} operators are in it, expected "
                f"at least half; give a plan of the same model to start from"
            )

    def choice(self, priced: PricedProblem, control: Control | None = None) -> tuple[int, ...] | None:
        """A valid choice that follows the plan; None where the mesh has another number of axes, another shape for as
        many devices, or nothing valid was found."""
        mesh, known = priced.machine.mesh, self.plan.mesh
        same = mesh == known
        if mesh.names != known.names or (not same and mesh.devices == known.devices):
            return None
        operators = self._operators(priced)
        if len(operators) < LEAST_SHARE * len(priced.op_nodes):
            return None
        both = operators | self._parameters(priced)
        return self._completed(priced, both, control) or self._completed(priced, operators, control)

    def _completed(
        self, priced: PricedProblem, allowed_states: AllowedStates, control: Control | None
    ) -> tuple[int, ...] | None:
        inner = None
        if self.seconds is not None or control is not None:
            left = None if control is None else control.left
            limits = [s for s in (self.seconds, left) if s is not None]
            inner = Control(min(limits, default=None), cancel=Control().cancel if control is None else control.cancel)
        return complete(priced.problem, allowed_states, inner)

    def _operators(self, priced: PricedProblem) -> dict[int, NDArray[np.int64]]:
        names = priced.machine.mesh.names
        index: dict[int, dict[tuple[object, ...], int]] = {}
        out = {}
        for name, node in priced.op_nodes.items():
            entry = self.plan.operators.get(name)
            if entry is None:
                continue
            strategies = priced.tables[name].strategies
            if id(strategies) not in index:  # layers that look alike share their tables
                index[id(strategies)] = {s.roles: k for k, s in enumerate(strategies)}
            try:
                roles = tuple(role_from_text(entry.strategy[n]) for n in names)
            except (KeyError, ValueError):
                continue
            state = index[id(strategies)].get(roles)
            if state is not None and priced.problem.nodes[node].costs[state] < FORBIDDEN:
                out[node] = np.array([state])
        return out

    def _parameters(self, priced: PricedProblem) -> dict[int, NDArray[np.int64]]:
        out = {}
        for name, node in priced.parameter_nodes.items():
            entry = self.plan.parameters.get(name)
            if entry is None:
                continue
            stored = entry.stored.layout()
            found = (k for k, layout in enumerate(priced.stored_layouts[name]) if layout == stored)
            state = next(found, None)
            if state is not None and priced.problem.nodes[node].costs[state] < FORBIDDEN:
                out[node] = np.array([state])
        return out


def plain_choice(priced: PricedProblem, control: Control) -> tuple[int, ...] | None:
    """A valid choice fast, not a good one: every operator whole on all devices, parameters stored where they cost or
    hold least; where memory forbids that, operators may take their cheapest states as well."""
    whole: dict[int, list[int]] = {}
    states: dict[int, list[int]] = {}
    for name, node in priced.op_nodes.items():
        strategies = priced.tables[name].strategies
        if id(strategies) not in states:  # layers that look alike share their tables
            found = [k for k, s in enumerate(strategies) if all(r.kind == "replicate" for r in s.roles)]
            states[id(strategies)] = found
        whole[node] = states[id(strategies)]
    problem = priced.problem
    if all(whole.values()):
        operators = {node: found[0] for node, found in whole.items()}
        for least_memory in (False, True):
            choice = _filled(problem, operators, set(priced.parameter_nodes.values()), least_memory=least_memory)
            if evaluate(problem, choice) is not None:
                return choice
    allowed_states: dict[int, NDArray[np.int64]] = {}
    shared: dict[tuple[int, int], NDArray[np.int64]] = {}
    for node, found in whole.items():
        costs = problem.nodes[node].costs
        key = id(costs), id(found)
        if key not in shared:
            shared[key] = np.array(sorted({*found, int(costs.argmin())}))
        allowed_states[node] = shared[key]
    return complete(problem, allowed_states, control)


def _filled(
    problem: Problem, operators: Mapping[int, int], parameters: set[int], *, least_memory: bool
) -> tuple[int, ...]:
    """Every other node in turn in the state that costs least beside those chosen before; with
    `least_memory`, parameters in the one that holds least."""
    chosen = dict(operators)
    edges: dict[int, list[Edge]] = {}
    for e in problem.edges:
        for v in (e.u, e.v):
            if v not in operators:
                edges.setdefault(v, []).append(e)
    rest = [v for v in range(len(problem.nodes)) if v not in operators and v not in parameters]
    for v in (*sorted(parameters), *rest):
        node = problem.nodes[v]
        costs = node.costs.astype(float)
        for e in edges.get(v, ()):
            other = e.v if e.u == v else e.u
            if other in chosen:
                costs += e.costs[:, chosen[other]] if e.u == v else e.costs[chosen[other]]
        allowed = costs < FORBIDDEN
        if least_memory and v in parameters and node.usage is not None and allowed.any():
            costs = np.where(allowed, node.usage, np.inf)
        chosen[v] = int(costs.argmin())
    return tuple(chosen[v] for v in range(len(problem.nodes)))


def complete(problem: Problem, allowed_states: AllowedStates, control: Control | None = None) -> tuple[int, ...] | None:
    """The best choice found with only the allowed states; None where there is none, or none in time."""
    found = solve(narrowed(problem, allowed_states), control=control)
    if not found.choice:
        return None
    choice = tuple(int(allowed_states[v][x]) if v in allowed_states else x for v, x in enumerate(found.choice))
    return choice if evaluate(problem, choice) is not None else None


def narrowed(problem: Problem, allowed_states: AllowedStates) -> Problem:
    """The problem with only the allowed states; arrays that were shared stay shared."""
    cut: dict[tuple[object, ...], IntArray] = {}

    def rows(array: IntArray, node: int, axis: int) -> IntArray:
        states = allowed_states.get(node)
        if states is None:
            return array
        key = (id(array), axis, states.tobytes())
        if key not in cut:
            cut[key] = np.ascontiguousarray(array.take(states, axis))
        return cut[key]

    def both(array: IntArray, edge: Edge) -> IntArray:
        return rows(rows(array, edge.u, 0), edge.v, 1)

    nodes: list[Node] = []
    for v, n in enumerate(problem.nodes):
        usage = None if n.usage is None else rows(n.usage, v, 0)
        nodes.append(replace(n, costs=rows(n.costs, v, 0), usage=usage))
    edges = [
        replace(e, costs=both(e.costs, e), usage=None if e.usage is None else both(e.usage, e)) for e in problem.edges
    ]
    return Problem(nodes, edges, problem.limit)
