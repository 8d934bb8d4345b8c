"""How attention goes about positions that ranks divide: by exchanging heads (DeepSpeed-Ulysses), or gathering keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.builder import build
from planner.cli.main import main
from planner.clock import Configuration, predict
from planner.cost_models import load_profile
from planner.emit.attention import context_by
from planner.emit.scheme import scheme_of
from planner.errors import UsageError
from planner.evaluate import program_of_configuration, workload_of_configuration
from planner.frontends import import_bytes
from planner.ir import Graph
from planner.lowering import Program
from planner.planning import read_plan
from planner.planning.schemes import in_words, parse_strategy, spelled
from planner.planning.schemes.pins import constraints_of_configuration
from planner.requests.uniform import _kinds
from planner.uniform import Sample, best_of
from planner.uniform.coarse import alone
from planner.uniform.dominance import no_better, others
from planner.uniform.space import Space, configurations, levels, schedules
from planner.verify.check import verify_program

MODELS = ("fused", "unfused")
SIZES = {"layers": 2, "hidden": 64, "heads": 8, "kv_heads": 4, "ffn": 128, "vocab": 64, "seq": 32}


def llama(kind: str, batch: int = 8) -> Graph:
    sizes = {**SIZES, **({"attention": "fused"} if kind == "fused" else {}), "batch": batch}
    return import_bytes(build("llama", sizes).SerializeToString(), name=kind)


def program_of(kind: str, c: Configuration) -> Program:
    return program_of_configuration(llama(kind, c.micro_batch * c.dp), c, load_profile("h100"))


def exchanged(program: Program) -> set[str]:
    """Tensors that an all-to-all travels with."""
    return {i.tensor for i in program.redistributions() for step in i.steps if str(step).startswith("all_to_all")}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("tp", [1, 2])
def test_heads_are_exchanged_around_attention_and_nowhere_else(kind: str, tp: int) -> None:
    c = Configuration(dp=2, cp=2, tp=tp, context="all-to-all", zero=1, micro_batch=2)
    program = program_of(kind, c)
    assert verify_program(program).ok
    assert exchanged(program)
    assert all("self_attn" in tensor for tensor in exchanged(program))
    assert not exchanged(program_of(kind, c.with_(context="ring")))


@pytest.mark.parametrize("kind", MODELS)
def test_every_attention_divides_its_heads(kind: str) -> None:
    c = Configuration(cp=4, context="all-to-all", zero=1, micro_batch=2)
    graph = llama(kind, 2)
    (axis,) = constraints_of_configuration(graph, c, "x").meshes[0]
    assert axis == 4
    program = program_of(kind, c)
    whole = {"fused": "Attention", "unfused": "Softmax"}[kind]
    results = [program.strategies[op.name].results[0] for op in graph.ops if op.type == whole]
    assert results
    assert all(x is not None and x.dims[1] and not x.dims[-2] for x in results)


def test_heads_that_do_not_divide_are_refused_by_name() -> None:
    c = Configuration(cp=8, context="all-to-all", zero=1, micro_batch=2)
    with pytest.raises(UsageError, match=r"context=all-to-all: model\.layers\.0\.self_attn\.attention .* 8 ranks"):
        program_of("fused", c)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("micro_batch", [1, 2])
def test_samples_are_never_divided_in_place_of_heads(kind: str, micro_batch: int) -> None:
    """Three heads, which two ranks cannot divide, beside two samples, which they could."""
    sizes = {**SIZES, "hidden": 48, "heads": 3, "kv_heads": 3, **({"attention": "fused"} if kind == "fused" else {})}
    model = import_bytes(build("llama", {**sizes, "batch": 2 * micro_batch}).SerializeToString(), name=kind)
    c = Configuration(dp=2, cp=2, context="all-to-all", zero=1, micro_batch=micro_batch)
    with pytest.raises(UsageError, match="cannot divide its heads among 2 ranks"):
        program_of_configuration(model, c, load_profile("h100"))


def test_beside_tensor_parallelism_ways_for_attention_are_not_compared() -> None:
    """Where heads are exchanged data-parallel ranks lie otherwise then, so that gradients travel otherwise, too."""
    assert not [*others(Configuration(cp=2, tp=2, context="all-to-all"))]
    assert [c.context for c in others(Configuration(cp=2, tp=2))] == ["gather"]
    assert [c.context for c in others(Configuration(cp=2, context="all-to-all"))] == ["ring", "gather"]
    assert not [*others(Configuration(cp=2, context="all-to-all"), ("all-to-all",))]


@pytest.mark.parametrize("tp", [1, 2])
def test_keys_are_gathered_or_passed_round(tp: int) -> None:
    """An attention that is one operator does either; one of several gathers in any case."""
    c = Configuration(dp=2, cp=2, tp=tp, sequence_parallel=tp > 1, context="gather", zero=1, micro_batch=2)
    program, ring = program_of("fused", c), program_of("fused", c.with_(context="ring"))
    assert verify_program(program).ok
    assert _passed_round(ring)
    assert not _passed_round(program)
    apart, same = program_of("unfused", c), program_of("unfused", c.with_(context="ring"))
    assert apart.instructions == same.instructions
    assert Sample(llama("fused"), load_profile("h100")).contexts == ("ring", "all-to-all", "gather")
    assert Sample(llama("unfused"), load_profile("h100")).contexts == ("ring", "all-to-all")


def _passed_round(program: Program) -> bool:
    return any(x.kind == "permute" for s in program.strategies.values() for x in s.inner)


def test_the_fastest_of_each_kind_is_sought_for_either_way_of_attention() -> None:
    ring = Configuration(dp=2, cp=2, micro_batch=1)
    assert _kinds(ring) != _kinds(ring.with_(context="all-to-all"))


def test_a_model_without_attention_is_refused() -> None:
    graph = import_bytes(
        build("vit", {"layers": 1, "hidden": 32, "heads": 2, "batch": 4}).SerializeToString(), name="v"
    )
    with pytest.raises(UsageError, match=r"context=all-to-all|cp=2"):
        workload_of_configuration(graph, Configuration(cp=2, context="all-to-all", micro_batch=4), load_profile("h100"))


def test_beside_sequence_parallelism_it_is_refused() -> None:
    c = Configuration(cp=2, tp=2, context="all-to-all", sequence_parallel=True, micro_batch=2)
    with pytest.raises(UsageError, match="give sp=false"):
        program_of("fused", c)


def test_without_context_parallelism_the_key_is_refused() -> None:
    with pytest.raises(UsageError, match="cp=1; give cp"):
        parse_strategy("megatron:context=all-to-all", devices=2, batch=4)


def test_it_is_written_and_read_back() -> None:
    text = "megatron:dp=2,cp=4,micro_batch=1,context=all-to-all"
    c = parse_strategy(text, devices=8, batch=4)
    assert spelled(c) == text
    assert in_words(c).startswith("DP 2 x CP by all-to-all 4 ")
    assert in_words(c.with_(context="gather")).startswith("DP 2 x CP by gather 4 ")


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("how", ["ring", "all-to-all", "gather"])
def test_launchers_are_told_how(kind: str, how: str, tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    sizes = {**SIZES, **({"attention": "fused"} if kind == "fused" else {}), "batch": 8}
    model.write_bytes(build("llama", sizes).SerializeToString())
    options = ["--devices", "8", "--batch", "8", "--strategy", f"megatron:dp=2,cp=4,micro_batch=2,context={how}"]
    assert main(["search", str(model), *options, "--no-cache", "--out", str(tmp_path / "plan")]) == 0
    plan = read_plan(tmp_path / "plan" / "plan.json")
    found = context_by(plan, scheme_of(plan, "a test"))
    assert found == (how if kind == "fused" or how == "all-to-all" else "gather")
    words = {"ring": ("p2p", "colossalai_cp"), "gather": ("allgather", "colossalai_cp")}
    words["all-to-all"] = ("a2a", "ulysses_cp")
    for target, word in zip(("megatron", "mindformers"), words[found], strict=True):
        assert (
            main(["emit", str(tmp_path / "plan" / "plan.json"), "--target", target, "--out", str(tmp_path / target)])
            == 0
        )
        files = "\n".join(f.read_text() for f in (tmp_path / target).iterdir())
        assert word in files


def test_what_the_target_has_no_words_for_takes_no_one_s_place() -> None:
    """Where one way for attention is in no respect better than another, it stays where the other is not to be had."""
    sizes = {**SIZES, "layers": 4, "hidden": 256, "seq": 512, "attention": "fused", "batch": 16}
    model = import_bytes(build("llama", sizes).SerializeToString(), name="llama")
    for machine in ("h100", "ascend-910b"):
        for context in ("ring", "all-to-all", "gather"):

            def unsupported(c: Configuration, context: str = context) -> str:
                return "" if c.cp == 2 and c.context == context else "anything else"

            sample = Sample(model, load_profile(machine))
            found = best_of(sample, Space(2, 16, sample.layers, experts=False, unsupported=unsupported), None, 2)
            assert found.best, (machine, context)


@pytest.mark.parametrize("machine", ["h100", "ascend-910b"])
def test_what_is_in_no_respect_better_is_never_faster_nor_smaller(machine: str) -> None:
    """Of ranks that differ in how attention goes about the sequence, those that `no_better` leaves out."""
    profile = load_profile(machine)
    sizes = {**SIZES, "layers": 4, "hidden": 256, "seq": 512, "attention": "fused", "batch": 16}
    sample = Sample(import_bytes(build("llama", sizes).SerializeToString(), name="llama"), profile)
    space = Space(8, 16, sample.layers, experts=False)
    left_out = compared = 0
    for c in configurations(space, profile):
        for other in others(c):
            if c.sequence_parallel or c.cp * c.tp > 4 or c.dp > 2:
                continue
            one = alone(c)
            if not no_better(sample.estimated(one), sample.estimated(alone(other)), one, profile):
                continue
            left_out += 1
            for s in (v for order in schedules(space, c) for v in levels(space, order)):
                mine = predict(sample.estimated(s), s, profile)
                theirs = predict(sample.estimated(s.with_(context=other.context)), s, profile)
                assert mine.step_time_s >= theirs.step_time_s * (1 - 1e-9), spelled(s)
                assert mine.allocated_bytes >= theirs.allocated_bytes * (1 - 1e-9), spelled(s)
                compared += 1
    assert left_out
    assert compared > 100
