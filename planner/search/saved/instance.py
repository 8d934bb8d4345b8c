"""Problems in files: the published auto-sharding format, and the superset of it that saves any `Problem`.

    {"problem": {"name": text,
                 "nodes": {"intervals": [[start, end] | null, ...], "costs": [[...], ...],
                           "usages": [[...] | null, ...], "names": [text, ...]},
                 "edges": {"nodes": [[u, v], ...], "costs": [[row-major], ...],
                           "usages": [[row-major] | null, ...], "intervals": [[start, end] | null, ...]},
                 "usage_limit": bytes | null}}

Intervals are half-open.  `names`, the edges' `usages` and `intervals`, and every null are the superset.  Costs of 10^18
or more forbid.  Format: google/iopddl (Apache-2.0), README.  docs/problem-format.md says it at length.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.errors import InputError
from planner.search.problem import Edge, IntArray, Node, Problem
from planner.search.saved.text import Numbers, decode, read_bytes

__all__ = ["parse_instance", "read_instance", "write_instance"]

NODE_KEYS = ("intervals", "costs", "usages")
EDGE_KEYS = ("nodes", "costs")


def read_instance(path: Path) -> Problem:
    """The problem in a `.json` or `.json.gz` file.  InputError naming the place where anything is malformed."""
    return parse_instance(read_bytes(path), path)


def parse_instance(text: bytes, path: Path) -> Problem:
    """The problem in `text`; `path` names it in errors."""
    return _Reader(path).problem(decode(text, path))


class _Reader:
    """Equal arrays of equal shape become one array object, so that solvers meet every distinct matrix once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.shaped: dict[tuple[int, int, int], IntArray] = {}
        self.alive: list[Numbers] = []  # identities are only valid while the objects live

    def problem(self, document: Any) -> Problem:
        problem = self.mapping(document, "the document", ("problem",), None)["problem"]
        self.mapping(problem, "problem", ("nodes", "edges", "usage_limit"), ("name",))
        name = problem.get("name", "")
        if not isinstance(name, str):
            raise self.error("problem.name", "a text", name)
        nodes = self.nodes(self.mapping(problem["nodes"], "problem.nodes", NODE_KEYS, ("names",)))
        edges = self.edges(self.mapping(problem["edges"], "problem.edges", EDGE_KEYS, ("usages", "intervals")), nodes)
        limit = problem["usage_limit"]
        if limit is not None and (type(limit) is not int or not 0 <= limit < 2**63):
            raise self.error("problem.usage_limit", "bytes as an integer of at least 0, or null", limit)
        return Problem(nodes, edges, limit)

    def nodes(self, found: dict[str, Any]) -> list[Node]:
        costs = self.items(found["costs"], "problem.nodes.costs", None)
        usages = self.items(found["usages"], "problem.nodes.usages", len(costs))
        intervals = self.items(found["intervals"], "problem.nodes.intervals", len(costs))
        names = self.names(found.get("names"), len(costs))
        out = []
        for k, (cost, usage, interval, name) in enumerate(zip(costs, usages, intervals, names, strict=True)):
            values = self.numbers(cost, "problem.nodes.costs", k)
            if not len(values):
                raise self.error(f"problem.nodes.costs[{k}]", "at least one state", [])
            held = None if usage is None else self.array(usage, "problem.nodes.usages", k, (len(values),))
            span = self.interval(interval, "problem.nodes.intervals", k)
            out.append(Node(self.array(cost, "problem.nodes.costs", k, (len(values),)), held, span, name))
        return out

    def edges(self, found: dict[str, Any], nodes: Sequence[Node]) -> list[Edge]:
        ends = self.items(found["nodes"], "problem.edges.nodes", None)
        costs = self.items(found["costs"], "problem.edges.costs", len(ends))
        absent = [None] * len(ends)
        usages = self.items(found.get("usages", absent), "problem.edges.usages", len(ends))
        intervals = self.items(found.get("intervals", absent), "problem.edges.intervals", len(ends))
        out = []
        for k, (end, cost, usage, interval) in enumerate(zip(ends, costs, usages, intervals, strict=True)):
            place = "problem.edges.nodes"
            pair = self.numbers(end, place, k).tolist()
            if len(pair) != 2:
                raise self.error(f"{place}[{k}]", "two nodes", pair)
            u, v = pair
            if not (u < len(nodes) and v < len(nodes)):
                raise self.error(f"{place}[{k}]", f"nodes below {len(nodes)}", pair)
            if u == v:
                raise self.error(f"{place}[{k}]", "two different nodes", pair)
            shape = (len(nodes[u].costs), len(nodes[v].costs))
            matrix = self.array(cost, "problem.edges.costs", k, shape)
            held = None if usage is None else self.array(usage, "problem.edges.usages", k, shape)
            out.append(Edge(u, v, matrix, held, self.interval(interval, "problem.edges.intervals", k)))
        return out

    def array(self, value: Any, place: str, k: int, shape: tuple[int, ...]) -> IntArray:
        """The one array of these numbers in this shape."""
        key = (id(value), shape[0], shape[1] if len(shape) > 1 else 0)
        known = self.shaped.get(key)
        if known is None:
            values = self.numbers(value, place, k)
            size = shape[0] * shape[1] if len(shape) > 1 else shape[0]
            if len(values) != size:
                expected = f"{size} entries ({' x '.join(map(str, shape))} states)"
                raise self.error(f"{place}[{k}]", expected, f"{len(values)} entries")
            known = self.shaped[key] = values.reshape(shape)
            self.alive.append(value)
        return known

    def numbers(self, value: Any, place: str, k: int) -> NDArray[np.int64]:
        if not isinstance(value, Numbers):
            raise self.error(f"{place}[{k}]", "a list of integers", value)
        if value.defect is not None:
            raise self.error(f"{place}[{k}]", "integers", value.defect)
        if len(value.values) and value.values.min() < 0:
            at = int(np.argmax(value.values < 0))
            raise self.error(f"{place}[{k}][{at}]", "an integer of at least 0", int(value.values[at]))
        return value.values

    def interval(self, value: Any, place: str, k: int) -> tuple[int, int] | None:
        if value is None:
            return None
        pair = self.numbers(value, place, k).tolist()
        if len(pair) != 2 or pair[0] > pair[1]:
            raise self.error(f"{place}[{k}]", "[start, end] with start <= end", pair)
        return pair[0], pair[1]

    def names(self, value: Any, count: int) -> Sequence[str]:
        names = [""] * count if value is None else self.items(value, "problem.nodes.names", count)
        for k, name in enumerate(names):
            if not isinstance(name, str):
                raise self.error(f"problem.nodes.names[{k}]", "a text", name)
        return names

    def mapping(self, value: Any, place: str, needed: Sequence[str], optional: Sequence[str] | None) -> dict[str, Any]:
        """`value` as an object with the keys `needed` and none beyond `optional` (None: any)."""
        if not isinstance(value, dict):
            raise self.error(place, "an object", value)
        for key in needed:
            if key not in value:
                raise self.error(place, f"the key {key!r}", sorted(value))
        for key in value:
            if optional is not None and key not in (*needed, *optional):
                raise self.error(place, f"no keys beyond {', '.join((*needed, *optional))}", key)
        return value

    def items(self, value: Any, place: str, length: int | None) -> Sequence[Any]:
        if isinstance(value, Numbers) and value.defect is None and not len(value.values):
            value = []
        if not isinstance(value, list):
            raise self.error(place, "a list of lists", value)
        if length is not None and len(value) != length:
            raise self.error(place, f"{length} items, one each", f"{len(value)} items")
        return value

    def error(self, place: str, expected: str, found: object) -> InputError:
        if isinstance(found, Numbers):
            found = found.values.tolist() if found.defect is None else found.defect
        text = found if isinstance(found, str) else json.dumps(found, default=lambda _: "[…]")
        return InputError(
            f"{self.path}: {place}: expected {expected}, found {text[:80]}{'…' if len(text) > 80 else ''}"
        )


