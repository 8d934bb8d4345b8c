"""The semantics a second time, written from docs/semantics.md: roles, layouts, steps, trees, and all combinations.

Only the prices of local work and of single collectives, the factors and the order of states are the planner's.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from planner.pricing import PricedProblem
from planner.search.problem import FORBIDDEN

__all__ = ["Enumeration"]

# A tensor with more readers is held in one layout.
MAX_SET_READERS = 3

Place = tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]  # axes that split each dimension; axes of a pending sum
Pair = tuple[Place, Place]  # of a value and of its gradient
Array = NDArray[np.int64]
Price = Callable[[str, tuple[str, ...], float], int]  # of a collective: kind, axes, bytes of its group

_PRODUCTS = frozenset({"MatMul", "Gemm"})
_SPLITTABLE: Mapping[str, tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]] = {
    "MatMul": ((("m", "k"), ("k", "n")), ("m", "n")),
    "ReduceMean": ((("d0", "d1"),), ()),
    "Sum": ((("d0", "d1"),) * 4, ("d0", "d1")),
    **dict.fromkeys(("Relu", "Sigmoid", "Tanh", "Softplus"), ((("d0", "d1"),), ("d0", "d1"))),
}


def pairs_of(kind: str, readers: int, roles: Sequence[str], axes: Sequence[str]) -> tuple[list[Pair], Pair]:
    """The table of roles: (value, gradient) of the first `readers` operands, and of the result.

    Per axis and tensor it answers with a factor (split), `P` (pending sum) or `R` (replica).
    """
    operands, result = _SPLITTABLE[kind]

    def read(role: str, i: int) -> tuple[str, str]:
        if role.startswith("+"):
            return ("P", "R") if i in _groups(kind, readers)[int(role[1:])] else ("R", "P")
        if role in ("_", "d~"):
            return "R", "R" if role == "_" else "P"
        return (role, role) if role in operands[i] else ("R", "P")

    def written(role: str) -> tuple[str, str]:
        if role.startswith("+"):
            return "P", "R"
        if role in ("_", "d~"):
            return "R", "R" if role == "_" else "P"
        return (role, role) if role in result else ("P", "R")

    def pair(dims: Sequence[str], answers: Sequence[tuple[str, str]]) -> Pair:
        value, gradient = (
            (
                tuple(tuple(a for a, does in zip(axes, answers, strict=True) if does[side] == f) for f in dims),
                tuple(a for a, does in zip(axes, answers, strict=True) if does[side] == "P"),
            )
            for side in (0, 1)
        )
        return value, gradient

    reads = [pair(operands[i], [read(r, i) for r in roles]) for i in range(readers)]
    return reads, pair(result, [written(r) for r in roles])


def _groups(kind: str, readers: int) -> tuple[tuple[int, ...], ...]:
    """Operands in which the operator is jointly linear."""
    return {"MatMul": ((0,), (1,)), "ReduceMean": ((0,),), "Sum": (tuple(range(readers)),)}.get(kind, ())


def all_roles(kind: str, readers: int, factors: Mapping[str, int], axes: Mapping[str, int]) -> list[tuple[str, ...]]:
    """Every way to give each axis a role such that shards come out even."""
    single = [*factors, "_", "d~", *(f"+{g}" for g in range(len(_groups(kind, readers))))]
    return [
        roles
        for roles in itertools.product(single, repeat=len(axes))
        if all(
            n % math.prod(size for size, r in zip(axes.values(), roles, strict=True) if r == f) == 0
            for f, n in factors.items()
        )
    ]


def places(shape: Sequence[int], axes: Mapping[str, int]) -> list[Place]:
    """Every even layout: each axis replicates, splits a dimension (in any order of axes) or leaves a pending sum."""
    found = []
    for where in itertools.product([*range(len(shape)), "R", "P"], repeat=len(axes)):
        of_dim = [[a for a, w in zip(axes, where, strict=True) if w == d] for d in range(len(shape))]
        if all(s % math.prod(axes[a] for a in d) == 0 for s, d in zip(shape, of_dim, strict=True)):
            pending = tuple(a for a, w in zip(axes, where, strict=True) if w == "P")
            found += [
                (orders, pending) for orders in itertools.product(*(list(itertools.permutations(d)) for d in of_dim))
            ]
    return found


class Distances:
    """Cheapest conversions between all layouts of a tensor, by Dijkstra over single collectives; `copied` prices a
    write, or a read, of so many bytes, where the tensor has to leave a kernel for them."""

    def __init__(
        self,
        shape: Sequence[int],
        size: int,
        axes: Mapping[str, int],
        price: Price,
        copied: Callable[[float], int] = lambda _: 0,
    ) -> None:
        self.shape, self.size, self.axes, self._price = shape, size, axes, price
        self.places = places(shape, axes)
        self.index = {p: i for i, p in enumerate(self.places)}
        self._arcs = nx.DiGraph()
        self._arcs.add_nodes_from(self.places)
        for p in self.places:
            self._leave(p)
        reached = dict(nx.all_pairs_dijkstra_path_length(self._arcs))
        self.d: Array = np.array([[reached[a][b] for b in self.places] for a in self.places], dtype=np.int64)
        moved = np.array([copied(size / math.prod(map(self._shards, dims))) for dims, _ in self.places], dtype=np.int64)
        self.d = np.where(self.d > 0, self.d + moved[:, None] + moved, self.d)

    def _arc(
        self,
        kind: str,
        moved: tuple[str, ...],
        source: Place,
        dims: dict[int, tuple[str, ...]],
        pending: tuple[str, ...],
    ) -> None:
        target = (tuple(dims.get(i, d) for i, d in enumerate(source[0])), pending)
        if target not in self.index:
            return
        rest = [a for d in source[0] for a in d if kind == "permute" or a not in moved]
        free = kind in ("slice", "zeros")
        cost = 0 if free else self._price(kind, moved, self.size / math.prod(self.axes[a] for a in rest))
        if cost < self._arcs.get_edge_data(source, target, {"weight": math.inf})["weight"]:
            self._arcs.add_edge(source, target, weight=cost)

    def _leave(self, p: Place) -> None:
        dims, pending = p
        unused = [a for a in self.axes if a not in pending and not any(a in d for d in dims)]
        for a in unused:
            self._arc("zeros", (a,), p, {}, tuple(b for b in self.axes if b in pending or b == a))
        for some in (c for k in range(1, len(pending) + 1) for c in itertools.combinations(pending, k)):
            rest = tuple(a for a in pending if a not in some)
            self._arc("all_reduce", some, p, {}, rest)
            for i, d in enumerate(dims):
                self._arc("reduce_scatter", some, p, {i: d + some}, rest)
        for i, d in enumerate(dims):
            for a in unused:
                self._arc("slice", (a,), p, {i: (*d, a)}, pending)
            for k in range(1, len(d) + 1):
                self._arc("all_gather", d[-k:], p, {i: d[:-k]}, pending)
                for j, e in enumerate(dims):
                    if i != j:
                        self._arc("all_to_all", d[-k:], p, {i: d[:-k], j: e + d[-k:]}, pending)
        for q in self.places:  # same shards on other ranks
            if q != p and q[1] == pending and [self._shards(d) for d in q[0]] == [self._shards(d) for d in dims]:
                differ = {a for d, e in zip(dims, q[0], strict=True) if d != e for a in (*d, *e)}
                self._arc("permute", tuple(a for a in self.axes if a in differ), p, dict(enumerate(q[0])), pending)

    def _shards(self, dim: tuple[str, ...]) -> int:
        return math.prod(self.axes[a] for a in dim)

    def tree(self, write: Pair, reads: Sequence[Pair]) -> int:
        """From where the value is produced to all that read it, and from all contributions to the wanted gradient."""
        value = _steiner(self.d, self.index[write[0]], [self.index[r[0]] for r in reads])
        return value + _steiner(self.d.T, self.index[write[1]], [self.index[r[1]] for r in reads])


def _steiner(d: Array, root: int, leaves: Sequence[int]) -> int:
    """The cheapest arborescence to one, two or three leaves, by trying every meeting point."""
    leaves = list(dict.fromkeys(leaves))
    if len(leaves) == 1:
        return int(d[root, leaves[0]])
    if len(leaves) == 2:
        return int((d[root] + d[:, leaves[0]] + d[:, leaves[1]]).min())
    best = []
    for first in leaves:
        second, third = (x for x in leaves if x != first)
        below = (d + (d[:, second] + d[:, third])[None, :]).min(axis=1)
        best.append(int((d[root] + d[:, first] + below).min()))
    return min(best)


class Enumeration:
    """Every strategy of every operator times every stored layout."""

    def __init__(self, p: PricedProblem) -> None:
        self.p, self.graph, self.machine = p, p.graph, p.machine
        self.axes = dict(p.machine.mesh.sizes)
        self.reads: dict[str, list[list[Pair]]] = {}
        self.writes: dict[str, list[Pair]] = {}
        for op in self.graph.ops:
            factors = p.rules[op.name].factors
            roles = all_roles(op.type, len(op.inputs), factors, self.axes)
            by_roles = {tuple(map(str, s.roles)): n for n, s in enumerate(p.tables[op.name].strategies)}
            assert set(by_roles) == set(roles), op.name
            both = {r: pairs_of(op.type, len(op.inputs), r, tuple(self.axes)) for r in roles}
            ordered = sorted(roles, key=by_roles.__getitem__)
            self.reads[op.name] = [both[r][0] for r in ordered]
            self.writes[op.name] = [both[r][1] for r in ordered]

    def distances(self, name: str) -> Distances:
        t = self.graph.tensors[name]
        share = self._share(name)

        def collective(kind: str, axes: tuple[str, ...], group_bytes: float) -> int:
            return int(self.machine.collective(kind, axes, group_bytes, share))

        def copied(size: float) -> int:
            return int(self.machine.copied(size)) if self._inside(name) else 0

        return Distances(t.shape or (), self.machine.settings.tensor_bytes(t), self.axes, collective, copied)

    def _share(self, name: str) -> float:
        """Of a weight among all: these models have no repeated blocks."""
        weights = {t.name: t.elements for t in self.graph.parameters}
        return weights[name] / sum(weights.values()) if name in weights else 1.0

    def _inside(self, name: str) -> bool:
        """Whether it only goes from one operator without a product to others."""
        joined = self.machine.profile.framework.joins_kernels and name in self.graph.producers
        ends = [self.graph.producers.get(name), *(op for op, _ in self.graph.consumers.get(name, ()))]
        return joined and len(ends) > 1 and all(op is not None and op.type not in _PRODUCTS for op in ends)

    def costs(self, *, most_reads: int = 2) -> Array:
        """Least cost per strategy of every operator (one dimension each, in graph order), forbidden where none.

        A tensor is held for at most `most_reads` distinct reads.
        """
        names = [op.name for op in self.graph.ops]
        total = np.zeros((), dtype=np.int64)
        for n, name in enumerate(names):  # one dimension per operator, in graph order
            costs = np.minimum(self.p.tables[name].costs, FORBIDDEN)
            total = np.minimum(total[..., None] + costs, FORBIDDEN)
            assert total.ndim == n + 1
        for t in self.graph.parameters:
            ((op, slot),) = self.graph.consumers[t.name]
            total = _added(total, [names.index(op.name)], self._parameter(t.name, op.name, slot))
        for op in self.graph.ops:
            readers = self.graph.consumers.get(op.outputs[0], ())
            where = [names.index(op.name), *(names.index(r.name) for r, _ in readers)]
            total = _added(total, where, self._activation(op.outputs[0], op.name, most_reads))
        return total

    def _parameter(self, name: str, reader: str, slot: int) -> Array:
        """Per strategy of its only reader, the best stored layout: conversions and the optimizer's update."""
        d, elements = self.distances(name), self.graph.tensors[name].elements
        stored = [
            (p, int(self.machine.optimizer_update(elements // self.machine.mesh.size(a for dim in p[0] for a in dim))))
            for p in places(self.graph.tensors[name].shape or (), self.axes)
            if not p[1] and all(list(dim) == sorted(dim, key=list(self.axes).index) for dim in p[0])
        ]
        reads = [pairs[slot] for pairs in self.reads[reader]]
        return np.array([min(update + d.tree((p, p), [r]) for p, update in stored) for r in reads], dtype=np.int64)

    def _activation(self, name: str, producer: str, most_reads: int) -> Array:
        """Cost [write, read of the first reader, …]; of the loss, which is read whole and without pending sums."""
        d, writes = self.distances(name), self.writes[producer]
        tree = functools.cache(lambda write, reads: d.tree(write, reads))
        readers = self.graph.consumers.get(name, ())
        if not readers:
            whole: Place = ((), ())
            return np.array([d.d[d.index[w[0]], d.index[whole]] for w in writes], dtype=np.int64)
        reads = [[pairs[slot] for pairs in self.reads[r.name]] for r, slot in readers]
        if len(readers) > MAX_SET_READERS:
            return self._star(d, writes, reads)
        out = np.full((len(writes), *map(len, reads)), FORBIDDEN, dtype=np.int64)
        for at in np.ndindex(out.shape):
            chosen = frozenset(r[i] for r, i in zip(reads, at[1:], strict=True))
            if len(chosen) <= most_reads:
                out[at] = tree(writes[at[0]], chosen)
        return out

    def _star(self, d: Distances, writes: list[Pair], reads: list[list[Pair]]) -> Array:
        """The tensor held in one way that some reader reads, or whole; readers convert by themselves."""
        dims = len(d.shape)
        whole: Place = (((),) * dims, ())
        held = dict.fromkeys([*(r for row in reads for r in row if not r[0][1]), (whole, whole)])
        out: Array = np.full((len(writes), *map(len, reads)), FORBIDDEN, dtype=np.int64)
        for h in held:
            total = np.array([d.tree(w, [h]) for w in writes], dtype=np.int64)
            for row in reads:
                total = total[..., None] + np.array([d.tree(h, [r]) for r in row], dtype=np.int64)
            out = np.minimum(out, total)
        return out


def _added(total: Array, where: Sequence[int], part: Array) -> Array:
    """total[...] + part, whose dimensions are the dimensions `where` (ascending) of the total."""
    shape = [total.shape[n] if n in where else 1 for n in range(total.ndim)]
    out: Array = np.minimum(total + part.reshape(shape), FORBIDDEN)
    return out
