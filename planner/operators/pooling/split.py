"""Pools while space is split, and while anything is split that MaxPool's indices into the whole tensor count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.ir import Op
from planner.kernels.gradients import vjp
from planner.kernels.local import run_local
from planner.kernels.shards import Array
from planner.kernels.shared import Call, shared
from planner.kernels.split import kernel
from planner.kernels.spmd import Coroutine, ShardContext, all_reduce
from planner.kernels.window import FIRST, Reach, explicit, fetch, local_space, release
from planner.operators.pooling.gradient import lp_gradient
from planner.rules.window import Window

__all__: list[str] = []

Operands = Sequence["Array | None"]


def _quantized_forward(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    """Pools of bytes, channels first or last."""
    x = inputs[0]
    assert x is not None
    last = op.type == "com.microsoft::NhwcMaxPool" or op.attributes.get("channels_last", 0)
    space = local_space(op, op.attributes["kernel_shape"], place, first=FIRST - 1 if last else FIRST)
    grown = yield from fetch(x, space, "elements", place)
    return run_local(explicit(op, space), [grown, *inputs[1:]])


def _backward(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    """The local product on elements with their halo, whose gradient goes back to its owners."""
    x, y, dy = inputs[0], outputs[0], gradients[0]
    assert x is not None
    assert y is not None
    if dy is None or not wanted[0]:
        return [None]
    space = local_space(op, op.attributes["kernel_shape"], place)
    if op.type == "AveragePool":  # reads no values
        sizes = [stop - first for first, stop in (r.needed("elements") for r in space)]
        grown = np.zeros((*x.shape[:FIRST], *sizes), dtype=x.dtype)
    else:
        grown = yield from fetch(x, space, "elements", place)
    plain = replace(explicit(op, space), outputs=op.outputs[:1])
    dx = vjp(plain, [grown], [y], [dy], [True])[0]
    assert dx is not None
    mine = yield from release(dx, space, "elements", place)
    return [mine]


def _average_gradient(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    """dY → dX in exported training graphs."""
    dy = inputs[0]
    assert dy is not None
    space = local_space(op, op.attributes["kernel_shape"], place)
    shape = (*dy.shape[:FIRST], *(stop - first for first, stop in (r.needed("elements") for r in space)))
    dx = run_local(explicit(op, space), [dy], output_shapes=[shape])[0]
    assert dx is not None
    mine = yield from release(dx, space, "elements", place)
    return [mine]


def _local_indices(
    indices: Array, whole: Sequence[int], starts: Sequence[int], local: Sequence[int]
) -> NDArray[np.int64]:
    """Indices into the flattened whole tensor, counted in the box of sizes `local` that begins at `starts`."""
    coordinates = np.unravel_index(indices, tuple(whole))
    moved = tuple(c - start for c, start in zip(coordinates, starts, strict=True))
    return np.asarray(np.ravel_multi_index(moved, tuple(local)), dtype=np.int64)


def _max_gradient(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    """dY and the indices that MaxPool gave → dX in exported training graphs."""
    dy, indices = inputs
    assert dy is not None
    assert indices is not None
    assert place.rule is not None
    factors, result = place.rule.factors, place.rule.results[0]
    assert result is not None
    rank = dy.ndim - FIRST
    start = [place.offset.get("n", 0), place.offset.get("c", 0)]
    if "kernel_shape" not in op.attributes or "y0" not in factors:
        sizes = [factors[f"s{d}"] for d in range(rank)]
        local = (*dy.shape[:FIRST], *sizes)
        rebased = _local_indices(indices, (factors["n"], factors["c"], *sizes), (*start, *(0,) * rank), local)
        return [_scatter(dy, rebased, local)]
    space = local_space(op, op.attributes["kernel_shape"], place)
    ranges = [r.needed("elements") for r in space]
    local = (*dy.shape[:FIRST], *(stop - first for first, stop in ranges))
    whole = (factors["n"], factors["c"], *(r.window.elements for r in space))
    rebased = _local_indices(indices, whole, (*start, *(first for first, _ in ranges)), local)
    mine = yield from release(_scatter(dy, rebased, local), space, "elements", place)
    return [mine]


def _scatter(values: Array, indices: NDArray[np.int64], shape: tuple[int, ...]) -> Array:
    out = np.zeros(int(np.prod(shape)), dtype=values.dtype)
    np.add.at(out, indices.reshape(-1), values.reshape(-1))
    return out.reshape(shape)


def _unpool_forward(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    """Indices into the whole result become those into this rank's batch and channels."""
    x, indices = inputs[0], inputs[1]
    assert x is not None
    assert indices is not None
    return run_local(op, [x, _unpool_indices(x, indices, place), *inputs[2:]])
    yield  # a generator that never communicates


