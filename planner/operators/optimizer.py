"""Optimizer steps of ai.onnx.preview.training, and those of ONNX Runtime's training graphs: element by element.

A node may update several tensors.  Mode `rows` splits the first dimension of all of them over one mesh axis, as a
sharded optimizer does; where there is one tensor, each of its dimensions is offered instead.
"""

from __future__ import annotations

import math

from planner.rules.operator import Operator, sharded
from planner.rules.registry import rule
from planner.rules.rule import Combine, Rule

__all__: list[str] = []

# Tensors of state per parameter, beside the parameter and its gradient.
_STATES = {"Adagrad": 1, "Adam": 2, "Momentum": 1}


@rule(*(f"ai.onnx.preview.training::{t}" for t in _STATES))
def _step(o: Operator) -> Rule:
    """Learning rate, step count, then all parameters, all gradients, all states; results: parameters, then states."""
    states = _STATES[o.type.rpartition("::")[2]]
    tensors = (len(o.inputs) - 2) // (2 + states)
    ranks = [o.rank(2 + t) for t in range(tensors)]
    names = [[f"t{t}d{i}" if tensors > 1 else f"d{i}" for i in range(rank)] for t, rank in enumerate(ranks)]
    written = [" ".join(n) for n in names]
    modes: dict[str, tuple[str, ...]] = {}
    if tensors > 1:
        sizes = [o.shape(2 + t) for t in range(tensors)]
        rows = tuple(n[0] for n, size in zip(names, sizes, strict=True) if size and size[0] > 1)
        modes = {"rows": rows} if rows else {}
    return sharded(
        o,
        f"*..., *..., {', '.join(written * (2 + states))} -> {', '.join(written * (1 + states))}",
        modes=modes,
        combine=dict.fromkeys(modes, Combine.INNER),
        whole=[f for n in names for f in n] if tensors > 1 else [],
        flops=8.0 * sum(math.prod(o.shape(2 + t)) for t in range(tensors)),
    )
