"""Context parallelism of mixtures of experts: ranks divide the slots that tokens of all positions are dispatched to."""

from __future__ import annotations

from functools import cache

import pytest

from planner.builder import build
from planner.clock import Configuration
from planner.cost_models import load_profile
from planner.evaluate import program_of_configuration, workload_of_configuration
from planner.frontends import import_bytes
from planner.ir import Graph
from planner.verify.check import verify_program

H100 = load_profile("h100")
SIZES = {"layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "ffn": 64, "vocab": 64, "seq": 64}
CONFIGURATIONS = [
    Configuration(dp=2, cp=2, micro_batch=1, zero=1),
    Configuration(cp=4, micro_batch=2, zero=1),
    Configuration(cp=2, micro_batch=2, context="all-to-all", zero=1),
    Configuration(dp=2, ep=2, cp=2, micro_batch=2, zero=1),
    Configuration(cp=2, tp=2, micro_batch=2, zero=1),
]


@cache
def mixture(batch: int) -> Graph:
    return import_bytes(build("moe", {**SIZES, "batch": batch}).SerializeToString(), name="moe")


@pytest.mark.parametrize("c", CONFIGURATIONS, ids=str)
def test_experts_are_not_repeated_by_ranks_that_divide_positions(c: Configuration) -> None:
    program = program_of_configuration(mixture(c.micro_batch * c.dp), c, H100)
    experts = [op.name for op in program.graph.ops if ".experts" in op.name and op.type == "Einsum"]
    assert len(experts) == 3 * SIZES["layers"]
    for name in experts:
        result = program.strategies[name].results[0]
        assert result is not None
        divided = {axis for dim in result.dims for axis in dim} | {axis for axis, _ in result.partial}
        assert divided == set(program.mesh.names), name
    assert verify_program(program).ok


@pytest.mark.parametrize("micro_batch", [1, 2, 4])
def test_ranks_share_the_operations(micro_batch: int) -> None:
    def operations(c: Configuration) -> float:
        workload = workload_of_configuration(mixture(c.micro_batch * c.dp), c, H100)
        return sum(k.flops * n for u in workload.units for p in (u.forward, u.backward) for k, n in p.items())

    alone, shared = (operations(Configuration(cp=cp, micro_batch=micro_batch, zero=cp - 1)) for cp in (1, 2))
    assert shared == pytest.approx(alone / 2, rel=0.05)


def test_samples_stay_where_they_are() -> None:
    """Ranks that divide positions could divide samples as well, which is data parallelism by another name."""
    program = program_of_configuration(mixture(4), Configuration(cp=2, micro_batch=4, zero=1), H100)
    for op in program.graph.ops:
        if op.name.startswith("model.layers.0") and op.type == "Add":
            result = program.strategies[op.name].results[0]
            assert result is None or not result.dims or not result.dims[0], op.name


def test_slots_that_do_not_divide_are_repeated() -> None:
    """Sixteen ranks do not divide the fifteen slots of a sample, and there is a plan all the same."""
    sizes = {**SIZES, "seq": 48, "batch": 1}
    graph = import_bytes(build("moe", sizes).SerializeToString(), name="moe")
    program = program_of_configuration(graph, Configuration(cp=16, micro_batch=1, zero=1), H100)
    experts = [op.name for op in graph.ops if ".experts" in op.name and op.type == "Einsum"]
    assert {graph.tensors[name].shape[2] for name in experts if graph.tensors[name].shape} == {15}
    assert all((result := program.strategies[name].results[0]) and result.is_replicated for name in experts)
    assert verify_program(program).ok
