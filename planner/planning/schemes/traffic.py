"""Bytes that a way to run an operator moves along an axis, by which ways that a rule leaves open are compared.

They are whole numbers, in the graph's own element types, that the ranks of the axis, or axes, receive together (Thakur
et al. 2005: a ring all-reduce of S bytes among n ranks is a reduce-scatter and an all-gather, of (n - 1) S each).
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from planner.ir import DeviceMesh, Graph, Layout, Op, Reduction
from planner.planning.schemes.model import Model
from planner.planning.schemes.ways import Layouts, Way
from planner.redistribute import Parts, Redistributions, parts_of_both, reduction_of_both
from planner.rules.strategy import BoundCollective

__all__ = ["Traffic"]


class _Received:
    """Prices of collectives: what the ranks of a mesh receive together."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh

    def collective(
        self, kind: str, axes: tuple[str, ...], group_bytes: NDArray[np.float64], share: object = 1.0
    ) -> NDArray[np.int64]:
        n = self.mesh.size(axes)
        once = {"all_gather": n - 1, "reduce_scatter": n - 1, "all_to_all": (n - 1) / n, "permute": 1}
        times = once | {"all_reduce": 2 * (n - 1)}
        return np.rint(group_bytes * times[kind] * (self.mesh.devices // n)).astype(np.int64)


class Traffic:
    """Along some `axes` of `mesh`, usually the innermost one; the others have cut tensors already, as each way says."""

    def __init__(self, graph: Graph, model: Model, mesh: DeviceMesh, axes: DeviceMesh | None = None) -> None:
        self.graph = graph
        self.active = model.active
        self.weights = model.weights
        self.mesh = mesh
        self._axes = DeviceMesh(mesh.axes[-1:]) if axes is None else axes
        self._table = cache(self._found)

    def of(self, op: Op, way: Way, arrive: Layouts, leave: Layouts) -> int:
        """Where operands arrive and results leave so (None: in any layout), forward and backward."""
        total = 0
        for t, mine, need, back, have in zip(
            op.inputs, way.strategy.operands, way.operands, way.operand_gradients, arrive, strict=True
        ):
            if t and mine is not None and need is not None and have is not None:
                total += self.moved(t, mine, have, need)
                if t in self.active and t not in self.weights:  # sums of weights come once a step
                    total += self.moved(t, mine, back or need, have)
        for t, mine, have, back, need in zip(
            op.outputs, way.strategy.results, way.results, way.result_gradients, leave, strict=True
        ):
            if t and mine is not None and need is not None and have is not None:
                total += self.moved(t, mine, have, need)
                if t in self.active:
                    total += self.moved(t, mine, need, back or have)
        flows = any(t in self.active for t in op.outputs)
        return total + sum(self._inside(c) for c in way.inner if flows or not c.backward)

    def moved(self, tensor: str, mine: Layout, source: Layout, target: Layout) -> int:
        """Between two layouts along the axes, of a tensor that lies as `mine` along all."""
        if source == target:
            return 0
        t = self.graph.tensors[tensor]
        assert t.shape is not None
        reduction, parts = reduction_of_both(source, target), parts_of_both(source, target)
        outside = self.mesh.size(a for a in mine.split_axes if a not in self._axes.names)
        return self._table(t.shape, t.bytes // outside, reduction, parts).cost(source, target)

    def _found(self, shape: tuple[int, ...], size: int, reduction: Reduction, parts: Parts) -> Redistributions:
        return Redistributions(shape, size, self._axes, _Received(self._axes), reduction, parts)

    def _inside(self, c: BoundCollective) -> int:
        """Of a collective inside the operator, the share of the axis's ranks where others take part, too."""
        n = self.mesh.size(c.axes)
        times = {"all_reduce": 2 * (n - 1), "all_gather": n * (n - 1), "all_to_all": n - 1, "permute": n}[c.kind]
        return c.count * c.bytes * times // (n // self._axes.devices)
