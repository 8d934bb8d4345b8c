"""Operations: sums over all ranks equal the closed forms of Narayanan et al. 2021 and Korthikanti et al. 2022."""

from __future__ import annotations

from typing import Any

import pytest

from planner.cost_models import load_profile
from planner.evaluate import Configuration, predict
from tests.unit.evaluate_graphs import PRODUCTS, SBH, A, B, H, S, V, blocks, flops, gpt, graph, llama, traced, workload

DIVISIONS: list[dict[str, Any]] = [
    {},
    {"tp": 4},
    {"tp": 8, "sequence_parallel": True},
    {"cp": 4},
    {"tp": 2, "cp": 2, "sequence_parallel": True},
]


def ranks(c: dict[str, Any]) -> int:
    return int(c.get("tp", 1)) * int(c.get("cp", 1))


@pytest.mark.parametrize("c", DIVISIONS)
def test_gpt_forward_is_24_s_h_squared_and_4_s_squared_h(c: dict[str, Any]) -> None:
    unfused, fused = traced(gpt(3), **c, attention="unfused"), traced(gpt(3), **c, attention="fused")
    for u, v in zip(blocks(unfused), blocks(fused), strict=True):
        assert flops(u, "forward", *PRODUCTS) * ranks(c) == 24 * B * S * H**2 + 4 * B * S**2 * H
        assert flops(v, "forward", *PRODUCTS) * ranks(c) == 24 * B * S * H**2
        assert flops(v, "forward", "attention") * ranks(c) == 2 * B * S**2 * H  # the half that a causal mask leaves
    assert flops(fused.units[-1], "forward", *PRODUCTS) * ranks(c) == 2 * SBH * V


@pytest.mark.parametrize("c", DIVISIONS)
def test_gpt_backward_is_twice_the_products_and_two_and_a_half_times_attention(c: dict[str, Any]) -> None:
    w = traced(gpt(3), **c)
    for u in [*blocks(w), w.units[-1]]:
        assert flops(u, "backward", *PRODUCTS) == 2 * flops(u, "forward", *PRODUCTS)
        assert flops(u, "backward", "attention_backward") == 2.5 * flops(u, "forward", "attention")


@pytest.mark.parametrize("attention", ["unfused", "fused"])
@pytest.mark.parametrize("tp", [1, 4])
def test_llama_products_follow_its_weights(attention: str, tp: int) -> None:
    w = traced(llama(2, attention=attention), tp=tp, attention=attention)
    weights = 2 * H * H + 2 * H * H * 4 // A + 3 * H * 5632
    written_out = 4 * B * S**2 * H if attention == "unfused" else 0
    for u in blocks(w):
        assert flops(u, "forward", *PRODUCTS) * tp == 2 * B * S * weights + written_out
    assert flops(w.units[-1], "forward", *PRODUCTS) * tp == 2 * SBH * V


def test_encoder_attends_to_everything() -> None:
    w = traced(graph("bert", layers=2, batch=B, seq=S, hidden=H, heads=A, vocab=V))
    assert {flops(u, "forward", "attention") for u in blocks(w)} == {4 * B * S**2 * H}


def test_experts_compute_as_many_rows_as_their_capacity_takes() -> None:
    sizes = {"batch": 4, "seq": S, "hidden": H, "heads": A, "kv_heads": 4, "vocab": V, "ffn": 5632}
    g = graph("moe", layers=2, **sizes)
    one, four = (blocks(traced(g, ep=n, dp=n))[0] for n in (1, 4))
    assert flops(one, "forward", *PRODUCTS) == pytest.approx(4 * flops(four, "forward", *PRODUCTS))
    grouped = {k: n for k, n in one.forward.items() if k.kind == "product" and k.batch == 8}
    rows = 4 * S * 2 * 1.25 // 8  # tokens · top 2 · capacity 1.25, of each of eight experts
    assert {k.rows for k in grouped if 5632 in (k.columns, k.depth)} == {rows}


def test_full_recomputation_adds_a_forward_pass_of_the_blocks_alone() -> None:
    g, profile = gpt(3), load_profile("a100-80")
    plain, full, half = (
        predict(traced(g), Configuration(recompute=r, recompute_blocks=f), profile)
        for r, f in (("none", 1.0), ("full", 1.0), ("full", 0.5))
    )
    again = full.step_time_s - plain.step_time_s
    assert full.breakdown["recompute"] == pytest.approx(again)
    assert half.breakdown["recompute"] == pytest.approx(again / 2)
    assert full.flops == plain.flops
    deeper = [predict(traced(gpt(n)), Configuration(recompute="full"), profile).breakdown["recompute"] for n in (3, 6)]
    assert deeper[1] / deeper[0] == pytest.approx(2, rel=0.02)


def test_operations_of_a_step_grow_with_the_global_batch_and_not_with_its_division() -> None:
    profile = load_profile("a100-80")
    one = predict(traced(gpt(4)), Configuration(), profile).flops
    for c in (Configuration(dp=2, micro_batches=3), Configuration(dp=2, pp=2, micro_batches=3)):
        assert predict(workload(gpt(4), c), c, profile).flops == 6 * one


@pytest.mark.parametrize(("attention", "share"), [("unfused", 1.0), ("fused", 0.5)])
def test_the_core_run_again_is_the_two_products_of_attention(attention: str, share: float) -> None:
    for u in blocks(traced(gpt(2), attention=attention)):
        matrix = sum(k.flops * n for k, n in u.core.items() if k.kind in (*PRODUCTS, "attention"))
        assert matrix == share * 4 * B * S**2 * H
        assert all(u.forward[k] >= n for k, n in u.core.items())
