"""Pools: batch, channels and space are split; sliding windows need a halo unless they tile space."""

from __future__ import annotations

import math

from planner.rules.notation import labels
from planner.rules.operator import KeepWholeError, Operator, sharded
from planner.rules.registry import rule
from planner.rules.rule import Combine, InnerCollective, Rule
from planner.rules.window import Space, windows

__all__ = ["response_reach"]


@rule("AveragePool", "LpPool", "MaxPool")
def _pool(o: Operator) -> Rule:
    """The backward of a maximum or a norm fetches the halo once more, and gives its gradient back.

    MaxPool's second result numbers elements of the whole tensor, which every split must know of.
    """
    kernel = tuple(int(k) for k in o.attribute("kernel_shape", ()))
    space = Space.of(windows(o.op.attributes, kernel, o.shape(0)[2:], o.result()[2:]))
    average, indexed = o.type == "AveragePool", o.yields(1)
    halo = space.halo("elements", ("n", "c"), o.item_bytes)
    again = () if average else space.halo("elements", ("n", "c"), o.item_bytes, backward=True)
    return sharded(
        o,
        f"n c {space.elements} -> n c {space.positions}, n c {space.positions}",
        kind="pooling",
        sizes=space.sizes,
        linear=[(0,)] if average else [],
        differentiable=(0,),
        saved=() if average else (0,),
        saved_results=() if average else (0, 1),
        flops=float(math.prod(kernel) * math.prod(o.result())),
        aware=("n", "c", *space.factors) if indexed else space.aware,
        inner=(*halo, *again, *space.halo("elements", ("n", "c"), o.item_bytes, back=True, backward=True)),
    )


@rule("com.microsoft::NhwcMaxPool", "com.microsoft::QLinearAveragePool")
def _quantized_pool(o: Operator) -> Rule:
    """Pools of bytes: each window is rounded once.  Scales and zero points stay whole."""
    last = _channels_last(o)
    kernel = tuple(int(k) for k in o.attribute("kernel_shape", ()))
    sizes = [s[1:-1] if last else s[2:] for s in (o.shape(0), o.result())]
    space = Space.of(windows(o.op.attributes, kernel, sizes[0], sizes[1]))
    read, made = (f"n {s} c" if last else f"n c {s}" for s in (space.elements, space.positions))
    return sharded(
        o,
        f"{read}{', *...' * (len(o.inputs) - 1)} -> {made}",
        kind="pooling",
        sizes=space.sizes,
        flops=float(math.prod(kernel) * math.prod(o.result())),
        aware=space.aware,
        inner=space.halo("elements", ("n", "c"), o.item_bytes),
    )


@rule("com.microsoft::QLinearGlobalAveragePool")
def _quantized_global_pool(o: Operator) -> Rule:
    """The mean over space is rounded: space stays whole."""
    dims = "n *... c" if _channels_last(o) else "n c *..."
    text = f"{dims}{', *...' * (len(o.inputs) - 1)} -> {dims}"
    return sharded(o, text, kind="reduction", flops=float(math.prod(o.shape(0))))


def _channels_last(o: Operator) -> bool:
    return o.type == "com.microsoft::NhwcMaxPool" or bool(o.attribute("channels_last", 0))


@rule("MaxUnpool")
def _max_unpool(o: Operator) -> Rule:
    """Indices number elements of the whole result, which a split of batch or channels must know of.

    They may lie anywhere in space.
    """
    if o.has(2) and o.result() != _unpooled(o):
        raise KeepWholeError("indices and result number elements differently")
    return sharded(
        o,
        f"n c *..., n c *..., - -> n c {labels('s', o.rank(0) - 2, whole=True)}",
        kind="gather",
        linear=[(0,)],
        differentiable=(0,),
        saved=(1,),
        flops=0.0,
        backward_flops=float(math.prod(o.shape(0))),
        shape_operand=2 if o.has(2) else None,
        aware=("n", "c"),
    )


