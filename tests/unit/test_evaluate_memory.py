"""Activation and state memory against published formulas.

Korthikanti et al. 2022 (2205.05198) count s b h (34 + 5 a s / h) bytes of a layer.  The graphs have no dropout, so its
masks (1 byte each: two of s b h, one of a s² b) and the second copy of the scores, after dropout (2 a s² b), go:

    s b h (32 + 2 a s / h)                       one rank
    s b h (8 + 24 / t + 2 a s / (h t))           tensor parallel: 8 of the 32 are norms' and products' inputs
    s b h / t (32 + 2 a s / h)                   with sequence parallelism
    without the term in a s / h                  selective recomputation, and attention as one kernel
"""

from __future__ import annotations

from typing import Any

import pytest

from planner.clock.memory import chunk_activation_bytes, chunk_offloaded_bytes, elements, held_bytes
from planner.clock.stages import chunks, chunks_of
from planner.cost_models import load_profile
from planner.evaluate import Configuration, predict
from tests.unit.evaluate_graphs import SBH, A, B, H, S, blocks, gpt, small, traced

SCORES = 2 * A * S * S * B


def kept(**c: Any) -> set[float]:
    """Bytes that each block but the last keeps; the last one makes, beside, what the final norm reads."""
    configuration = Configuration(**c)
    w = traced(gpt(4), **c)
    units = [u for u, r in enumerate(w.repeated) if r][:-1]
    return {chunk_activation_bytes(w, configuration, [u]) for u in units}


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_layer_keeps_what_the_formula_says(tp: int) -> None:
    divided = 24 * SBH / tp
    assert kept(tp=tp, attention="fused") == {8 * SBH + divided}
    assert kept(tp=tp, attention="unfused") == {8 * SBH + divided + SCORES / tp}
    assert kept(tp=tp, attention="unfused", recompute="selective") == {8 * SBH + divided}


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_sequence_parallel_layer_divides_all_of_it(tp: int) -> None:
    assert kept(tp=tp, sequence_parallel=True) == {32 * SBH / tp}
    unfused = {"tp": tp, "sequence_parallel": True, "attention": "unfused"}
    assert kept(**unfused) == {(32 * SBH + SCORES) / tp}
    assert kept(**unfused, recompute="selective") == {32 * SBH / tp}


@pytest.mark.parametrize("cp", [2, 4])
def test_context_parallel_layer_divides_all_of_it(cp: int) -> None:
    assert kept(cp=cp) == {32 * SBH / cp}


@pytest.mark.parametrize(("c", "share"), [({}, 1), ({"tp": 4}, 1), ({"tp": 4, "sequence_parallel": True}, 4)])
def test_full_recomputation_keeps_what_enters_a_layer(c: dict[str, Any], share: int) -> None:
    assert kept(**c, recompute="full") == {2 * SBH / share}


def test_single_precision_keeps_twice_as_much() -> None:
    assert kept(precision="fp32") == {64 * SBH}


@pytest.mark.parametrize(("zero", "parts"), [(0, (0, 0, 0)), (1, (0, 0, 1)), (2, (0, 1, 1)), (3, (1, 1, 1))])
@pytest.mark.parametrize("dp", [2, 8])
def test_zero_divides_two_two_and_twelve_bytes(zero: Any, parts: tuple[int, int, int], dp: int) -> None:
    # Rajbhandari et al. 2020, figure 1: K = 12 for Adam, gradients in half precision.
    w = traced(small(), dp=dp, zero=zero)
    m = predict(w, Configuration(dp=dp, zero=zero, gradient_bytes=2), load_profile("a100-80")).memory
    found = (m["weights"], m["gradients"], m["optimizer"])
    assert found == tuple(k * w.parameters / (dp if p else 1) for k, p in zip((2, 2, 12), parts, strict=True))


