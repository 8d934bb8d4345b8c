"""The subject of docs/semantics.md, the graphs of its smaller proofs, and its semantics implemented a second time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

__all__ = [
    "SMALL",
    "Array",
    "Distances",
    "Pair",
    "Place",
    "Sizes",
    "all_roles",
    "chain",
    "fan",
    "mlp",
    "pairs_of",
    "places",
    "transformer",
]


@dataclass(frozen=True, slots=True)
class Sizes:
    batch: int
    sequence: int
    hidden: int
    heads: int
    vocabulary: int


SMALL = Sizes(batch=4, sequence=4, hidden=8, heads=2, vocabulary=16)


class _Model:
    """Nodes and initializers in order; every node is named after its first result."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(7)

    def weight(self, name: str, *shape: int) -> str:
        values = self._random.normal(0.0, 0.5, shape).astype(np.float32)
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def constant(self, name: str, values: np.ndarray) -> str:
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def op(self, kind: str, inputs: list[str], result: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [result], name=result, **attributes))
        return result

    def done(self, inputs: Mapping[str, tuple[int, tuple[int, ...]]], output: str) -> bytes:
        graph = helper.make_graph(
            self.nodes,
            "semantics",
            [helper.make_tensor_value_info(n, kind, shape) for n, (kind, shape) in inputs.items()],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, ())],
            self.weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        onnx.checker.check_model(model, full_check=True)
        data: bytes = model.SerializeToString()
        return data


def transformer(layers: int = 2, sizes: Sizes = SMALL) -> bytes:
    """Tokens and labels (batch, sequence) to the mean cross-entropy of the next-token scores."""
    m, b, s, h = _Model(), sizes.batch, sizes.sequence, sizes.hidden
    m.constant("heads", np.array([b, s, sizes.heads, h // sizes.heads], dtype=np.int64))
    m.constant("flat", np.array([b, s, h], dtype=np.int64))
    m.constant("scale", np.array(1 / math.sqrt(h // sizes.heads), dtype=np.float32))
    x = m.op("Gather", [m.weight("embedding", sizes.vocabulary, h), "tokens"], "embedded")
    for i in range(layers):
        x = _layer(m, f"l{i}", x, h)
    norm = _norm(m, "f.norm", x, h)
    logits = m.op("MatMul", [norm, m.weight("head", h, sizes.vocabulary)], "logits")
    m.op("SoftmaxCrossEntropyLoss", [m.op("Transpose", [logits], "scores", perm=[0, 2, 1]), "labels"], "loss")
    return m.done(dict.fromkeys(("tokens", "labels"), (TensorProto.INT64, (b, s))), "loss")


def _layer(m: _Model, p: str, x: str, h: int) -> str:
    def heads(name: str, value: str, perm: list[int]) -> str:
        product = m.op("MatMul", [value, m.weight(f"{p}.w{name}", h, h)], f"{p}.{name}")
        cut = m.op("Reshape", [product, "heads"], f"{p}.{name}.cut")
        return m.op("Transpose", [cut], f"{p}.{name}.heads", perm=perm)

    norm = _norm(m, f"{p}.norm1", x, h)
    q, k, v = (heads(n, norm, perm) for n, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])))
    scaled = m.op("Mul", [m.op("MatMul", [q, k], f"{p}.scores"), "scale"], f"{p}.scaled")
    context = m.op("MatMul", [m.op("Softmax", [scaled], f"{p}.weights", axis=-1), v], f"{p}.context")
    joined = m.op("Transpose", [context], f"{p}.joined", perm=[0, 2, 1, 3])
    flat = m.op("Reshape", [joined, "flat"], f"{p}.flat")
    projected = m.op("MatMul", [flat, m.weight(f"{p}.wo", h, h)], f"{p}.projected")
    attended = m.op("Add", [projected, m.weight(f"{p}.bo", h)], f"{p}.attended")
    return _mlp(m, p, m.op("Add", [x, attended], f"{p}.middle"), h)


def _mlp(m: _Model, p: str, x: str, h: int) -> str:
    up = m.op("MatMul", [_norm(m, f"{p}.norm2", x, h), m.weight(f"{p}.w1", h, 4 * h)], f"{p}.up")
    active = m.op("Gelu", [m.op("Add", [up, m.weight(f"{p}.b1", 4 * h)], f"{p}.biased")], f"{p}.active")
    down = m.op("MatMul", [active, m.weight(f"{p}.w2", 4 * h, h)], f"{p}.down")
    return m.op("Add", [x, m.op("Add", [down, m.weight(f"{p}.b2", h)], f"{p}.out")], f"{p}.result")


def _norm(m: _Model, name: str, x: str, h: int) -> str:
    parameters = [m.weight(f"{name}.gain", h), m.weight(f"{name}.shift", h)]
    return m.op("LayerNormalization", [x, *parameters], name, axis=-1)


def mlp(rows: int = 4, hidden: int = 8) -> bytes:
    """One block of the transformer, from its residual stream (rows, hidden) to a mean."""
    m = _Model()
    x = m.op("MatMul", ["x", m.weight("w0", hidden, hidden)], "stream")
    m.op("ReduceMean", [_mlp(m, "l", x, hidden)], "loss", keepdims=0)
    return m.done({"x": (TensorProto.FLOAT, (rows, hidden))}, "loss")


def chain(rows: int, width: int, *, products: int = 2) -> bytes:
    """x W1, and with two products relu(x W1) W2, to a mean."""
    m = _Model()
    last = m.op("Relu", [m.op("MatMul", ["x", m.weight("w1", width, width)], "h")], "a")
    if products == 2:
        last = m.op("MatMul", [last, m.weight("w2", width, width)], "y")
    m.op("ReduceMean", [last], "loss", keepdims=0)
    return m.done({"x": (TensorProto.FLOAT, (rows, width))}, "loss")


def fan(rows: int, width: int, readers: int) -> bytes:
    """h = x W read by two to four operators, whose results are summed, to a mean."""
    m = _Model()
    h = m.op("MatMul", ["x", m.weight("w1", width, width)], "h")
    kinds = ("Relu", "Sigmoid", "Tanh", "Softplus")[:readers]
    m.op("ReduceMean", [m.op("Sum", [m.op(kind, [h], kind.lower()) for kind in kinds], "s")], "loss", keepdims=0)
    return m.done({"x": (TensorProto.FLOAT, (rows, width))}, "loss")


# The semantics once more, written from docs/semantics.md without the planner's code: only prices are asked of it.

Place = tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]  # axes that split each dimension; axes of a pending sum
Pair = tuple[Place, Place]  # of a value and of its gradient
Array = NDArray[np.int64]
Price = Callable[[str, tuple[str, ...], float], int]  # of a collective: kind, axes, bytes of its group

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
    """Cheapest conversions between all layouts of a tensor, by Dijkstra over single collectives."""

    def __init__(self, shape: Sequence[int], size: int, axes: Mapping[str, int], price: Price) -> None:
        self.shape, self.size, self.axes, self._price = shape, size, axes, price
        self.places = places(shape, axes)
        self.index = {p: i for i, p in enumerate(self.places)}
        self._arcs = nx.DiGraph()
        self._arcs.add_nodes_from(self.places)
        for p in self.places:
            self._leave(p)
        reached = dict(nx.all_pairs_dijkstra_path_length(self._arcs))
        self.d: Array = np.array([[reached[a][b] for b in self.places] for a in self.places], dtype=np.int64)

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
