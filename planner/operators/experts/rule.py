"""Mixtures of experts: products whose weight every token chooses.

Experts are split in two ways.  With the tokens whole, each rank computes the tokens that chose its experts and leaves
zeros for the rest: a pending sum.  With tokens and experts split over the same axis, rows travel to the ranks that hold
their experts and the results travel back: expert parallelism as runtimes do it.
"""

from __future__ import annotations

import math

from planner.ir.tensor import ITEM_BYTES
from planner.rules.notation import labels
from planner.rules.operator import KeepWholeError, Operator, sharded
from planner.rules.registry import rule
from planner.rules.rule import InnerCollective, Rule

__all__: list[str] = []


@rule("planner::ExpertMatMul")
def _expert_matmul(o: Operator) -> Rule:
    """Factors: tokens `t…`, experts `e`, results `n`, contracted `k`.

    The mode `t&e` is priced as if every row changed its owner, which is what a balanced load does on many ranks.  The
    backward sends rows and gradients out again: what arrived in the forward is not kept.
    """
    lead = o.rank(0) - 1
    tokens = tuple(f"t{i}" for i in range(lead))
    chosen = labels("t", lead) + (" 1" if o.rank(2) > lead else "")
    weights = "e n k" if o.attribute("transB", 0) else "e k n"
    paired = next((t for t, size in zip(tokens, o.shape(0), strict=False) if size > 1), "")
    mode = f"{paired}&e"
    size, index = ITEM_BYTES.get(o.input_types[0], 4), ITEM_BYTES.get(o.input_types[2], 8)

    def travel(*dims: str, item_bytes: int = size, backward: bool = False) -> InnerCollective:
        indices = not dims  # keep their width
        return InnerCollective(
            mode,
            "all_to_all",
            (*tokens, *dims),
            item_bytes,
            backward=backward,
            statistic=indices,
            fixed_bytes=item_bytes if indices else 0,
        )

    return sharded(
        o,
        f"{labels('t', lead)} k, {weights}, {chosen}, +e n -> {labels('t', lead)} n",
        kind="matmul",
        linear=[(0, 3), (1, 3)],
        differentiable=(0, 1, 3),
        saved=(0, 1, 2),
        flops=2.0 * math.prod(o.result()) * o.shape(0)[-1],
        aware=["e"],
        modes={mode: (paired, "e")} if paired else {},
        inner=[
            travel("k"),
            travel(item_bytes=index),
            travel("n"),
            travel("k", backward=True),
            travel(item_bytes=index, backward=True),
            travel("n", backward=True),
            travel("k", backward=True),
        ],
    )


@rule("com.microsoft::MoE")
def _mixture(o: Operator) -> Rule:
    """Routing and all experts in one: tokens, experts `e`, hidden layer `f`.

    A rank counts the experts of others as zero.  Tokens and experts over one axis would have to route before they
    travel, inside the operator: runtimes that do so write the steps out.
    """
    token, routed = _tokens(o)
    third = "f" if _gates(o) == 1 else "*"
    up = {0: "*", 1: "f", 2: "(f g!)"}[_gates(o)]
    down = "f" if _gates(o) else "*"
    text = f"{token} *, {routed} *, e {up} *, e {up}, e * {down}, +e *, e {third} *, e {third} -> {token} *"
    return sharded(o, text, kind="matmul", flops=_work(o, (2, 4, 6)), aware=["e"])


@rule("com.microsoft::QMoE")
def _quantized_mixture(o: Operator) -> Rule:
    """As MoE; `f` counts the bytes of packed weights, and is split where no block of the second weight shares a scale
    across it."""
    if o.attribute("quant_type", "int") != "int" or o.attribute("weights_prepacked", 0) == 1 or o.has(8) or o.has(13):
        raise KeepWholeError("its weights are packed in a format of one kernel, or it has a third weight")
    token, routed = _tokens(o)
    split = o.rank(3) == 2 and o.rank(6) == 2 and _gates(o) > 0 and not o.has(11) and not o.has(12)
    packed = 8 // int(o.attribute("fc2_expert_weight_bits", 0) or o.attribute("expert_weight_bits", 4))
    up = "(f u! g!)" if split else "*"
    down = "f" if split else "*"
    blocks = " *" if o.has(3) and o.rank(3) == 3 else ""
    more = " *" if o.has(6) and o.rank(6) == 3 else ""
    points = ", ".join(f"e *{' *' if o.has(i) and o.rank(i) == 3 else ''}" for i in (11, 12))
    text = (
        f"{token} *, {routed} *, e {up} *, e {up}{blocks}, e {up}, e * {down}, e *{more}, +e *, -, -, -, {points}, -, "
        f"{routed} * -> {token} *"
    )
    sizes = {"u": packed, "g": _gates(o)} if split else {}
    return sharded(o, text, kind="matmul", sizes=sizes, flops=packed * _work(o, (2, 5)), aware=["e"])


def _tokens(o: Operator) -> tuple[str, str]:
    """Dimensions of the input before the last, and the same merged."""
    return ("b s", "(b s)") if o.rank(0) == 3 else ("t", "t")


def _gates(o: Operator) -> int:
    """Interleaved parts of the first weight for every unit of the hidden layer; 0 where they are not interleaved."""
    if o.attribute("activation_type", "relu") != "swiglu":
        return 1
    return {0: 1, 1: 2}.get(int(o.attribute("swiglu_fusion", 0)), 0)


def _work(o: Operator, weights: tuple[int, ...]) -> float:
    """Every token goes through `k` of the experts."""
    rows = math.prod(o.shape(0)[:-1])
    elements = sum(math.prod(o.shape(i)[1:]) for i in weights if o.has(i))
    return 2.0 * rows * int(o.attribute("k", 1)) * elements