@pytest.mark.parametrize(("optimizer", "width"), [("adam", 12), ("momentum", 8), ("sgd", 4)])
def test_optimizer_state_is_that_of_its_kind(optimizer: Any, width: int) -> None:
    w = traced(small())
    m = predict(w, Configuration(optimizer=optimizer), load_profile("a100-80")).memory
    assert m["optimizer"] == width * w.parameters
    assert m["gradients"] == 4 * w.parameters


def test_hybrid_sharding_divides_by_the_ranks_of_a_group() -> None:
    w = traced(small(), dp=8, zero=3, shard_ranks=4)
    m = predict(w, Configuration(dp=8, zero=3, shard_ranks=4), load_profile("a100-80")).memory
    assert m["weights"] == 2 * w.parameters / 4


def test_weights_held_in_single_precision_need_no_other_copy() -> None:
    w = traced(small())
    m = predict(w, Configuration(parameter_bytes=4), load_profile("a100-80")).memory
    assert (m["weights"], m["optimizer"]) == (4 * w.parameters, 8 * w.parameters)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_what_the_host_holds_and_what_stays_add_up(recompute: Any) -> None:
    w = traced(gpt(4))
    part = range(len(w.units))
    whole = chunk_activation_bytes(w, Configuration(recompute=recompute), part)
    for fraction in (0.0, 0.25, 1.0):
        c = Configuration(recompute=recompute, offload=fraction)
        away = chunk_offloaded_bytes(w, c, part)
        assert chunk_activation_bytes(w, c, part) + away == pytest.approx(whole)
        inside = sum(chunk_activation_bytes(w, Configuration(recompute=recompute), [i]) for i in part if w.repeated[i])
        assert away == pytest.approx(fraction * inside)


def test_frozen_weights_have_neither_gradients_nor_state() -> None:
    m = predict(traced(small()), Configuration(frozen=True), load_profile("a100-80")).memory
    assert m["gradients"] == m["optimizer"] == 0


@pytest.mark.parametrize(
    ("schedule", "micro_batches", "in_flight"),
    [("gpipe", 8, (8, 8, 8, 8)), ("1f1b", 8, (4, 3, 2, 1)), ("1f1b", 2, (2, 2, 2, 1)), ("zb-h1", 8, (4, 4, 4, 4))],
)
def test_fullest_rank_keeps_as_many_micro_batches_as_the_schedule_has_in_flight(
    schedule: Any, micro_batches: int, in_flight: tuple[int, ...]
) -> None:
    c = Configuration(pp=4, schedule=schedule, micro_batches=micro_batches)
    w = traced(gpt(8))
    held = [n * chunk_activation_bytes(w, c, part) for n, part in zip(in_flight, chunks(w, 4), strict=True)]
    fullest = max((held_bytes(w, c, chunks(w, 4), d, a) for d, a in enumerate(held)), key=lambda x: x.total)
    p = predict(w, c, load_profile("a100-80"))
    assert p.memory["activations"] == pytest.approx(fullest.activations)
    assert p.allocated_bytes == pytest.approx(fullest.total)


@pytest.mark.parametrize(("schedule", "vpp"), [("1f1b", 1), ("1f1b", 2), ("zb-v", 2)])
def test_every_weight_lies_on_one_pipeline_rank_but_the_tied_table(schedule: Any, vpp: int) -> None:
    c = Configuration(pp=4, schedule=schedule, virtual_stages=vpp, micro_batches=8)
    w = traced(small(8))
    parts = chunks(w, 4 * vpp)
    assert sorted(k for d in range(4) for k in chunks_of(c, d)) == list(range(4 * vpp))
    # The V brings the last chunk back to the first rank.
    copies = 0 if schedule == "zb-v" else sum(t.weights for t in w.tied)
    for kind in (0, 1):  # as read, as stored
        assert sum(elements(w, c, parts, d)[kind] for d in range(4)) == w.parameters + copies


def test_blocks_of_one_run_are_one_value() -> None:
    assert len({id(u) for u in blocks(traced(gpt(8)))}) <= 2
    assert B == 1
    assert H % A == 0
