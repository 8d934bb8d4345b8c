"""A program of one stage and one micro-batch on whole values: what measurements and comparisons of operators run."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from planner.ir import Layout
from planner.kernels.shards import Array
from planner.lowering import Program, passes, staged
from planner.lowering.touched import Key
from planner.runtime.stage import Stage, Watch
from planner.runtime.workers import Context

__all__ = ["Rank"]


class Rank:
    """`program` on this process's rank.  After a step `values` holds the outputs of the graph, and `gradients` what the
    program has made and nothing has used."""

    def __init__(self, program: Program, whole: Mapping[str, Array], context: Context) -> None:
        only = passes("1f1b", 1, 1, 1, training=bool(program.active))
        parts = staged(program, {op.name: 0 for op in program.graph.ops}, only, {}, {})
        self.stage = Stage(parts, context, whole)
        self.fallbacks = self.stage.fallbacks
        self.values: dict[Key, Tensor] = {}
        self.gradients: dict[Key, Tensor] = {}
        self._whole = whole
        self._fed: dict[Key, Tensor] = {}

    @property
    def seeds(self) -> Mapping[Key, Tensor]:
        """The gradients that enter."""
        return self.stage.seeds

    def step(self, watch: Watch | None = None) -> None:
        """One forward pass, and one backward pass where the program has one."""
        self.stage.step(self._feed, watch, left=(self.values, self.gradients))

    def _feed(self, name: str, layout: Layout, _: int) -> Tensor:
        if (name, layout) not in self._fed:
            self._fed[name, layout] = self.stage.local(self._whole[name], layout)
        return self._fed[name, layout]