def _unpooled(o: Operator) -> tuple[int, ...]:
    """The shape that the indices refer to: the pooled tensor's own."""
    kernel, rank = o.attribute("kernel_shape", ()), o.rank(0) - 2
    strides, pads = o.attribute("strides", ()) or (1,) * rank, o.attribute("pads", ()) or (0,) * 2 * rank
    image = (
        (n - 1) * s + k - b - e
        for n, s, k, b, e in zip(o.shape(0)[2:], strides, kernel, pads[:rank], pads[rank:], strict=True)
    )
    return (*o.shape(0)[:2], *image)


def _space(o: Operator) -> list[str]:
    return [f"x{i}" for i in range(o.rank(0) - 2)]


def _global_text(o: Operator) -> str:
    return f"n c {' '.join(_space(o))} -> n c {' '.join('1' for _ in _space(o))}"


@rule("GlobalAveragePool")
def _global_average_pool(o: Operator) -> Rule:
    return sharded(
        o,
        _global_text(o),
        kind="reduction",
        combine=dict.fromkeys(_space(o), Combine.MEAN),
        linear=[(0,)],
        differentiable=(0,),
        flops=float(math.prod(o.shape(0))),
    )


@rule("GlobalMaxPool")
def _global_max_pool(o: Operator) -> Rule:
    """Space is split to a pending maximum, or, in modes that can be trained, to one that is reduced inside.

    The backward shares the gradient among all elements that hold the maximum, and must count them.
    """
    space = _space(o)
    reduced = {f"^{x}": (x,) for x in space}
    return sharded(
        o,
        _global_text(o),
        kind="reduction",
        combine={**dict.fromkeys(space, Combine.MAX), **dict.fromkeys(reduced, Combine.INNER)},
        modes=reduced,
        inner=(
            *(InnerCollective(m, "all_reduce", ("n", "c"), o.item_bytes, reduction="max") for m in reduced),
            *(InnerCollective(m, "all_reduce", ("n", "c"), o.item_bytes, backward=True) for m in reduced),
        ),
        differentiable=(0,),
        saved=(0,),
        saved_results=(0,),
        flops=float(math.prod(o.shape(0))),
    )


@rule("GlobalLpPool")
def _global_lp_pool(o: Operator) -> Rule:
    """The sum over space is reduced inside, before its root is taken."""
    space = _space(o)
    return sharded(
        o,
        _global_text(o),
        kind="reduction",
        combine=dict.fromkeys(space, Combine.INNER),
        inner=[InnerCollective(x, "all_reduce", ("n", "c"), max(o.item_bytes, 4), statistic=True) for x in space],
        differentiable=(0,),
        saved=(0,),
        saved_results=(0,),
        flops=2.0 * math.prod(o.shape(0)),
    )


def response_reach(size: int) -> tuple[int, int]:
    """Channels before and after its own that a window of LRN covers."""
    return (size - 1) // 2, size - 1 - (size - 1) // 2


@rule("LRN")
def _lrn(o: Operator) -> Rule:
    """Each element is scaled by a window over channels, whose ends other ranks hold; the backward fetches them again,
    and those of what flows through the windows."""
    channels, (before, after) = o.shape(0)[1], response_reach(int(o.attribute("size", 1)))

    def given(shards: int) -> int:
        """The most channels that a rank gives to others."""
        part = channels // shards
        reached = [range(max(j * part - before, 0), min((j + 1) * part + after, channels)) for j in range(shards)]
        to_others = [
            sum(c in r for j, r in enumerate(reached) if j != i for c in range(i * part, (i + 1) * part))
            for i in range(shards)
        ]
        return max(to_others)

    rows = ("n", *(f"x{i}" for i in range(o.rank(0) - 2)))
    return sharded(
        o,
        "n c x... -> n c x...",
        kind="normalization",
        differentiable=(0,),
        saved=(0,),
        saved_results=(0,),
        flops=float(2 * int(o.attribute("size", 1)) + 8) * math.prod(o.shape(0)),
        whole=["c"] if before + after >= channels else [],  # nearly all of it would travel
        inner=[
            InnerCollective("c", "permute", rows, o.item_bytes, backward=backward, count=1 + backward, extent=given)
            for backward in (False, True)
        ],
        aware=["c"],
    )
