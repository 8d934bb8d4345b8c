"""Operators to measure: shapes from latency-bound to bandwidth- and compute-bound, as models have them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from planner.ir import Graph, Op, Role, Tensor

__all__ = ["Case", "operator_cases"]

Shape = tuple[int, ...]
OPSET = 20


@dataclass(frozen=True, slots=True)
class Case:
    """One operator alone.  `results` are the shapes of its results; `given` constants by operand; `integers` the
    operands that hold indices below the number given.  `forward_only`: its backward hands the gradient on as it is,
    and what a plan pays for that stands for adding the gradients of several readers up.
    """

    type: str
    operands: tuple[Shape, ...]
    results: tuple[Shape, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    given: Mapping[int, np.ndarray] = field(default_factory=dict)
    integers: Mapping[int, int] = field(default_factory=dict)
    forward_only: bool = False

    @property
    def label(self) -> str:
        return f"{self.type} {' '.join('x'.join(map(str, s)) for s in self.operands)}"

    def graph(self) -> Graph:
        """The operator as a graph; its operands are inputs, so that nothing is taken for a stored weight."""
        names = [f"x{i}" for i in range(len(self.operands))]
        tensors = {}
        for i, (name, shape) in enumerate(zip(names, self.operands, strict=True)):
            dtype = "int64" if i in self.integers else "float32"
            role, value = (Role.CONSTANT, self.given[i]) if i in self.given else (Role.INPUT, None)
            tensors[name] = Tensor(name, shape, dtype if value is None else str(value.dtype), role, value)
        outs = [f"y{j}" for j in range(len(self.results))]
        tensors |= {o: Tensor(o, s, "float32", Role.ACTIVATION) for o, s in zip(outs, self.results, strict=True)}
        op = Op(outs[0], self.type, tuple(names), tuple(outs), self.attributes, OPSET)
        inputs = tuple(n for n in names if tensors[n].role is Role.INPUT)
        return Graph((op,), tensors, inputs, tuple(outs))


def operator_cases(scale: int, *, quick: bool = False) -> Iterator[Case]:
    """`scale`: width of the largest products; 1024 suits one core of a CPU, 4096 an accelerator."""
    yield from _products(scale, quick)
    yield from _batched(scale, quick)
    yield from _convolutions(scale, quick)
    for elements in (1 << 8, scale**2 // 4, scale**2, 4 * scale**2)[: 3 if quick else 4]:
        yield from _vectors(elements)


def _products(scale: int, quick: bool) -> Iterator[Case]:
    """Square, skinny (few rows against a large weight) and flat ones, and those of a few elements (launch latency)."""
    s = scale
    sizes = [(8, 8, 8), (s, s, s), (s // 4, s, s), (s // 32, s, s), (s // 8, s, 4 * s), (s // 4, s // 4, s // 4)]
    if not quick:
        sizes += [(s // 2, 2 * s, 2 * s), (s // 64, 2 * s, 2 * s), (s, s // 4, s), (s, s, s // 4), (64, 64, 64)]
        sizes += [(2 * s, s // 2, s // 2), (s // 16, s // 2, 4 * s), (s // 2, s // 2, s)]
    for m, k, n in sizes:
        yield Case("MatMul", ((m, k), (k, n)), ((m, n),))
    yield Case("Gemm", ((s // 4, s), (s, s), (s,)), ((s // 4, s),))
    yield Case("MatMul", ((4, s // 8, s // 2), (s // 2, 2 * s)), ((4, s // 8, 2 * s),))


def _batched(scale: int, quick: bool) -> Iterator[Case]:
    """Scores and weighted values of attention."""
    for b, seq, d in ((16, scale // 8, 64), (8, scale // 4, 64), (64, scale // 16, 32))[: 2 if quick else 3]:
        yield Case("MatMul", ((b, 4, seq, d), (b, 4, d, seq)), ((b, 4, seq, seq),))
        yield Case("MatMul", ((b, 4, seq, seq), (b, 4, seq, d)), ((b, 4, seq, d),))


def _convolutions(scale: int, quick: bool) -> Iterator[Case]:
    c = scale // 16
    shapes = [(8, c, c, 32, 3, 1), (8, 2 * c, 2 * c, 16, 3, 1), (8, c, 2 * c, 32, 3, 2), (4, 4 * c, 4 * c, 8, 3, 1)]
    if not quick:
        shapes += [(8, c, c // 2, 32, 1, 1), (8, 3, c // 2, 64, 7, 2), (8, c // 2, c // 2, 64, 3, 1)]
        shapes += [(2, 8 * c, 8 * c, 4, 3, 1), (8, c, 2 * c, 32, 1, 2), (16, c // 2, c, 32, 3, 1)]
    for n, i, o, side, k, stride in shapes:
        out = side // stride
        pad = (k // 2,) * 4
        attributes = {"kernel_shape": (k, k), "pads": pad, "strides": (stride, stride)}
        yield Case("Conv", ((n, i, side, side), (o, i, k, k)), ((n, o, out, out),), attributes)


def _vectors(elements: int) -> Iterator[Case]:
    """Memory-bound operators on about so many elements."""
    width = 16 if elements < 4096 else 256
    rows = elements // width
    flat = (rows, width)
    yield Case("Add", (flat, flat), (flat,), forward_only=True)
    yield Case("Add", (flat, (width,)), (flat,))
    yield Case("Mul", (flat, ()), (flat,), given={1: np.array(0.5, dtype=np.float32)})
    yield Case("Relu", (flat,), (flat,))
    yield Case("Gelu", (flat,), (flat,), {"approximate": "tanh"})
    yield Case("Softmax", (flat,), (flat,), {"axis": -1})
    yield Case("LayerNormalization", (flat, (width,), (width,)), (flat,), {"axis": -1, "epsilon": 1e-5})
    heads = (4, rows // 4, 4, width // 4)
    yield Case("Transpose", (heads,), ((4, 4, rows // 4, width // 4),), {"perm": (0, 2, 1, 3)})
    keys = (16, rows // 4, width // 4)
    yield Case("Transpose", (keys,), ((16, width // 4, rows // 4),), {"perm": (0, 2, 1)})
    part = (rows, width // 4)
    sizes = np.array([width // 4] * 4, dtype=np.int64)
    yield Case("Split", (flat, (4,)), (part,) * 4, {"axis": -1}, {1: sizes})
    yield Case("Concat", (part,) * 4, (flat,), {"axis": -1})
    mask = np.tril(np.ones((width, width), dtype=bool))
    if rows >= width:
        squares = (rows // width, width, width)
        low = np.array(-1e9, dtype=np.float32)
        yield Case("Where", ((width, width), squares, ()), (squares,), given={0: mask, 2: low})
        image = (rows // width, 16, width // 4, width // 4)
        four = (image[1],)
        yield Case(
            "BatchNormalization", (image, four, four, four, four), (image,), {"epsilon": 1e-5}, _statistics(four)
        )
        half = (*image[:2], image[2] // 2, image[3] // 2)
        pool = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "strides": (2, 2)}
        yield Case("MaxPool", (image,), (half,), pool)
    yield Case("ReduceMean", (flat, (1,)), ((rows, 1),), {"keepdims": 1}, {1: np.array([-1], dtype=np.int64)})
    table = max(rows // 2, 16)
    yield Case("Gather", ((table, width), (rows,)), (flat,), {"axis": 0}, integers={1: table})
    loss = {"reduction": "mean", "ignore_index": -100}
    yield Case("SoftmaxCrossEntropyLoss", (flat, (rows,)), ((),), loss, integers={1: width})


def _statistics(shape: Shape) -> dict[int, np.ndarray]:
    return {3: np.zeros(shape, dtype=np.float32), 4: np.ones(shape, dtype=np.float32)}
