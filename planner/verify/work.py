"""How much it takes to execute a graph, and how much may be taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from planner.frontends.steps.experts import EXPERT_MATMUL
from planner.ir import Graph, Tensor
from planner.pricing import bind_rules
from planner.rules.rule import Rule

__all__ = ["Budget", "ExecutionCost", "most_held", "work_of"]


@dataclass(frozen=True, slots=True)
class ExecutionCost:
    """What executing a graph once takes: multiply-adds count two; bytes of all tensors at single precision.
    `held_bytes`: of those that are there at once where each is kept until its last reader."""

    flops: float
    parameter_bytes: int
    activation_bytes: int
    held_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be executed in reasonable time and memory on an ordinary machine."""

    flops: float
    parameter_bytes: int = 2 << 30
    activation_bytes: int = 2 << 30
    held_bytes: int = 2 << 30

    def holds(self, work: ExecutionCost) -> bool:
        return (
            work.flops <= self.flops
            and work.parameter_bytes <= self.parameter_bytes
            and work.activation_bytes <= self.activation_bytes
            and work.held_bytes <= self.held_bytes
        )


def work_of(graph: Graph, rules: Mapping[str, Rule] | None = None) -> ExecutionCost:
    """Forward work of the graph."""
    rules = bind_rules(graph)[0] if rules is None else rules
    computing = [
        op for op in graph.ops if rules[op.name].cost.kind != "free"
    ]  # the others give views of their operands
    produced = sum(graph.tensors[t].elements for op in computing for t in op.outputs if t)
    # The reference makes the weights of every token, where a rank groups the tokens.
    spelled = sum(int(rules[op.name].cost.flops) // 2 for op in graph.ops if op.type == EXPERT_MATMUL)
    return ExecutionCost(
        sum(r.cost.flops for r in rules.values()),
        4 * sum(t.elements for t in graph.parameters),
        4 * (produced + spelled),
        most_held(graph, lambda t: 4 * t.elements),
    )


def most_held(graph: Graph, size: Callable[[Tensor], int]) -> int:
    """The most bytes of computed tensors at once, each kept until its last reader; `size` gives those of one."""
    last = {t: op.name for op in graph.ops for t in op.inputs}
    now = most = 0
    for op in graph.ops:
        now += sum(size(graph.tensors[t]) for t in op.outputs if t)
        most = max(most, now)
        ended = {t for t in (*op.inputs, *op.outputs) if t in graph.producers and last.get(t, op.name) == op.name}
        now -= sum(size(graph.tensors[t]) for t in ended)
    return most