def _unpool_backward(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    x, indices = inputs[0], inputs[1]
    assert x is not None
    assert indices is not None
    rebased = [x, _unpool_indices(x, indices, place), *inputs[2:]]
    return vjp(op, rebased, outputs, gradients, wanted)
    yield  # a generator that never communicates


def _unpool_indices(x: Array, indices: Array, place: ShardContext) -> NDArray[np.int64]:
    assert place.rule is not None
    factors, rank = place.rule.factors, x.ndim - FIRST
    image = [factors[f"s{d}"] for d in range(rank)]
    whole, starts = (factors["n"], factors["c"], *image), (place.offset.get("n", 0), place.offset.get("c", 0))
    return _local_indices(indices, whole, (*starts, *(0,) * rank), (*x.shape[:FIRST], *image))


def _global_max_backward(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    """All elements that hold the maximum, on any rank, share its gradient."""
    x, y, dy = inputs[0], outputs[0], gradients[0]
    assert x is not None
    assert y is not None
    if dy is None or not wanted[0]:
        return [None]
    held = x == y
    count = held.sum(axis=tuple(range(FIRST, x.ndim)), keepdims=True).astype(x.dtype)
    for mode in (f for f in place.shards if f.startswith("^")):
        count = yield from all_reduce(count, "sum", mode)
    return [(held * (dy / count)).astype(x.dtype)]


def _global_lp_backward(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    """Every rank knows the norm."""
    x, y, dy = inputs[0], outputs[0], gradients[0]
    assert x is not None
    assert y is not None
    if dy is None or not wanted[0]:
        return [None]
    return [lp_gradient(x, y, dy, int(op.attributes.get("p", 2))).astype(x.dtype)]
    yield  # a generator that never communicates


kernel(["com.microsoft::NhwcMaxPool", "com.microsoft::QLinearAveragePool"], _quantized_forward)
kernel(["AveragePoolGrad", "com.microsoft::AveragePoolGrad"], _average_gradient)
kernel(["MaxPoolGrad", "com.microsoft::MaxPoolGrad"], _max_gradient)
kernel(["MaxUnpool"], _unpool_forward, _unpool_backward)


@shared("AveragePool", "LpPool", "MaxPool", backward=_backward)
def _pool(c: Call) -> Coroutine:
    """The operator itself, on elements with their halo."""
    space = local_space(c.op, c.attr("kernel_shape"), c.place)
    grown = yield from fetch(c.operand(), space, "elements", c.place)
    y, *indices = c.run(explicit(c.op, space), [grown])
    return [y, *(i if i is None else _global_indices(c, i, grown.shape, space) for i in indices)]


def _global_indices(c: Call, indices: Any, local: tuple[int, ...], space: Sequence[Reach[Window]]) -> Any:
    """Indices into the flattened local elements, counted in the whole tensor instead."""
    order = range(len(space))[::-1] if c.attr("storage_order", 0) else range(len(space))
    here = [*local[:FIRST], *(local[FIRST + d] for d in order)]
    whole = [c.rule.factors["n"], c.rule.factors["c"], *(space[d].window.elements for d in order)]
    starts = [c.place.offset.get("n", 0), c.place.offset.get("c", 0), *(space[d].needed("elements")[0] for d in order)]
    found, stride = 0, 1
    for size, start, elements in reversed(list(zip(here, starts, whole, strict=True))):
        found = (indices % size + start) * stride + found
        indices, stride = indices // size, stride * elements
    return found


@shared("GlobalMaxPool", backward=_global_max_backward)
def _global_max(c: Call) -> Coroutine:
    """Modes `^x…` reduce the maximum inside; other splits leave it pending."""
    x = c.operand()
    axes, modes = tuple(range(FIRST, x.ndim)), [f for f in c.place.shards if f.startswith("^")]
    found = yield from c.over(c.still(c.xp.max(x, axis=axes, keepdims=True)), modes, "max")
    if c.followed:
        held = c.xp.astype(x == found, x.dtype)
        ties = yield from c.over(c.xp.sum(held, axis=axes, keepdims=True), modes)
        found = c.with_gradient(found, c.xp.sum(c.finite(x) * (held / ties), axis=axes, keepdims=True))
    return [found]


@shared("GlobalLpPool", backward=_global_lp_backward)
def _global_norm(c: Call) -> Coroutine:
    """The p-th root of a sum over all ranks."""
    x, p, xp = c.widened(), int(c.attr("p", 2)), c.xp
    powers = xp.sum(xp.abs(x) ** p, axis=tuple(range(FIRST, x.ndim)), keepdims=True)
    total = yield from c.over(powers, [f for f in c.place.shards if f.startswith("x")])
    return [c.like(total ** (1 / p))]
