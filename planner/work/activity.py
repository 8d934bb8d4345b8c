"""Which tensors carry a gradient, which must live until the backward pass, and what is computed once for all."""

from __future__ import annotations

from collections.abc import Mapping

from planner.frontends.steps.quantized import is_quantisation_parameter
from planner.ir import Graph, Op, Role
from planner.ir.memoized import memoized
from planner.rules.rule import Rule

__all__ = [
    "active_tensors",
    "fixed_operators",
    "gradient_sources",
    "made_of_parameters",
    "saved_for_backward",
    "saved_slots",
    "trained_parameters",
]


def gradient_sources(graph: Graph) -> tuple[str, ...]:
    """Where gradients come from: the loss, or, where the graph ends before it, every float output."""
    if graph.loss is not None:
        return (graph.loss,)
    return tuple(t for t in graph.outputs if graph.tensors[t].is_float and graph.tensors[t].shape is not None)


@memoized
def trained_parameters(graph: Graph) -> frozenset[str]:
    """Parameters that an optimizer changes: neither frozen, nor quantised, nor the scales of what is."""

    def scales(op: Op, operand: int) -> bool:
        return is_quantisation_parameter(op, operand) and any(
            t and graph.tensors[t].is_quantised for k, t in enumerate(op.inputs) if k < operand
        )

    return frozenset(
        t.name
        for t in graph.parameters
        if not t.frozen and not t.is_quantised and not all(scales(op, k) for op, k in graph.consumers.get(t.name, ()))
    )


def active_tensors(graph: Graph, rules: Mapping[str, Rule]) -> frozenset[str]:
    """Tensors with a gradient in training: float, reached by a parameter, and leading to a gradient source
    through differentiable operands.  `rules` maps operator names to rules."""
    reached = set(trained_parameters(graph))
    for op in graph.ops:
        rule = rules[op.name]
        if any(op.inputs[i] in reached for i in rule.differentiable if i < len(op.inputs)):
            reached.update(t for t in op.outputs if t and graph.tensors[t].is_float)
    wanted = set(gradient_sources(graph))
    for op in reversed(graph.ops):
        if any(t in wanted for t in op.outputs):
            rule = rules[op.name]
            wanted.update(op.inputs[i] for i in rule.differentiable if i < len(op.inputs) and op.inputs[i])
    return frozenset(reached & wanted)


def saved_for_backward(graph: Graph, rules: Mapping[str, Rule], active: frozenset[str]) -> frozenset[str]:
    """Tensors that some operator's backward reads."""
    saved: set[str] = set()
    for op in graph.ops:
        if any(t in active for t in op.outputs):
            saved.update(op.inputs[i] for i in saved_slots(op, rules[op.name], active))
            saved.update(op.outputs[i] for i in rules[op.name].saved_results if i < len(op.outputs))
    saved.discard("")
    return frozenset(saved)


def saved_slots(op: Op, rule: Rule, active: frozenset[str]) -> frozenset[int]:
    """Operands that the backward reads.  One in which the operator is linear by itself (a factor of a product)
    is read for the gradients of the others alone."""
    differentiable = [i for i in rule.differentiable if i < len(op.inputs) and op.inputs[i] in active]
    return frozenset(
        i
        for i in rule.saved_operands
        if i < len(op.inputs) and (frozenset({i}) not in rule.linear or any(j != i for j in differentiable))
    )


@memoized
def fixed_operators(graph: Graph) -> frozenset[str]:
    """Operators that compute with constants alone (rotary tables, causal masks): the same at every step.

    A runtime computes them once, so they are kept whole on every rank and priced at nothing.
    """
    fixed: set[str] = set()
    known = {t.name for t in graph.tensors.values() if t.role is Role.CONSTANT}
    for op in graph.ops:
        if op.type.startswith("Random") or op.type in ("Bernoulli", "Multinomial", "Dropout"):
            continue
        if all(t in known for t in op.inputs if t):
            fixed.add(op.name)
            known.update(t for t in op.outputs if t)
    return frozenset(fixed)


@memoized
def made_of_parameters(graph: Graph) -> frozenset[str]:
    """Parameters, and tensors made of parameters and constants alone: runtimes keep them as their readers want them."""
    weights = {t.name for t in graph.parameters}
    constant = {t.name for t in graph.tensors.values() if t.role is Role.CONSTANT}
    for op in graph.ops:
        read = [t for t in op.inputs if t]
        if any(t in weights for t in read) and all(t in weights or t in constant for t in read):
            weights.update(t for t in op.outputs if t)
    return frozenset(weights)
