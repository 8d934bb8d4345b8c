"""Names of the runtimes that a plan may be for, and what of a layout each can express."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

__all__ = [
    "BY_DEGREES",
    "COPYING",
    "IN_GROUPS",
    "IN_PARTS",
    "NARROWED",
    "ONE_COPY",
    "RUNS_COPIES",
    "TO_THE_LETTER",
    "Target",
]

Target = Literal[
    "any", "mindspore", "mindformers", "hyper-parallel", "torch", "dtensor", "huggingface", "torchtitan", "deepspeed",
    "megatron", "onnx", "onnx-ranks",
]  # fmt: skip

# Launchers that are given degrees of parallelism (data, tensor, pipeline, …) and lay a network out themselves.
BY_DEGREES: Final = frozenset({"mindformers", "huggingface", "torchtitan", "deepspeed", "megatron"})

# Those that run whatever lies in a plan, operator by operator.
TO_THE_LETTER: Final = frozenset({"any", "torch"})

# Those that interleave copies of a micro-batch, so that the collectives of one run beside the computing of another.
COPYING: Final = frozenset({"mindspore", "mindformers"})

# Those that run a plan with such copies, one behind the other: what the copies hide is not hidden there, so that they
# are not searched for them.
RUNS_COPIES: Final = frozenset({*COPYING, "torch"})

# Those in which data-parallel ranks may divide weights or their state in groups, which hold copies of each other's.
IN_GROUPS: Final = frozenset({"megatron", "torchtitan", "torch", "dtensor"})

# Those that say how each of several equal parts of a dimension is split: Megatron gives every rank its heads of
# queries, keys and values; ONNX writes a dimension as several; our own runtime cuts as the plan does.
IN_PARTS: Final = frozenset({"any", "torch", "megatron", "onnx", "onnx-ranks"})

# Those in which a parameter is computed with in one layout.
ONE_COPY: Final = frozenset({"mindspore", "hyper-parallel"})

# What a search of operators one by one leaves out for a target, as its summary says it.
NARROWED: Final[Mapping[Target, str]] = {
    "mindspore": "no parameter in two layouts, no operand that arrives as a pending sum, optimizer shards as MindSpore "
    "cuts them",
    "hyper-parallel": "no parameter in two layouts",
    "dtensor": "no parameter in two layouts or cut in another order than the mesh has its axes, convolutions divided "
    "by samples alone",
}
