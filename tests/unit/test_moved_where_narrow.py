"""Keys and values that an exporter repeats for every group of queries are moved between ranks before they are."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from planner.cli.main import main
from planner.clock import Configuration, predict
from planner.cost_models import load_profile
from planner.errors import UsageError
from planner.evaluate import program_of_configuration, workload_of_configuration
from planner.frontends import import_bytes
from planner.ir import Graph
from planner.lowering import Program
from planner.verify.check import verify_program

from .exported_attention import HEADS, exported

H100 = load_profile("h100")


@cache
def model(batch: int, groups: int) -> Graph:
    return import_bytes(exported(batch, groups), name="exported")


def program_of(c: Configuration, groups: int = 2) -> Program:
    return program_of_configuration(model(c.micro_batch * c.dp, groups), c, H100)


def moved(program: Program, kind: str, *, gradient: bool = False) -> set[str]:
    """Activations of the first block that such a collective travels with."""
    steps = [(i.tensor, str(s)) for i in program.redistributions() if i.gradient == gradient for s in i.steps]
    return {t for t, step in steps if step.startswith(kind) and t.startswith(("block0.k", "block0.v"))}


@pytest.mark.parametrize(
    "c", [Configuration(dp=2, cp=2, micro_batch=1), Configuration(cp=2, tp=2, micro_batch=2)], ids=str
)
def test_keys_and_values_are_gathered_before_they_are_repeated(c: Configuration) -> None:
    program = program_of(c.with_(zero=1))
    narrow = program.graph.tensors["block0.k"].elements
    for tensors in (moved(program, "all_gather"), moved(program, "reduce_scatter", gradient=True)):
        assert {t.split(".")[1][0] for t in tensors} == {"k", "v"}
        assert {program.graph.tensors[t].elements for t in tensors} == {narrow}
    assert verify_program(program).ok


@pytest.mark.parametrize(("groups", "cp", "times"), [(2, 2, 1), (2, 4, 2), (4, 4, 1)])
def test_heads_are_exchanged_before_they_are_repeated_where_ranks_divide_those(
    groups: int, cp: int, times: int
) -> None:
    """Ranks that do not divide the heads of keys and values exchange them as often as these are repeated."""
    program = program_of(Configuration(cp=cp, context="all-to-all", zero=1, micro_batch=2), groups)
    tensors = moved(program, "all_to_all")
    assert {t.split(".")[1][0] for t in tensors if not t.startswith("block0.keys")} >= {"v"}
    elements = {program.graph.tensors[t].elements for t in tensors}
    assert elements == {times * program.graph.tensors["block0.k"].elements}
    assert verify_program(program).ok


def test_one_head_of_keys_is_gathered_where_heads_of_queries_are_exchanged() -> None:
    """Every rank needs all of it: less is received than of its repetitions, which could be divided."""
    program = program_of(Configuration(cp=2, context="all-to-all", zero=1, micro_batch=2), 1)
    assert not moved(program, "all_to_all")
    tensors = moved(program, "all_gather")
    assert {program.graph.tensors[t].elements for t in tensors} == {program.graph.tensors["block0.k"].elements}
    assert verify_program(program).ok


def test_what_more_ranks_divide_when_repeated_is_moved_repeated() -> None:
    """Four tensor-parallel ranks divide four repeated heads, and hold two heads whole: these would be more to receive,
    and to hold."""
    program = program_of(Configuration(cp=2, tp=4, zero=1, micro_batch=2))
    assert moved(program, "all_gather") >= {"block0.keys", "block0.v.all_heads"}
    assert verify_program(program).ok


@pytest.mark.parametrize("context", ["ring", "all-to-all"])
@pytest.mark.parametrize("groups", [1, 2])
def test_inference_moves_them_as_well(groups: int, context: str, tmp_path: Path) -> None:
    """Where there are no gradients, no operator passes a pending sum of them on."""
    model = tmp_path / "model.onnx"
    model.write_bytes(exported(4, groups))
    options = ["--mode", "inference", "--strategy", f"megatron:cp=2,micro_batch=4,context={context}", "--no-cache"]
    assert main(["search", str(model), "--devices", "2", *options, "--out", str(tmp_path / "plan")]) == 0
    assert main(["verify", str(tmp_path / "plan"), str(model)]) == 0


def test_fewer_heads_of_keys_take_less_to_move() -> None:
    """With as many heads of keys as of queries nothing is repeated: ranks compute the same, and receive more."""
    c = Configuration(dp=2, cp=2, micro_batch=1, zero=1)
    few, all_ = (predict(workload_of_configuration(model(2, n), c, H100), c, H100) for n in (1, HEADS))
    assert few.breakdown["tensor_collectives"] < all_.breakdown["tensor_collectives"]


def test_too_many_ranks_are_refused_as_before() -> None:
    with pytest.raises(UsageError, match="cannot divide its heads among 8 ranks"):
        program_of(Configuration(cp=8, context="all-to-all", zero=1, micro_batch=2))
