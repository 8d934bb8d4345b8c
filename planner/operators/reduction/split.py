"""Reductions, running sums and extrema while the dimension that they run along is split."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array, axes_of, normalise_axis
from planner.kernels.local import run_local
from planner.kernels.precision import widen
from planner.kernels.session import NoKernelError
from planner.kernels.shared import Call, shared
from planner.kernels.split import kernel
from planner.kernels.spmd import Collective, Coroutine, Received, ShardContext, all_gather, all_reduce
from planner.operators.reduction.gradient import cumulated_product_gradient, product_of_others

__all__: list[str] = []

Operands = Sequence["Array | None"]
Reduced = Generator[Collective, Received, Array]


def _need(values: Operands, i: int = 0) -> Array:
    x = values[i]
    assert x is not None
    return x


def _axes(op: Op, inputs: Operands) -> tuple[int, ...]:
    rank = _need(inputs).ndim
    return tuple(dict.fromkeys(axes_of(op, inputs, 1, rank) or range(rank)))


def _over_all(value: Array, reduction: str, place: ShardContext) -> Reduced:
    for factor in place.inside():
        value = yield from all_reduce(value, reduction, factor)
    return value


def _axes_of(c: Call) -> tuple[int, ...]:
    """NoKernelError where nothing is reduced: an operator without axes may stand for its operand."""
    rank, given = c.operand().ndim, c.integers(1, "axes")
    if not given and c.attr("noop_with_empty_axes", 0):
        raise NoKernelError(f"operator {c.op.name} reduces nothing")
    return tuple(dict.fromkeys(a % rank for a in given or ())) or tuple(range(rank))


def _shaped(c: Call, value: Any, axes: tuple[int, ...]) -> Any:
    """From kept dimensions of size one to what the operator returns."""
    return value if c.attr("keepdims", 1) else c.xp.squeeze(value, axis=axes)


def _local_vjp(
    product: Callable[[Array, Array, Array], Array],
) -> Callable[[Op, Operands, Operands, Operands, Sequence[bool], ShardContext], Coroutine]:
    """A gradient that follows from local elements and the whole result: `product` of (x, y, dy)."""

    def backward(
        op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
    ) -> Coroutine:
        x, dy, axes = _need(inputs), gradients[0], _axes(op, inputs)
        if dy is None or not wanted[0]:
            return [None] * len(inputs)
        one_shape = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
        g = product(widen(x), widen(_need(outputs)).reshape(one_shape), widen(dy).reshape(one_shape))
        return [np.broadcast_to(g, x.shape).astype(x.dtype), *[None] * (len(inputs) - 1)]
        yield  # never communicates

    return backward


@shared("ReduceL2", backward=_local_vjp(lambda x, y, dy: dy * x / np.where(y == 0, 1, y)))
def _norm(c: Call) -> Coroutine:
    x, axes, xp = c.widened(), _axes_of(c), c.xp
    total = yield from c.over(xp.sum(xp.square(x), axis=axes, keepdims=True), c.place.inside())
    if c.followed:  # a norm of zero passes no gradient
        one = xp.asarray(1, dtype=total.dtype)
        return [_shaped(c, c.like(xp.where(total == 0, total, xp.sqrt(xp.where(total == 0, one, total)))), axes)]
    return [_shaped(c, c.like(xp.sqrt(total)), axes)]


@shared("ReduceLogSum", backward=_local_vjp(lambda x, y, dy: dy * np.exp(-y)))
def _log_sum(c: Call) -> Coroutine:
    x, axes, xp = c.widened(), _axes_of(c), c.xp
    total = yield from c.over(xp.sum(x, axis=axes, keepdims=True), c.place.inside())
    return [_shaped(c, c.like(xp.log(total)), axes)]


@shared("ReduceLogSumExp", backward=_local_vjp(lambda x, y, dy: dy * np.exp(x - y)))
def _log_sum_exp(c: Call) -> Coroutine:
    """An infinite maximum is not subtracted."""
    x, axes, xp = c.widened(), _axes_of(c), c.xp
    largest = yield from c.over(xp.max(x, axis=axes, keepdims=True), c.place.inside(), "max")
    base = xp.where(xp.isfinite(largest), largest, xp.asarray(0, dtype=x.dtype))
    total = yield from c.over(xp.sum(xp.exp(x - base), axis=axes, keepdims=True), c.place.inside())
    return [_shaped(c, c.like(xp.log(total) + base), axes)]


@shared("ReduceMean")
def _integer_mean(c: Call) -> Coroutine:
    """Of integers, whose quotient is cut off towards zero; a mean of floats is a pending sum instead."""
    x, axes, xp = c.operand(), _axes_of(c), c.xp
    if not str(x.dtype).rpartition(".")[2].startswith(("int", "uint")):
        raise NoKernelError(f"operator {c.op.name}: a mean of floats is computed by each rank by itself")
    total = yield from c.over(xp.sum(x, axis=axes, keepdims=True, dtype=x.dtype), c.place.inside())
    count = math.prod(x.shape[a] for a in axes) * c.shards(c.place.inside())
    return [_shaped(c, c.like(xp.sign(total) * (xp.abs(total) // count)), axes)]


def _product_back(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    """dX is dY times the product of all other elements: those here, and the products of the other ranks."""
    x, dy, axes = _need(inputs), gradients[0], _axes(op, inputs)
    mine = x.prod(axis=axes, keepdims=True, dtype=x.dtype)
    others = np.ones_like(mine)
    for factor in place.inside():
        parts = yield from all_gather(mine, factor)
        others = others * np.prod(np.stack([p for j, p in enumerate(parts) if j != place.index[factor]]), axis=0)
        mine = np.prod(np.stack(parts), axis=0, dtype=x.dtype)
    if dy is None or not wanted[0]:
        return [None] * len(inputs)
    dx = dy.reshape(others.shape) * others * product_of_others(x, axes)
    return [dx.astype(x.dtype), *[None] * (len(inputs) - 1)]


@shared("ReduceProd", backward=_product_back)
def _product(c: Call) -> Coroutine:
    x, axes, xp = c.operand(), _axes_of(c), c.xp
    value = xp.prod(x, axis=axes, keepdims=True, dtype=x.dtype)
    for factor in c.place.inside():
        parts = yield from c.gathered(value, factor)
        value = xp.prod(xp.stack(parts, axis=0), axis=0, dtype=x.dtype)
    return [_shaped(c, value, axes)]


def _extremum_back(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    """Elements that tie share the gradient, those of other ranks included."""
    x, y, dy, axes = _need(inputs), _need(outputs), gradients[0], _axes(op, inputs)
    one_shape = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
    held = widen((x == y.reshape(one_shape)).astype(x.dtype))
    ties = yield from _over_all(held.sum(axis=axes, keepdims=True), "sum", place)
    if dy is None or not wanted[0]:
        return [None] * len(inputs)
    return [(held * (dy.reshape(one_shape) / ties)).astype(x.dtype), *[None] * (len(inputs) - 1)]


@shared("ReduceMax", "ReduceMin", backward=_extremum_back)
def _extremum(c: Call) -> Coroutine:
    x, axes, largest = c.operand(), _axes_of(c), c.op.type == "ReduceMax"
    local = (c.xp.max if largest else c.xp.min)(x, axis=axes, keepdims=True)
    found = yield from c.over(c.still(local), c.place.inside(), "max" if largest else "min")
    if c.followed:  # elements that tie share the gradient, those of other ranks included
        held = c.xp.astype(x == found, x.dtype)
        ties = yield from c.over(c.xp.sum(held, axis=axes, keepdims=True), c.place.inside())
        found = c.with_gradient(found, c.xp.sum(c.finite(x) * (held / ties), axis=axes, keepdims=True))
    return [_shaped(c, found, axes)]


@shared("ArgMax", "ArgMin")
def _arg(c: Call) -> Coroutine:
    """Candidates of all ranks in the order of their shards: the first of equals wins, or the last on request."""
    x, xp = c.operand(), c.xp
    axis, last = c.axis(0, x.ndim), bool(c.attr("select_last_index", 0))
    factor = f"d{axis}"
    choose = xp.argmax if c.op.type == "ArgMax" else xp.argmin

    def place(values: Any, along: int) -> Any:
        if not last:
            return choose(values, axis=along, keepdims=True)
        return values.shape[along] - 1 - choose(xp.flip(values, axis=along), axis=along, keepdims=True)

    at = place(x, axis)
    values = yield from c.gathered(xp.take_along_axis(x, at, axis=axis), factor)
    places = yield from c.gathered(at + c.place.offset.get(factor, 0), factor)
    winner = place(xp.concat(values, axis=axis), axis)
    return [_shaped(c, xp.take_along_axis(xp.concat(places, axis=axis), winner, axis=axis), (axis,))]


def _running(op: Op, inputs: Operands) -> tuple[int, str]:
    """The axis and its factor."""
    axis = normalise_axis(int(_need(inputs, 1).reshape(())), _need(inputs).ndim)
    return axis, f"d{axis}"


def _cumulate(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    x, local = _need(inputs), _need(run_local(op, inputs))
    axis, factor = _running(op, inputs)
    join = np.add if op.type == "CumSum" else np.multiply
    parts = yield from all_gather(join.reduce(x, axis=axis, keepdims=True, dtype=x.dtype), factor)
    me = place.index[factor]
    for part in parts[me + 1 :] if op.attributes.get("reverse", 0) else parts[:me]:
        local = join(local, part)
    return [local.astype(x.dtype)]


def _cumulated_sum_back(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    """A running sum from the other end."""
    dy = gradients[0]
    g = np.zeros_like(_need(inputs)) if dy is None else dy
    turned = {**op.attributes, "reverse": 1 - op.attributes.get("reverse", 0)}
    found = yield from _cumulate(Op(op.name, op.type, op.inputs, op.outputs, turned, op.opset), [g, inputs[1]], place)
    return [found[0] if wanted[0] else None, None]


def _cumulated_product_back(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    """Gradients run through a shard as g → a + p·g, where p is the product of its elements."""
    x = _need(inputs)
    axis, factor = _running(op, inputs)
    dy = np.zeros_like(x) if gradients[0] is None else gradients[0]
    reverse, exclusive = bool(op.attributes.get("reverse", 0)), bool(op.attributes.get("exclusive", 0))
    product = x.prod(axis=axis, keepdims=True, dtype=x.dtype)
    one, zero = np.ones_like(product), np.zeros_like(product)
    _, through = cumulated_product_gradient(x, dy, axis, one, zero, reverse=reverse, exclusive=exclusive)
    gathered = yield from all_gather(np.stack([product, through.astype(x.dtype)]), factor)
    order = list(range(len(gathered)))[:: -1 if reverse else 1]
    me = order.index(place.index[factor])
    before, after = one, zero
    for j in order[:me]:
        before = before * gathered[j][0]
    for j in reversed(order[me + 1 :]):
        after = gathered[j][1] + gathered[j][0] * after
    dx, _ = cumulated_product_gradient(x, dy, axis, before, after, reverse=reverse, exclusive=exclusive)
    return [dx.astype(x.dtype) if wanted[0] else None, None]


@shared("CumSum", backward=_cumulated_sum_back)
def _running_sum(c: Call) -> Coroutine:
    """The local one, and the sums of the shards before it (behind it, in reverse)."""
    x, xp = c.operand(), c.xp
    (axis,) = (a % x.ndim for a in c.integers(1, "axis") or (0,))
    factor = f"d{axis}"
    (local,) = c.run(c.op, c.inputs)
    parts = yield from c.gathered(xp.sum(x, axis=axis, keepdims=True, dtype=x.dtype), factor)
    me = c.place.index[factor]
    for part in parts[me + 1 :] if c.attr("reverse", 0) else parts[:me]:
        local = local + part
    if c.followed:  # all ranks hand gradients back together, those too that add nothing
        local = local + xp.sum(xp.stack(parts, axis=0)[:0, ...], axis=0)
    return [c.like(local)]


def _dynamic_quantize(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    """The local operator sees the extrema of all ranks beside its own elements."""
    x = _need(inputs)
    range_ = np.array([-x.min(), x.max()], dtype=x.dtype)
    for factor in place.inside():
        range_ = yield from all_reduce(range_, "max", factor)
    seen = np.concatenate([x.reshape(-1), [-range_[0], range_[1]]]).astype(x.dtype)
    y, scale, zero = run_local(op, [seen])
    return [None if y is None else y[:-2].reshape(x.shape), scale, zero]


kernel(["CumProd"], _cumulate, _cumulated_product_back)
kernel(["DynamicQuantizeLinear"], _dynamic_quantize)
