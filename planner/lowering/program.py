"""The program that every rank runs: the same instructions, on its own shards.

A value is named by its tensor and the layout it lies in.  Gradients live beside values under the same names:
contributions to one (tensor, layout) add up, and converting a gradient takes it away from its source.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from planner.ir import DeviceMesh, Graph, Layout
from planner.pricing.machine import Settings
from planner.redistribute import RedistributionStep
from planner.redistribute.steps import FREE
from planner.rules.rule import Rule
from planner.rules.strategy import Strategy

__all__ = [
    "Free",
    "GradientPart",
    "Host",
    "Instruction",
    "Load",
    "Program",
    "Redistribute",
    "Run",
    "Seed",
    "StageInstruction",
    "Traffic",
]


GradientPart = Literal["", "values", "weights"]


@dataclass(frozen=True, slots=True)
class Load:
    """A parameter (in its stored layout), an input or a constant appears in `layout`, without communication."""

    tensor: str
    layout: Layout


@dataclass(frozen=True, slots=True)
class Run:
    """An operator, or its vector-Jacobian product, on local shards; `part`: of the gradients those of `values` alone,
    which leaves what it is made of for those of `weights`."""

    op: str
    backward: bool = False
    part: GradientPart = ""


@dataclass(frozen=True, slots=True)
class Redistribute:
    """A redistribution of a tensor or its gradient; `reader` is the operator it serves alone, if only one."""

    tensor: str
    gradient: bool
    source: Layout
    target: Layout
    steps: tuple[RedistributionStep, ...]
    reader: str = ""


@dataclass(frozen=True, slots=True)
class Seed:
    """The gradient that enters at the loss (one) or, in a graph that ends before it, at an output; `weight` times that
    of a micro-batch among several, whose mean a step's gradient is."""

    tensor: str
    layout: Layout
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Free:
    """A value that is let go, though the backward pass wants it again."""

    tensor: str
    layout: Layout


@dataclass(frozen=True, slots=True)
class Host:
    """A value that goes to the host's memory, which leaves the device without it, or comes `back` from there."""

    tensor: str
    layout: Layout
    back: bool = False


Instruction = Load | Run | Redistribute | Seed
StageInstruction = Instruction | Free | Host  # of a pipeline stage, which says what it holds between its passes


@dataclass(frozen=True, slots=True)
class Traffic:
    """Collectives of one kind: how many, and the bytes of the tensors they work on, summed over one group each."""

    count: int
    bytes: int


@dataclass(frozen=True, eq=False)
class Program:
    """`instructions` in order of execution; `final_gradients` is where each parameter's gradient ends up."""

    graph: Graph
    mesh: DeviceMesh
    rules: Mapping[str, Rule]
    strategies: Mapping[str, Strategy]
    instructions: tuple[Instruction, ...]
    active: frozenset[str]
    final_gradients: Mapping[str, Layout]

    def redistributions(self) -> list[Redistribute]:
        return [i for i in self.instructions if isinstance(i, Redistribute)]

    def moved(self, redistributions: Iterable[Redistribute], tensor_bytes: Mapping[str, int]) -> dict[str, Traffic]:
        """Collectives of these redistributions, by kind.  `tensor_bytes`: whole size by tensor."""
        counts: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        for redistribution in redistributions:
            for step in redistribution.steps:
                if step.kind not in FREE:
                    counts[str(step.kind)] += 1
                    sizes[str(step.kind)] += round(step.group_bytes(tensor_bytes[redistribution.tensor], self.mesh))
        return {kind: Traffic(counts[kind], sizes[kind]) for kind in sorted(counts)}

    def traffic(self, settings: Settings) -> dict[str, Traffic]:
        """Collectives by kind, those inside operators included, in the precision of `settings`."""
        redistributions = self.redistributions()
        between = self.moved(
            redistributions, {c.tensor: settings.tensor_bytes(self.graph.tensors[c.tensor]) for c in redistributions}
        )
        counts = Counter({kind: t.count for kind, t in between.items()})
        sizes = Counter({kind: t.bytes for kind, t in between.items()})
        for run in (i for i in self.instructions if isinstance(i, Run)):
            for c in self.strategies[run.op].inner:
                if c.backward == run.backward:
                    counts[c.kind] += c.count
                    ranks = 1 if c.kind in ("all_reduce", "permute") else self.mesh.size(c.axes)
                    sizes[c.kind] += c.count * settings.payload_bytes(c) * ranks
        return {kind: Traffic(counts[kind], sizes[kind]) for kind in sorted(counts)}
