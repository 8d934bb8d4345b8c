"""Operators that draw random numbers.

A shard's numbers are those that the whole tensor has at its places: ranks draw from one counter-based stream at their
own offset, and replicas draw alike.  Nothing travels.
"""

from __future__ import annotations

import numpy as np

from planner.rules.notation import labels
from planner.rules.operator import Operator, sharded
from planner.rules.registry import rule
from planner.rules.rule import Rule

__all__: list[str] = []

_FLOPS = 16.0  # per number drawn


@rule("RandomNormal", "RandomUniform")
def _random(o: Operator) -> Rule:
    rank = len(o.result())
    return sharded(o, f" -> {labels('d', rank)}", aware=_names(rank), flops=_FLOPS * _size(o))


@rule("Bernoulli", "RandomNormalLike", "RandomUniformLike")
def _like(o: Operator) -> Rule:
    return sharded(o, "d... -> d...", aware=_names(o.rank(0)), flops=_FLOPS * _size(o))


@rule("Multinomial")
def _multinomial(o: Operator) -> Rule:
    """Rows and samples are drawn independently; the classes of a row are one distribution."""
    flops = _FLOPS * _size(o) + float(np.prod(o.shape(0)))
    return sharded(o, "b c! -> b s", aware=["b", "s"], flops=flops, counts={"sample_size": ("s",)})


@rule("Dropout")
def _dropout(o: Operator) -> Rule:
    """Linear in X, because the elements that are kept do not depend on it; without a mask, that is, which is no sum."""
    return sharded(
        o,
        "d..., -, - -> d..., d...",
        linear=[(0,)] if not o.yields(1) else [],
        differentiable=(0,),
        saved_results=(1,),
        aware=_names(o.rank(0)) if _drops(o) else [],
    )


def _drops(o: Operator) -> bool:
    if o.opset < 7:
        return not o.attribute("is_test", 0)
    if not o.has(2):
        return False
    ratio, training = o.value(1), o.value(2)
    return not (training is not None and not np.any(training)) and not (ratio is not None and not np.any(ratio))


@rule("com.microsoft::BiasDropout")
def _bias_dropout(o: Operator) -> Rule:
    """X, bias of the last dimension, residual, ratio and mode."""
    return sharded(o, "d..., d..., d..., -, - -> d..., d...", aware=_names(o.rank(0)), flops=_FLOPS * _size(o))


def _names(rank: int) -> list[str]:
    return [f"d{i}" for i in range(rank)]


def _size(o: Operator) -> float:
    return float(np.prod(o.result()))