def write_instance(problem: Problem, path: Path, *, name: str = "") -> None:
    """Saves everything a `Problem` says; gzip when `path` ends in `.gz`.  Equal problems give equal bytes.

    Without edge usage, names, nulls and with a limit, the file is in the published format.
    """
    texts: dict[int, str] = {}

    def numbers(array: IntArray | None) -> str:
        if array is None:
            return "null"
        if id(array) not in texts:
            texts[id(array)] = json.dumps(array.reshape(-1).tolist(), separators=(",", ":"))
        return texts[id(array)]

    def joined(items: Sequence[str]) -> str:
        return f"[{','.join(items)}]"

    def intervals(items: Sequence[Node] | Sequence[Edge]) -> str:
        return joined(["null" if x.interval is None else f"[{x.interval[0]},{x.interval[1]}]" for x in items])

    nodes = [
        f'"intervals":{intervals(problem.nodes)}',
        f'"costs":{joined([numbers(n.costs) for n in problem.nodes])}',
        f'"usages":{joined([numbers(n.usage) for n in problem.nodes])}',
    ]
    if any(n.name for n in problem.nodes):
        nodes.append(f'"names":{json.dumps([n.name for n in problem.nodes])}')
    edges = [
        f'"nodes":{joined([f"[{e.u},{e.v}]" for e in problem.edges])}',
        f'"costs":{joined([numbers(e.costs) for e in problem.edges])}',
    ]
    if any(e.usage is not None or e.interval is not None for e in problem.edges):
        edges += [
            f'"usages":{joined([numbers(e.usage) for e in problem.edges])}',
            f'"intervals":{intervals(problem.edges)}',
        ]
    text = (
        f'{{"problem":{{"name":{json.dumps(name)},"nodes":{{{",".join(nodes)}}},'
        f'"edges":{{{",".join(edges)}}},"usage_limit":{json.dumps(problem.limit)}}}}}\n'
    ).encode()
    path.write_bytes(gzip.compress(text, 6, mtime=0) if path.suffix == ".gz" else text)
