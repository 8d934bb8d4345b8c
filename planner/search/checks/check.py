"""The checker: recomputes from a problem and a certificate, in exact integers, what the certificate claims.

It shares no code with the solvers.  The choice is priced entry by entry, its memory added up at every instant at which
it changes; the bound is the least over the leaves of the proof, whose tree has to cover every choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.search.certificates.certificate import Certificate, Leaf, Proof, Split, problem_digest
from planner.search.checks.dual import Arithmetic, Overflow, Refused, WorkBudget, leaf_minimum
from planner.search.problem import FORBIDDEN, Edge, Node, Problem

__all__ = ["Verdict", "check", "proven_bound"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """`cost` of the choice and `bound` on all valid ones as recomputed (None: no choice was claimed; no bound
    follows), `infeasible` whether the proof shows that there is none; `defects` say which claims do not hold."""

    cost: int | None
    peak_memory: int | None
    bound: int | None
    infeasible: bool
    defects: tuple[str, ...]

    @property
    def accepted(self) -> bool:
        return not self.defects

    @property
    def optimal(self) -> bool:
        """Whether the choice is proven optimal."""
        return self.accepted and self.cost is not None and self.bound is not None and self.bound >= self.cost


def check(problem: Problem, certificate: Certificate) -> Verdict:
    """What holds of the certificate's claims.  Never raises for what a certificate may contain."""
    defects: list[str] = []
    if certificate.problem != problem_digest(problem):
        defects.append("the certificate is of another problem: its digest differs")
    cost = peak = bound = None
    infeasible = False
    if certificate.choice is not None:
        try:
            cost, peak = _price(problem, certificate.choice)
        except Refused as e:
            defects.append(f"the choice: {e}")
        else:
            if cost != certificate.cost:
                defects.append(f"the cost claimed is {certificate.cost}; the choice costs {cost}")
    elif certificate.cost is not None:
        defects.append(f"a cost of {certificate.cost} is claimed without a choice")
    try:
        bound = proven_bound(problem, certificate.proof)
        infeasible = bound is None
    except Refused as e:
        defects.append(f"the proof: {e}")
    else:
        if bound is None and cost is not None:
            defects.append("the proof shows that no choice is valid, and yet this one is: the checker is at fault")
        elif bound is not None and certificate.bound is None:
            defects.append(f"the proof does not show that no choice is valid, only a bound of {bound}")
        elif bound is not None and certificate.bound is not None and certificate.bound > bound:
            defects.append(f"the bound claimed is {certificate.bound}; the proof shows {bound}")
    return Verdict(cost, peak, bound, infeasible, tuple(defects))


def proven_bound(problem: Problem, proof: Proof) -> int | None:
    """The lower bound that the proof shows; None: that no choice is valid.  `Refused` where it shows nothing."""
    if not proof:
        raise Refused("it is empty")
    least: int | None = None
    visited: set[int] = set()
    work = WorkBudget()
    stack: list[tuple[int, dict[int, NDArray[np.bool_]]]] = [(0, {})]
    while stack:
        position, allowed = stack.pop()
        if position in visited:
            raise Refused(f"item {position} is the child of two splits")
        visited.add(position)
        item = proof[position]
        if isinstance(item, Split):
            stack += _children(problem, proof, position, item, allowed)
            continue
        value = _leaf_bound(problem, item, position, allowed, work)
        if value is not None and (least is None or value < least):
            least = value
    if len(visited) < len(proof):
        raise Refused(f"item {min(set(range(len(proof))) - visited)} is the child of no split")
    return least


