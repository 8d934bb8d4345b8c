"""What is known of a graph before any configuration, kept with the graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from planner.errors import UsageError
from planner.ir import Graph
from planner.rules.bound import bind_rules
from planner.rules.rule import Rule
from planner.work.activity import active_tensors, fixed_operators, made_of_parameters

__all__ = ["Model", "model_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """Rules, gradients and weights of a graph; does not refer to the graph, which would never be freed.

    Operators that look the same share one rule.  `active` are tensors with a gradient, `fixed` operators that compute
    the same at every step, `weights` parameters and tensors made of parameters alone.
    """

    rules: Mapping[str, Rule]
    active: frozenset[str]
    fixed: frozenset[str]
    weights: frozenset[str]


_MODELS: WeakKeyDictionary[Graph, Model] = WeakKeyDictionary()


def model_of(graph: Graph) -> Model:
    """UsageError for a graph that computes its own gradients: they would be counted twice."""
    if graph not in _MODELS:
        if _holds_backward(graph):
            raise UsageError(
                f"the model {graph.name!r} computes gradients of its weights itself; give its forward part: the "
                "backward pass is derived from it"
            )
        rules, _ = bind_rules(graph)
        _MODELS[graph] = Model(
            rules,
            active_tensors(graph, rules),
            fixed_operators(graph),
            made_of_parameters(graph),
        )
    return _MODELS[graph]


def _holds_backward(graph: Graph) -> bool:
    """Whether most of its results have the shapes of its parameters, as gradients or updated weights do; statistics
    that a normalisation hands on have those of its scales."""
    shapes = Counter(t.shape for t in graph.parameters)
    statistics = {t for op in graph.ops if op.type == "BatchNormalization" for t in op.outputs[1:]}
    results = Counter(graph.tensors[t].shape for t in graph.outputs if graph.tensors[t].shape and t not in statistics)
    return sum((shapes & results).values()) > max(2, sum(shapes.values()) / 2)
