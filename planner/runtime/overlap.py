"""Collectives of a traced graph run beside computing: each begins early, and is waited for late.

The interpreter waits for every collective where it begins it.  In a graph all dependencies are known, so that

- a collective begins as soon as what it sends is computed: gradients are summed while the backward pass goes on;
- parameters, which are there from the beginning, are gathered one collective ahead of what reads those gathered before:
  no more of them are held at a time than two collectives bring (the prefetch of PyTorch FSDP, Zhao et al., VLDB 16(12),
  2023, section 3.3);
- a collective is waited for where its result is first computed with, or where the next but one begins: the buffers of
  two are held.

What is computed does not change, and neither does which collectives there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from torch.fx import Graph, Node

__all__ = ["overlap"]

# What hands elements on as they are, and goes where the collective goes that sends or receives them.
_MOVING: Final = frozenset(
    {"alias", "as_strided", "cat", "chunk", "clone", "detach", "expand", "permute", "reshape", "select", "slice",
     "split", "split_with_sizes", "squeeze", "stack", "t", "transpose", "unbind", "unsqueeze", "view", "_to_copy",
     "_unsafe_view"}
)  # fmt: skip
# What a collective may wait for where it would stand by itself: gradients are added to those of earlier passes.
_LEADING: Final = _MOVING | {"add"}
# What may follow a wait without being reason to wait.
_FOLLOWING: Final = _MOVING | {"add", "maximum", "minimum", "sum", "mul", "div"}
_HELD = 2  # collectives under way


def overlap(graph: Graph, agreed: Callable[[Sequence[int]], bool]) -> None:
    """Puts the nodes of a graph in an order in which collectives run beside computing; one that writes in place stays.

    agreed  whether all ranks of the graph would begin their collectives in the order of these numbers, which they have
            now; if not, the graph stays as it is, since ranks that wait for different ones wait for ever
    """
    nodes = list(graph.nodes)
    if any(getattr(getattr(n.target, "_schema", None), "is_mutable", False) for n in nodes):
        return  # what is written in place is read by others in an order that no edge says
    place = {n: float(k) for k, n in enumerate(nodes)}
    starts = [n for n in nodes if _begins(n)]
    at = dict(place)
    _begin_early(nodes, starts, place, at)
    _wait_late(nodes, place, at)
    ordered = sorted(nodes, key=lambda n: (at[n], place[n]))
    number = {start: k for k, start in enumerate(starts)}
    if not agreed([number[n] for n in ordered if n in number]):
        return
    end = graph.output_node()
    for node in ordered:
        if node is not end:
            end.prepend(node)


def _begin_early(nodes: list[Node], starts: list[Node], place: dict[Node, float], at: dict[Node, float]) -> None:
    """Moves collectives, and what only hands on to them, behind the last operator that they need."""
    given = max((place[n] for n in nodes if n.op == "placeholder"), default=-1.0)
    ready: dict[Node, float] = {}
    for n in nodes:
        moves = _begins(n) or _is(n, _LEADING)
        inputs = (ready[i] for i in n.all_input_nodes)
        ready[n] = given if n.op in ("placeholder", "get_attr") else max(inputs, default=given) if moves else place[n]
    read = given  # where what was gathered before is read first
    for start in starts:
        wanted = ready[start]
        if wanted == given:
            wanted, read = max(given, read), _first_read(start, place)
        if wanted + 0.5 < at[start]:
            _move(start, wanted + 0.5, at)


def _move(node: Node, where: float, at: dict[Node, float]) -> None:
    """Moves a node and what it reads to an earlier place, at which all other operands are known."""
    pending = [node]
    while pending:
        n = pending.pop()
        if at[n] > where:
            at[n] = where
            pending += n.all_input_nodes


def _first_read(start: Node, place: dict[Node, float]) -> float:
    """Where the result of a collective is first computed with."""
    first, pending, seen = math.inf, list(start.users), set(start.users)
    while pending:
        n = pending.pop()
        if _waits(n) or _is(n, _MOVING):
            new = [u for u in n.users if u not in seen]
            seen.update(new)
            pending += new
        else:
            first = min(first, place[n])
    return first


def _wait_late(nodes: list[Node], place: dict[Node, float], at: dict[Node, float]) -> None:
    """Moves waits to what reads their results first; what only follows them stays behind them."""
    following: set[Node] = set()
    for n in nodes:
        if _waits(n) or (_is(n, _FOLLOWING) and not following.isdisjoint(n.all_input_nodes)):
            following.add(n)
    read = dict(at)
    for n in reversed(nodes):
        if n in following and n.users:
            read[n] = min(read[u] for u in n.users)
    order = sorted((n for n in nodes if _begins(n)), key=lambda n: (at[n], place[n]))
    full = dict(zip(order, (at[later] for later in order[_HELD:]), strict=False))
    for n in nodes:
        if _waits(n):
            at[n] = min(max(at[n], read[n]), full.get(n.all_input_nodes[0], math.inf))
        elif n in following:
            at[n] = min(read[n], max(at[i] for i in n.all_input_nodes))


def _begins(n: Node) -> bool:
    return getattr(n.target, "namespace", "") == "_c10d_functional" and not _waits(n)


def _waits(n: Node) -> bool:
    return _named(n) == "wait_tensor"


def _is(n: Node, names: Iterable[str]) -> bool:
    return _named(n) in names or getattr(n.target, "__name__", "") == "getitem"


def _named(n: Node) -> str:
    packet = getattr(n.target, "overloadpacket", None)
    return "" if packet is None else str(packet.__name__)