def _children(
    problem: Problem, proof: Proof, position: int, split: Split, allowed: dict[int, NDArray[np.bool_]]
) -> list[tuple[int, dict[int, NDArray[np.bool_]]]]:
    """The children with their restrictions; `Refused` unless they cover what is allowed here."""
    name = f"item {position} splits node {split.node}"
    if not 0 <= split.node < len(problem.nodes):
        raise Refused(f"{name}: there are {len(problem.nodes)} nodes")
    size = len(problem.nodes[split.node].costs)
    here = allowed.get(split.node, np.ones(size, bool))
    if len(split.states) != len(split.children):
        raise Refused(f"{name}: {len(split.states)} sets of states for {len(split.children)} children")
    covered = np.zeros(size, bool)
    out = []
    for states, child in zip(split.states, split.children, strict=True):
        if not position < child < len(proof):
            raise Refused(f"{name}: expected children from {position + 1} to {len(proof) - 1}, found {child}")
        if any(not 0 <= x < size for x in states):
            raise Refused(f"{name}: expected states below {size}")
        mask = np.zeros(size, bool)
        mask[list(states)] = True
        covered |= mask
        out.append((child, {**allowed, split.node: here & mask}))
    missing = np.flatnonzero(here & ~covered)
    if len(missing):
        raise Refused(f"{name}: no child allows state {missing[0]}")
    return out


def _leaf_bound(
    problem: Problem, leaf: Leaf, position: int, allowed: dict[int, NDArray[np.bool_]], work: WorkBudget
) -> int | None:
    name = f"item {position}"
    if leaf.denominator < 1:
        raise Refused(f"{name}: the denominator is {leaf.denominator}")
    if leaf.prices and problem.limit is None:
        raise Refused(f"{name}: prices memory, and there is no limit")
    if any(p < 0 for _, p in leaf.prices):
        raise Refused(f"{name}: a price is negative")
    if len({t for t, _ in leaf.prices}) < len(leaf.prices):
        raise Refused(f"{name}: an instant has two prices")
    _distinct(leaf.order, len(problem.nodes), f"{name}: the order")
    if leaf.messages is not None:
        _distinct(
            sorted({v for pair in leaf.messages.edges for v in pair}), len(problem.nodes), f"{name}: the messages"
        )
    try:
        value = leaf_minimum(problem, leaf, allowed, Arithmetic(), work)
    except Overflow:
        value = leaf_minimum(problem, leaf, allowed, Arithmetic(wide=True), work)
    except Refused as e:
        raise Refused(f"{name}: {e}") from None
    if value is None:
        return None
    if leaf.costs:
        return -(-value // leaf.denominator)  # costs are integers
    if value > 0:
        return None
    raise Refused(f"{name} leaves the costs out, and does not show that nothing fits")


def _distinct(nodes: Sequence[int], count: int, name: str) -> None:
    if any(not 0 <= v < count for v in nodes):
        raise Refused(f"{name} names a node beyond the {count} there are")
    if len(set(nodes)) < len(nodes):
        raise Refused(f"{name} names a node twice")


def _price(problem: Problem, choice: Sequence[int]) -> tuple[int, int]:
    """(cost, peak memory) of a choice; `Refused` where it is not valid."""
    if len(choice) != len(problem.nodes):
        raise Refused(f"expected a state for each of {len(problem.nodes)} nodes, found {len(choice)}")
    cost = 0
    changes: dict[int, int] = {}

    def take(item: Node | Edge, index: tuple[int, ...], name: str) -> None:
        nonlocal cost
        entry = int(item.costs[index])
        if entry >= FORBIDDEN:
            raise Refused(f"{name} is forbidden in the states chosen")
        cost += entry
        if item.usage is not None and item.interval is not None and item.interval[0] < item.interval[1]:
            held = int(item.usage[index])
            changes[item.interval[0]] = changes.get(item.interval[0], 0) + held
            changes[item.interval[1]] = changes.get(item.interval[1], 0) - held

    for v, (node, x) in enumerate(zip(problem.nodes, choice, strict=True)):
        if not 0 <= x < len(node.costs):
            raise Refused(f"node {v} has states below {len(node.costs)}, found {x}")
        take(node, (x,), f"node {v}")
    for k, edge in enumerate(problem.edges):
        take(edge, (choice[edge.u], choice[edge.v]), f"edge {k}, between nodes {edge.u} and {edge.v},")
    peak = level = 0
    for t in sorted(changes):
        level += changes[t]
        if problem.limit is not None and level > problem.limit:
            raise Refused(f"at instant {t} it holds {level} bytes; the limit is {problem.limit}")
        peak = max(peak, level)
    return cost, peak
