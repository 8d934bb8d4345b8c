"""Attention whose keys and values are summed up in a state of fixed size (b, h, e, f) that runs along the sequence.

A shard of the sequence is an affine map of the state before it: S → A S + B, with A the product of its decays (and,
with delta corrections, of I − β k kᵀ).  Ranks exchange these maps and know the state before their shard (LASP-2, Sun
et al. 2025); tokens themselves do not travel.
"""

from __future__ import annotations

from dataclasses import replace

from planner.ir.tensor import ITEM_BYTES
from planner.rules.operator import KeepWholeError, Operator, sharded
from planner.rules.registry import rule
from planner.rules.rule import Combine, InnerCollective, Rule

__all__: list[str] = []


@rule("LinearAttention", "com.microsoft::LinearAttention")
def _linear_attention(o: Operator) -> Rule:
    """Q, K, V, past state, decay, update rate; key heads h, query heads per key head g, key depth e.

    Columns of the state, the depth f of the values, never meet: they may be split once there is one head per rank.
    """
    heads, key_heads = int(o.attribute("q_num_heads", 0)), int(o.attribute("kv_num_heads", 0))
    if not heads or not key_heads or heads % key_heads:
        raise KeepWholeError(f"{heads} query heads, {key_heads} key heads")
    if o.attribute("state_window", 0):
        raise KeepWholeError("the state after each of the last tokens is handed on")
    batch, tokens, width = o.shape(0)
    depth, value_depth = width // heads, o.shape(2)[2] // key_heads
    by_head = o.has(4) and o.shape(4)[2] == key_heads
    common = o.has(5) and o.shape(5)[2] != key_heads
    update = o.attribute("update_rule", "gated_delta")
    item_bytes = max(4, ITEM_BYTES.get(o.input_types[0], 4))
    # A is dense with delta corrections, diagonal with decays alone, and else one.
    factor = depth * depth if "delta" in update else 0 if update == "linear" else 1 if by_head else depth
    state = InnerCollective("t", "all_gather", ("b", "h", "f"), depth * item_bytes, statistic=True)
    maps = [state, InnerCollective("t", "all_gather", ("b", "h"), factor * item_bytes, statistic=True)][
        : 1 + (factor > 0)
    ]
    # Once more for the states, and for their gradients.
    backward = [*(replace(c, backward=True) for c in maps), replace(state, backward=True)]
    flops = 2.0 * batch * tokens * depth * value_depth * (heads + key_heads * (4 if "delta" in update else 2))
    return sharded(
        o,
        f"b t (h g e!), b t (h e!), b t (h f), b h e! f, {'b t h' if by_head else 'b t (h e!)'}, "
        f"{'b t 1' if common else 'b t h'} -> b t (h g f), b h e! f",
        kind="attention",
        sizes={"h": key_heads, "g": heads // key_heads, "e": depth, "f": value_depth},
        combine={"t": Combine.INNER, "g": Combine.INNER},
        # With delta corrections keys meet each other.
        linear=[(2, 3)] if "delta" in update else [(2, 3), (1, 3)],
        differentiable=range(6),
        saved=range(6),
        flops=flops,
        backward_flops=2.5 * flops,
        counts={"q_num_heads": ("h", "g"), "kv_num_heads": ("h",)},
        inner=[*maps, *backward],
        aware=["g"] if o.yields(1) else [],
    )
