"""Gradients of weights that are there from when they are made: what a rank holds then, beside what it holds where they
lie in buffers throughout."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from planner.clock import Configuration, held_by_rank, held_of_plan
from planner.clock.memory import chunk_activation_bytes, held_as_made, held_bytes
from planner.cost_models import load_profile
from planner.evaluate import program_of_configuration
from planner.evaluate.configured import traced_as
from planner.frontends import load_model
from planner.ir import Graph
from planner.planning import Request, make_plan
from planner.pricing import Settings
from planner.trace import Workload

SAMPLES = Path(__file__).parents[2] / "sample_graphs"
PROFILE = load_profile("cpu")


@cache
def graph_of(model: str, batch: int) -> Graph:
    return load_model(SAMPLES / f"{model}.onnx", batch=batch)


@cache
def traced(batch: int, zero: int = 0) -> Workload:
    c = Configuration(dp=2, zero=zero, precision="fp32")
    return traced_as(c, program_of_configuration(graph_of("gpt_tiny", batch), c, PROFILE), joined=False)


def both(workload: Workload, c: Configuration) -> tuple[Any, Any]:
    whole = range(len(workload.units))
    return held_bytes(workload, c, (whole,), 0, chunk_activation_bytes(workload, c, whole)), held_as_made(workload, c)


@pytest.mark.parametrize("batch", [2, 8, 64])
@pytest.mark.parametrize("zero", [0, 1, 3])
def test_no_more_is_held_than_with_buffers_and_no_less_than_all_of_one_kind(batch: int, zero: int) -> None:
    workload, c = traced(batch, zero), Configuration(dp=2, zero=zero, precision="fp32", gradient_bytes=4)
    buffers, as_made = both(workload, c)
    static = buffers.weights + buffers.optimizer + buffers.inputs
    assert static == as_made.weights + as_made.optimizer + as_made.inputs
    assert as_made.total <= buffers.total
    assert as_made.total >= static + max(buffers.activations, buffers.gradients)
    assert as_made.gradients <= buffers.gradients
    assert as_made.activations <= buffers.activations


def test_the_more_samples_the_fewer_gradients_are_there_at_the_fullest_moment() -> None:
    c = Configuration(dp=2, precision="fp32", gradient_bytes=4)
    shares = [a.gradients / b.gradients for b, a in (both(traced(batch), c) for batch in (2, 8, 64))]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > shares[-1]


@pytest.mark.parametrize(("schedule", "micro_batches", "less"), [
    ("1f1b", 1, True), ("1f1b", 2, True), ("1f1b", 8, False), ("gpipe", 8, True), ("zb-h1", 8, False),
])  # fmt: skip
def test_of_stages_those_whose_later_passes_have_fewer_micro_batches_in_flight(
    schedule: Any, micro_batches: int, less: bool
) -> None:
    """The first of two stages has as many in flight at every backward pass of a long 1F1B as at the first."""
    workload = traced(8)
    c = Configuration(pp=2, schedule=schedule, micro_batches=micro_batches, precision="fp32", gradient_bytes=4)
    half = len(workload.units) // 2
    chunks = tuple(range(half)), tuple(range(half, len(workload.units)))
    first = micro_batches if schedule == "gpipe" else min(micro_batches, 2)
    flying = [n * chunk_activation_bytes(workload, c, part) for n, part in zip((first, 1), chunks, strict=True)]
    buffers = held_by_rank(workload, c, chunks, flying)
    as_made = held_by_rank(workload, c, chunks, flying, as_made=True)
    assert all(a.total <= b.total for a, b in zip(as_made, buffers, strict=True))
    assert (as_made[0].total < buffers[0].total) == less


@pytest.mark.parametrize("recompute", ["none", "all"])
def test_plans_for_our_own_runtime_count_gradients_as_it_makes_them(recompute: Any) -> None:
    graph = graph_of("gpt_tiny", 8)
    held = {}
    for target in ("any", "torch"):
        settings = Settings(True, "fp32", target=target)
        made = make_plan(graph, Request(2, PROFILE, settings, recompute=recompute, memory_limit=1 << 40))
        held[target] = made
        assert made.memory == held_of_plan(made.priced, made.program)
    assert held["torch"].program.instructions == held["any"].program.instructions
    assert held["torch"].memory.total < held["any"].memory.total
