"""Certificates: what a solver hands out so that nobody has to trust it.

A certificate holds a choice, the cost and the lower bound claimed, and a proof of the bound.  The proof is a tree: a
`Split` divides the states of one node among its children, so every choice lies below one of them; a `Leaf` carries
multipliers that bound every choice below it.  With D the leaf's denominator, p_t >= 0 its prices (of one byte at
instant t, in 1/D of a unit of cost) and theta the costs with what is held priced,

    theta_v[i]     = D cost_v[i] + usage_v[i] * (sum of p_t over the instants t at which v is alive)     (edges alike)
    D * bound     >= min_x (sum_v theta_v[x_v] + sum_uv theta_uv[x_u, x_v]) - sum_t p_t * limit

because a choice within the limit pays no more than it gets back.  The minimum is bounded from below by eliminating the
nodes in `order` exactly, one after the other, and shifting what is left by `messages`, any messages:

    theta_u[i] += to_u[i],   theta_v[j] += to_v[j],   theta_uv[i, j] -= to_u[i] + to_v[j]

whereafter every table contributes its least entry.  Both may be empty.  States and pairs that cannot be part of a valid
choice (`planner.search.checks.fit`) are left out first.  A leaf with `costs=False` leaves the costs out
(forbidden entries stay): a positive bound, or none finite, proves that no choice below it is valid.

Nodes, states and edges are those of the original problem, before any presolve; parallel edges count as one, added up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from planner.search.problem import IntArray, Problem

__all__ = ["Certificate", "Leaf", "Messages", "Proof", "Split", "problem_digest", "rounded_prices"]

LARGEST = 2**58  # numerators had better stay below, so that the checker's tables fit in 64-bit integers


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """For the pair `edges[k]` = (u, v), joined by one or more edges: `to_u[k][i]` per state of u and `to_v[k][j]` per
    state of v, numerators over the leaf's denominator.  Pairs left out have none."""

    edges: tuple[tuple[int, int], ...]
    to_u: tuple[IntArray, ...]
    to_v: tuple[IntArray, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """`prices` are (instant, numerator >= 0), instants distinct; `order` names distinct nodes."""

    denominator: int = 1
    prices: tuple[tuple[int, int], ...] = ()
    order: tuple[int, ...] = ()
    messages: Messages | None = None
    costs: bool = True


@dataclass(frozen=True, slots=True)
class Split:
    """`states[k]` of `node` are allowed below `children[k]`, a later position in the proof; what the splits above
    left of the node's states must all be among them."""

    node: int
    states: tuple[tuple[int, ...], ...]
    children: tuple[int, ...]


Proof = tuple[Leaf | Split, ...]  # the root first; every other item is the child of exactly one split


@dataclass(frozen=True, slots=True, eq=False)
class Certificate:
    """`cost` of `choice` (both None: no choice is claimed); `bound` on every valid choice (None: it is claimed that
    there is none).  `problem` is the digest of the problem it speaks of."""

    problem: str
    choice: tuple[int, ...] | None
    cost: int | None
    bound: int | None
    proof: Proof


def problem_digest(problem: Problem) -> str:
    """Digest of all that decides a choice's cost and validity; names do not."""
    total = hashlib.blake2b(digest_size=16)
    known: dict[int, bytes] = {}

    def of(array: IntArray | None) -> bytes:
        if array is None:
            return b"none"
        if id(array) not in known:
            shape = repr(array.shape).encode()
            content = np.ascontiguousarray(array, np.int64)
            known[id(array)] = hashlib.blake2b(
                content.data if content.size else b"", digest_size=16, key=shape
            ).digest()
        return known[id(array)]

    total.update(repr((len(problem.nodes), len(problem.edges), problem.limit)).encode())
    for node in problem.nodes:
        total.update(of(node.costs) + of(node.usage) + repr(node.interval).encode())
    for edge in problem.edges:
        total.update(of(edge.costs) + of(edge.usage) + repr((edge.u, edge.v, edge.interval)).encode())
    return total.hexdigest()


def rounded_prices(prices: Mapping[int, float], denominator: int) -> tuple[tuple[int, int], ...]:
    """Numerators of prices by instant.  Sums over intervals are what counts, so it is the running sum that is rounded:
    the price of any interval is off by less than one."""
    out = []
    total = Fraction(0)
    before = 0
    for t, p in sorted(prices.items()):
        if p > 0:
            total += Fraction(p) * denominator
            numerator, before = int(total) - before, int(total)
            if numerator:
                out.append((t, numerator))
    return tuple(out)
