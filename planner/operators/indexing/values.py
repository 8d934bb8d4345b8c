"""What look-ups ask of the values of their operands: that indices lie inside of what they index."""

from __future__ import annotations

from planner.kernels.attributes import normalise_axis
from planner.verify.uses import Reading, Use, Uses, hands_on, reads

__all__: list[str] = []

hands_on("TopK")


@reads("Gather")
def _gather(r: Reading) -> Uses:
    return {0: r.moved(rows=False), **_along_axis(r)}


@reads("GatherElements")
def _gather_elements(r: Reading) -> Uses:
    return {0: r.moved(rows=False), **_along_axis(r)}


@reads("ScatterElements")
def _scatter_elements(r: Reading) -> Uses:
    return {0: r.moved(), **_along_axis(r), 2: r.moved(2)}


def _along_axis(r: Reading) -> Uses:
    data = r.shape(0)
    return {1: Use(below=(data[normalise_axis(r.attr("axis", 0), len(data))],))} if data else {}


@reads("GatherND")
def _gather_nd(r: Reading) -> Uses:
    return {0: r.moved(rows=False), **_by_component(r, r.attr("batch_dims", 0))}


@reads("ScatterND")
def _scatter_nd(r: Reading) -> Uses:
    return {0: r.moved(), **_by_component(r, 0), 2: r.moved(2)}


def _by_component(r: Reading, batch: int) -> Uses:
    """Every component of an index has its own dimension, of which the first stand behind the batch."""
    depth = (r.shape(1) or (0,))[-1]
    return {1: Use(below=r.shape(0)[batch : batch + depth])} if depth else {}


@reads("OneHot")
def _one_hot(r: Reading) -> Uses:
    depth = r.value(1)
    return {} if depth is None else {0: Use(below=(int(depth.reshape(-1)[0]),))}
