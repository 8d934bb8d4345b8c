"""Plans of small transformers, as launchers that take degrees of parallelism can express them; each is searched
once."""

from __future__ import annotations

import re
from functools import cache, reduce
from operator import add
from pathlib import Path

from planner.cost_models import load_profile
from planner.frontends import load_model
from planner.planning import PlanDocument, Request, describe, make_plan
from planner.planning.constraints import parse_pin
from planner.planning.pipeline import pipelined
from planner.pricing import Settings

__all__ = ["BLOCKS", "INPUTS", "LLAMA", "SAMPLES", "plan", "planned"]

SAMPLES = Path(__file__).parents[2] / "sample_graphs"

INPUTS = ("input_ids layout=[x,_]", "labels layout=[x,_]")
BLOCKS = (
    "*.c_attn.matmul b0=x n=y", "*.attn.c_proj.matmul b0=x k=y", "*.c_fc.matmul b0=x n=y",
    "*.mlp.c_proj.matmul b0=x k=y",
)  # fmt: skip
WORDS = ("transformer.wte.gather i0=x v=y", "lm_head.matmul b0=x n=y")
LLAMA = (
    *(f"*.{name}_proj.matmul b0=x n=y" for name in ("q", "k", "v", "gate", "up")),
    "*.o_proj.matmul b0=x k=y", "*.down_proj.matmul b0=x k=y",
)  # fmt: skip
NORMS = "*.layernormalization d0=x"


def _shards(axis: str) -> tuple[str, ...]:
    vectors, matrices = ("*.ln_*.weight", "*.bias"), ("*.c_*.weight", "*.w?e.weight")
    return (*(f"{p} stored=[{axis}]" for p in vectors), *(f"{p} stored=[{axis},_]" for p in matrices))


def _swapped(pin: str) -> str:
    return re.sub(r"\b[xy]\b", lambda m: "y" if m[0] == "x" else "x", pin)


# Name → model, devices, pins.
_PLANS: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "data": ("gpt_tiny", 8, ("rest=data_parallel",)),
    "zero": ("gpt_tiny", 8, ("rest=zero",)),
    "zero llama": ("llama_tiny", 4, ("rest=zero",)),
    "hybrid": ("gpt_tiny", 8, ("mesh=2x4", *_shards("y"), "rest=data_parallel")),
    "hybrid outside": ("gpt_tiny", 8, ("mesh=2x4", *_shards("x"), "rest=data_parallel")),
    "tensor": ("gpt_tiny", 8, ("mesh=2x4", *INPUTS, *BLOCKS, *WORDS, NORMS)),
    "sequence": ("gpt_tiny", 8, ("mesh=2x4", *INPUTS, *BLOCKS, *WORDS, "*.ln_?.layernormalization d0=x d1=y")),
    "tensor outside": ("gpt_tiny", 4, ("mesh=2x2", *map(_swapped, (*INPUTS, *BLOCKS, *WORDS, NORMS)))),
    "tables whole": ("gpt_tiny", 4, ("mesh=2x2", *INPUTS, *BLOCKS, NORMS, "transformer.wte.gather i0=x",
                                     "lm_head.matmul b0=x")),
    "tensor llama": ("llama_tiny", 4, ("mesh=2x2", *INPUTS, *LLAMA, "*embed_tokens.gather i0=x v=y",
                                       "lm_head.matmul b0=x n=y", "*norm.reducemean d0=x")),
    "head gathered": ("llama_tiny", 4, ("mesh=2x2", *INPUTS, *LLAMA, "*embed_tokens.gather i0=x",
                                        "lm_head.matmul b0=x n=y", "*norm.reducemean d0=x")),
    "context": ("gpt_tiny", 8, ("mesh=2x4", "input_ids layout=[x,y]", "labels layout=[x,_]",
                                "*.mlp.c_fc.matmul b0=x m=y")),
    "experts": ("moe_tiny", 4, ("mesh=4", "reads=*.experts.* type=Einsum e=x", "rest=data_parallel")),
    "experts in shards": ("moe_tiny", 4, ("mesh=4", "reads=*.experts.* type=Einsum e=x", "rest=zero")),
}  # fmt: skip


@cache
def plan(name: str, precision: str = "bf16") -> PlanDocument:
    """One of those above.  The document is shared: copy before changing it."""
    model, devices, pins = _PLANS[name]
    return planned(model, devices, pins, precision=precision)


def planned(
    model: str,
    devices: int,
    pins: tuple[str, ...],
    *,
    precision: str = "bf16",
    recompute: str = "none",
    stages: int = 1,
    micro_batches: int = 1,
) -> PlanDocument:
    graph = load_model(SAMPLES / f"{model}.onnx", batch=8 // micro_batches)
    request = Request(
        devices // stages,
        load_profile("a100-80"),
        Settings(training=True, precision=precision),  # type: ignore[arg-type]
        constraints=reduce(add, map(parse_pin, pins)),
        recompute=recompute,  # type: ignore[arg-type]
    )
    made = make_plan(graph, request)
    pipeline = pipelined(made, stages, micro_batches) if stages > 1 or micro_batches > 1 else None
    return describe(made, bind={}, batch=8 // micro_batches, pipeline=pipeline)
