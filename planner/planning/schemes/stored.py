"""Where the parameters of a known configuration lie between steps."""

from __future__ import annotations

import glob
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from planner.ir import DeviceMesh, Graph, Layout, Tensor
from planner.planning.constraints.values import LayoutPin, ParameterPin
from planner.pricing.optimizer_parallel import divided_further
from planner.rules.strategy import Strategy
from planner.targets import Target
from planner.work.activity import trained_parameters

__all__ = ["Inside", "beyond_zero", "cut_further", "divide_alike", "held_whole", "ranks_that_divide", "stored"]

_FEW = 1e-3  # of all elements: so many parameters make no difference that is seen


@dataclass(frozen=True, slots=True)
class Inside:
    """Ranks inside of the data-parallel ones, over which ZeRO divides weights as well: all of those that divide
    positions, and of those that divide experts for weights other than the experts', which are apart already."""

    experts: int = 1
    positions: int = 1

    def shards(self, tensor: Tensor, ranks: int) -> int:
        """Of the tensor, among so many data-parallel ranks."""
        return ranks * self.positions * (1 if self._apart(tensor) else self.experts)

    def even(self, tensor: Tensor, ranks: int) -> bool:
        return any(size % self.shards(tensor, ranks) == 0 for size in tensor.shape or ())

    def _apart(self, tensor: Tensor) -> bool:
        """Whether it is likely to be a stack of the experts' weights."""
        return self.experts > 1 and tensor.rank > 2


def ranks_that_divide(graph: Graph, ranks: int, inside: Inside = Inside()) -> int:
    """The divisor of so many data-parallel ranks over which parameters, whose shards are even, are cut into the
    smallest of them, of equals the largest.  Ranks `inside` of these cut them as well."""

    def held(count: int) -> float:
        return sum(t.elements / (inside.shards(t, count) if inside.even(t, count) else 1) for t in graph.parameters)

    return min((d for d in range(1, ranks + 1) if ranks % d == 0), key=lambda d: (held(d), -d))


def divide_alike(graph: Graph, ranks: int, group: int, inside: Inside = Inside()) -> bool:
    """Whether parameters are cut into shards by a group of data-parallel ranks as by all of them: on either those that
    have even shards, which are the same ones but for a thousandth of all elements."""
    if ranks_that_divide(graph, ranks, inside) != ranks or ranks_that_divide(graph, group, inside) != group:
        return False
    differ = sum(t.elements for t in graph.parameters if inside.even(t, ranks) != inside.even(t, group))
    return differ <= _FEW * sum(t.elements for t in graph.parameters)


def stored(
    graph: Graph,
    strategies: Mapping[str, Strategy],
    mesh: DeviceMesh,
    over: Sequence[str],
    context: Sequence[str],
    source: str,
    target: Target,
    whole: Collection[str] = (),
) -> tuple[ParameterPin, ...]:
    """Parameters lie as their first reader computes with them; the first dimension that divides is cut further `over`
    the axes whose ranks hold the same weights.  Ranks of the `context` axes hold them whole, of positions too, of which
    each reads a part.  `target`: MindSpore's optimizer parallel cuts dimension 0 alone, among all ranks with equal
    parts.  What stays `whole` is not cut further."""
    out = []
    for name, read in held_whole(graph, strategies, context).items():
        t = graph.tensors[name]
        if name in whole:
            cut = read
        elif target == "mindspore":
            cut = _divided(t, read, mesh) if over else read
        else:
            cut = cut_further(t, read, mesh, over)
        out.append(ParameterPin(source, (glob.escape(name),), stored=LayoutPin(cut.dims, parts=cut.parts)))
    return tuple(out)


def beyond_zero(graph: Graph, zero: int) -> frozenset[str]:
    """Parameters that a level of ZeRO leaves whole in training: below 3 it divides what an optimizer updates, and to
    store others in shards would be to gather in every step what never changes."""
    return frozenset() if zero == 3 else frozenset(t.name for t in graph.parameters) - trained_parameters(graph)


def held_whole(graph: Graph, strategies: Mapping[str, Strategy], context: Sequence[str]) -> dict[str, Layout]:
    """Parameters as their first reader computes with them, but whole on the ranks of the `context` axes."""
    out = {}
    for t in graph.parameters:
        readers = [(op, i) for op, i in graph.consumers.get(t.name, ()) if op.name in strategies]
        if t.shape is not None and readers:
            op, slot = readers[0]
            layout = strategies[op.name].operands[slot] or Layout.replicated(len(t.shape))
            dims = tuple(tuple(a for a in d if a not in context) for d in layout.dims)
            out[t.name] = Layout(dims, (), layout.parts)
    return out


def _divided(tensor: Tensor, layout: Layout, mesh: DeviceMesh) -> Layout:
    further = divided_further(layout, mesh)
    even = all(size % mesh.size(axes) == 0 for size, axes in zip(tensor.shape or (), further.dims, strict=True))
    return further if even else layout


def cut_further(tensor: Tensor, layout: Layout, mesh: DeviceMesh, over: Sequence[str]) -> Layout:
    """The layout where all axes `over` that do not split it yet split one dimension further: one that nothing splits
    first, since weights are gathered over the ranks that share them alone.  As it is where none divides evenly."""
    over = [a for a in over if a not in layout.split_axes]
    for d, size in sorted(enumerate(tensor.shape or ()), key=lambda item: bool(layout.dims[item[0]])):
        if over and size % (mesh.size([*layout.dims[d], *over]) * layout.parts_of(d)) == 0:
            axes = tuple(a for a in mesh.names if a in (*layout.dims[d], *over))
            return Layout(tuple(axes if i == d else x for i, x in enumerate(layout.dims)), (), layout.parts)
    return layout
