"""Uniform configurations: the fastest that fits is found, by bounds that hold, of a sample of the model."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from planner.builder import build
from planner.cli.main import main
from planner.clock import Configuration, Prediction, predict
from planner.clock.links import Links
from planner.clock.passes import Passes, passes_of
from planner.cost_models import HardwareProfile, load_profile
from planner.errors import InfeasibleError, InputError, NotFasterError, UsageError
from planner.evaluate import Prices, program_of_configuration, traced_as
from planner.frontends import import_bytes
from planner.frontends.resized.rebind import batch_axes, rebind
from planner.ir import Graph
from planner.lowering import Program
from planner.planning import Request, make_plan, read_plan
from planner.planning.schemes import in_words, parse_strategy, spelled
from planner.pricing import Settings
from planner.pricing.cases import CasePrices
from planner.requests.history import History
from planner.requests.search import SearchRequest
from planner.requests.uniform import _PROVEN, Uniforms
from planner.search.control import Control
from planner.uniform import Sample, Scored, Space, best_of, prove
from planner.uniform.bounding import Bounds, step_of
from planner.uniform.first import likely
from planner.uniform.found import Found
from planner.uniform.least import Held, Passed
from planner.uniform.space import _RUN, configurations, every
from tests.bench.uniform_exact import Frozen, Job, rows_of

A100 = load_profile("a100-80")
SIZES = {
    "gpt": {"layers": 4, "hidden": 512, "heads": 4, "vocab": 4096, "seq": 256, "attention": "fused"},
    "llama": {"layers": 4, "hidden": 512, "heads": 8, "kv_heads": 4, "ffn": 1024, "vocab": 4096, "seq": 256},
    "moe": {"layers": 4, "hidden": 256, "heads": 8, "kv_heads": 4, "ffn": 512, "vocab": 1024, "seq": 128},
    "resnet": {"image": 32},
}


@lru_cache
def graph(architecture: str, batch: int) -> Graph:
    return import_bytes(build(architecture, {**SIZES[architecture], "batch": batch}).SerializeToString(), name="m")


def _none_left(left: Iterator[int]) -> bool:
    return next(left, None) is None


def _one_order(c: Configuration) -> str:
    return "" if c.order == "1f1b" else c.order


def simulated(sample: Sample, c: Configuration) -> Prediction | None:
    """By the configuration's own layout."""
    try:
        return predict(sample.workload(c), c, A100)
    except (UsageError, InputError):
        return None


@pytest.mark.parametrize(("architecture", "devices"), [("gpt", 4), ("moe", 2), ("resnet", 2)])
def test_the_fastest_is_that_of_all_configurations(architecture: str, devices: int) -> None:
    """Law: what the bounds leave out is no faster, with each configuration laid out by itself."""
    sample = Sample(graph(architecture, 4), A100)
    space = Space(devices, 4, sample.layers, experts=sample.has_experts)
    assert sample.has_experts == (architecture == "moe")
    steps = {c: p for c in every(space, A100) if (p := simulated(sample, c)) is not None}
    fastest = min(steps.values(), key=lambda p: p.step_time_s)
    searched = Sample(graph(architecture, 4), A100)  # knows no configuration's own layout yet
    for limit in (None, round(0.9 * fastest.allocated_bytes)):
        fitting = {c: p for c, p in steps.items() if limit is None or round(p.allocated_bytes) <= limit}
        (found,) = best_of(searched, space, limit).best
        assert found.prediction.step_time_s == min(p.step_time_s for p in fitting.values())
        assert fitting[found.configuration] == found.prediction
    assert len(fitting) < len(steps)


@pytest.mark.parametrize("architecture", ["gpt", "llama", "moe"])
def test_a_bound_is_never_above_the_step_nor_above_the_memory(architecture: str) -> None:
    sample = Sample(graph(architecture, 8), A100)
    space = Space(4, 8, sample.layers, experts=False, offload=True)
    bounds = Bounds(sample, space, None)
    tried = 0
    for c in [*every(space, A100)][::41]:
        alone = c.with_(
            dp=1,
            pp=1,
            micro_batches=1,
            zero=0,
            virtual_stages=1,
            schedule="1f1b",
            recompute="none",
            offload=0.0,
            shard_ranks=None,
        )
        try:
            p = predict(sample.workload(c), c, A100)
            workload = sample.workload(alone)
        except (UsageError, InputError):
            continue
        passed, held = Passed(workload, alone, A100, c.micro_batch), Held(workload, c.micro_batch)
        assert passed.step(c) + held.update(c, A100) <= p.step_time_s * (1 + 1e-9), spelled(c)
        few = bounds.passes(c)  # of one data-parallel rank, or of two
        assert few is not None
        assert (few.configuration.dp, few.configuration.zero) == ((1, 0) if c.dp == 1 else (2, 1))
        assert step_of(few, c) <= p.step_time_s, spelled(c)
        assert held.bytes(c) <= p.allocated_bytes, spelled(c)
        tried += 1
    assert tried > 20


@pytest.mark.parametrize("shorter", [1.0, 0.97])
def test_no_configuration_is_missed_that_is_faster_than_what_changes_lead_to(shorter: float) -> None:
    """The search ends at the step that changes to the fastest lead to, and the fastest is found all the same."""
    space = Space(8, 32, Sample(graph("gpt", 32), A100).layers, experts=False)
    free = best_of(Sample(graph("gpt", 32), A100), space, None, 3)
    changed: list[Scored] = []

    def improved(scored: Scored) -> float:
        changed.append(scored)
        return scored.prediction.step_time_s * shorter

    found = best_of(Sample(graph("gpt", 32), A100), space, None, 3, improved=improved)
    assert found.best[0].prediction == free.best[0].prediction
    assert found.best[0] == changed[-1]
    assert 2 <= len(found.best) <= 3  # one more, to which changes may lead further
    assert found.simulated < free.simulated


def test_prices_of_configurations_that_differ_in_their_parameters_are_found_once() -> None:
    """And the programs are those that are found alone."""
    model, prices = graph("llama", 8), Prices()
    c = Configuration(dp=2, tp=2, micro_batch=4, zero=1)
    with pytest.MonkeyPatch.context() as patch:
        made: list[object] = []
        begin = CasePrices.__init__
        patch.setattr(CasePrices, "__init__", lambda self, *of: made.append(self) or begin(self, *of))
        for changes in ({}, {"zero": 0}, {"recompute": "full"}, {"zero": 0, "recompute": "full"}):
            changed = c.with_(**changes)
            shared = program_of_configuration(model, changed, A100, prices=prices, kept=True)
            assert len(made) == 1
            alone = program_of_configuration(model, changed, A100)
            assert (shared.instructions, shared.strategies) == (alone.instructions, alone.strategies)
            del made[1:]
        for n, changes in enumerate(({"sequence_parallel": True}, {"precision": "fp32"}), 2):
            other = program_of_configuration(model, c.with_(**changes), A100, prices=prices)
            assert len(made) == n
            alone = program_of_configuration(model, c.with_(**changes), A100)
            assert (other.instructions, other.strategies) == (alone.instructions, alone.strategies)
            del made[n:]
        for _ in range(2):  # of a mesh of four axes prices take too much room to be kept
            experts = c.with_(dp=4, ep=2, tp=2, cp=2)
            program_of_configuration(graph("moe", 16), experts, A100, prices=prices, kept=True)
    assert len(made) == 5


USUAL = Configuration(
    dp=4, pp=2, micro_batch=4, zero=3, recompute="full", schedule="zb-h1", precision="fp16", parameter_bytes=4,
    gradient_bytes=4, attention="unfused", loss="operators", fuse=False, overlap_pipeline=False,
)  # fmt: skip


def test_a_step_is_run_as_usual_and_divided_in_every_way() -> None:
    sample = Sample(graph("gpt", 8), A100)
    space = Space(4, 8, sample.layers, experts=False)
    told = replace(space, usual=USUAL)
    back = {
        c.with_(**{name: getattr(d, name) for name in _RUN})
        for c, d in zip(every(told, A100), every(space, A100), strict=True)
    }
    assert back == set(every(space, A100))
    for c in every(told, A100):
        assert all(getattr(c, name) == getattr(USUAL, name) for name in _RUN)


@pytest.mark.parametrize("usual", [USUAL, USUAL.with_(frozen=True, parameter_bytes=None)])
def test_the_fastest_is_that_of_all_configurations_run_as_usual(usual: Configuration) -> None:
    sample = Sample(graph("gpt", 4), A100)
    space = Space(2, 4, sample.layers, experts=False, usual=usual, offload=True)
    steps = {c: p for c in every(space, A100) if (p := simulated(sample, c)) is not None}
    fastest = min(steps.values(), key=lambda p: p.step_time_s)
    searched = Sample(graph("gpt", 4), A100)
    for limit in (None, round(0.9 * fastest.allocated_bytes)):
        fitting = [p.step_time_s for p in steps.values() if limit is None or round(p.allocated_bytes) <= limit]
        (found,) = best_of(searched, space, limit).best
        assert found.prediction.step_time_s == min(fitting)
    assert len(fitting) < len(steps)


@pytest.mark.parametrize(
    ("architecture", "strategy"),
    [
        ("gpt", "megatron:tp=2,pp=2,micro_batch=1,vpp=2"),
        ("gpt", "megatron:pp=2,micro_batch=2,recompute=full"),
        ("gpt", "fsdp:micro_batch=1"),
        ("gpt", "megatron:tp=4,cp=2,zero=2,recompute=selective"),
        ("gpt", "megatron:tp=2,cp=2,context=all-to-all,sp=false,zero=1"),
        ("llama", "megatron:tp=2,pp=4,micro_batch=1"),
        ("llama", "ddp"),
        ("moe", "megatron:ep=4,micro_batch=1"),
        ("resnet", "ddp"),
    ],
)
def test_a_sample_stands_for_the_whole_model(architecture: str, strategy: str) -> None:
    whole = graph(architecture, 8)
    c = parse_strategy(strategy, devices=8, batch=8)
    at = rebind(whole, batch_axes(whole, c.micro_batch * c.dp))
    traced = traced_as(c, program_of_configuration(at, c, A100))
    sample = Sample(whole, A100)
    expected, found = predict(traced, c, A100), predict(sample.workload(c), c, A100)
    assert found.step_time_s == pytest.approx(expected.step_time_s, rel=1e-12)
    assert found.allocated_bytes == pytest.approx(expected.allocated_bytes, rel=1e-12)
    assert found.flops == pytest.approx(expected.flops, rel=1e-12)
    estimated = predict(sample.estimated(c), c, A100)
    assert estimated.step_time_s == pytest.approx(expected.step_time_s, rel=1e-4)
    assert len(sample.graph.ops) < len(whole.ops) or architecture == "resnet"


def test_an_estimate_of_other_sizes_is_that_of_their_own_layout() -> None:
    sample = Sample(graph("gpt", 8), A100)
    for strategy in ("megatron:tp=2,micro_batch=1", "megatron:tp=4,micro_batch=1", "megatron:tp=2,micro_batch=2"):
        c = parse_strategy(strategy, devices=8, batch=8)
        estimated, own = predict(sample.estimated(c), c, A100), predict(sample.workload(c), c, A100)
        assert estimated.step_time_s == pytest.approx(own.step_time_s, rel=1e-4)
    assert sum(map(len, sample._programs.values())) < 3


@pytest.mark.parametrize(
    ("architecture", "strategy"),
    [
        ("gpt", "zero3:shard=4,micro_batch=1"),
        ("gpt", "zero2:shard=8,micro_batch=1"),
        ("gpt", "megatron:tp=2,zero=1,shard=4,micro_batch=2"),
        ("llama", "megatron:pp=2,zero=2,shard=2,micro_batch=1"),
        ("llama", "megatron:cp=2,zero=3,shard=4,micro_batch=1"),
        ("moe", "megatron:ep=4,zero=1,shard=8,micro_batch=1"),
        ("moe", "megatron:ep=4,zero=1,shard=4,micro_batch=1"),
    ],
)
def test_what_groups_exchange_is_estimated_as_their_own_layout_has_it(architecture: str, strategy: str) -> None:
    sample = Sample(graph(architecture, 32), A100)
    c = parse_strategy(strategy, devices=16, batch=32)
    assert c.shard_ranks not in (None, c.dp * c.cp)
    estimated, own = predict(sample.estimated(c), c, A100), predict(sample.workload(c), c, A100)
    assert estimated.step_time_s == pytest.approx(own.step_time_s, rel=1e-6)
    assert estimated.allocated_bytes == pytest.approx(own.allocated_bytes, rel=1e-2)


@pytest.mark.parametrize("strategy", ["zero2:shard=8,micro_batch=1", "megatron:tp=2,zero=3,shard=4,micro_batch=1"])
def test_groups_scatter_in_every_pass_where_a_switch_sums_faster(strategy: str) -> None:
    """On B200 an all-reduce over all ranks takes less time, once, than scattering in groups and summing over them."""
    profile = load_profile("b200")
    sample = Sample(graph("gpt", 256), profile)
    c = parse_strategy(strategy, devices=64, batch=256)
    once, own, over_all = (sample.workload(c.with_(zero=n, shard_ranks=s)) for n, s in ((1, 8), (2, 8), (2, None)))
    assert any(x.kind == "all_reduce" for u in once.units for x in u.sums)
    for w in (own, sample.in_groups(c), sample.estimated(c), over_all):
        matrices = [x for u in w.units for x in u.scatters if x.share > 0.01]
        assert {x.kind for x in matrices} <= {"reduce_scatter", "all_reduce"}
    estimated = predict(sample.estimated(c), c, profile)
    assert estimated.step_time_s == pytest.approx(predict(sample.workload(c), c, profile).step_time_s, rel=1e-2)


@pytest.mark.parametrize("strategy", ["megatron:cp=2", "megatron:tp=2,sp=true", "megatron:cp=2,tp=2"])
def test_positions_of_one_sample_are_laid_out_by_themselves(strategy: str) -> None:
    """Before the loss samples and positions are one dimension, in which positions of one sample alone stay divided."""
    sample = Sample(graph("llama", 8), A100)
    for micro_batch in (2, 1):  # an estimate of one sample is not made of the layout of two
        c = parse_strategy(f"{strategy},micro_batch={micro_batch}", devices=4, batch=8)
        estimated, own = predict(sample.estimated(c), c, A100), predict(sample.workload(c), c, A100)
        assert estimated.step_time_s == pytest.approx(own.step_time_s, rel=1e-4)
        assert estimated.allocated_bytes == pytest.approx(own.allocated_bytes, rel=1e-2)


def test_where_pairs_of_devices_are_slow_a_layout_is_not_that_of_other_sizes() -> None:
    """On a V100 server tensor-parallel pairs gather among all four ranks and drop half: no way for tp=4."""
    profile = load_profile("v100")
    sizes = {"layers": 5, "hidden": 256, "heads": 8, "kv_heads": 8, "ffn": 1024, "vocab": 1024, "seq": 2048, "batch": 3}
    model = build("llama", {**sizes, "attention": "fused"})
    sample = Sample(import_bytes(model.SerializeToString(), name="llama"), profile)
    for tp in (2, 4):
        c = parse_strategy(f"megatron:tp={tp},cp=2,micro_batch=3", devices=2 * tp, batch=3).with_(precision="fp16")
        estimated, own = predict(sample.estimated(c), c, profile), predict(sample.workload(c), c, profile)
        assert estimated.step_time_s == pytest.approx(own.step_time_s, rel=1e-4)


def _vit(hidden: int, batch: int) -> Graph:
    sizes = {"layers": 5, "hidden": hidden, "heads": 4, "batch": batch}
    return import_bytes(build("vit", sizes).SerializeToString(), name="vit")


@pytest.mark.parametrize("degrees", [(3, 2), (6, 2, 3, 4), (6, 4)])
def test_a_layout_that_leaves_heads_whole_stands_for_none_that_divides_them(degrees: tuple[int, ...]) -> None:
    """Whichever is met first: four heads are divided by two and four ranks, and left whole by three and six."""
    sample = Sample(_vit(256, 12), A100)
    for tp in degrees:
        c = parse_strategy(f"megatron:tp={tp},sp=true,recompute=full,micro_batch=2", devices=tp, batch=12)
        estimated, own = predict(sample.estimated(c), c, A100), predict(sample.workload(c), c, A100)
        assert estimated.step_time_s == pytest.approx(own.step_time_s, rel=1e-4)
        assert estimated.allocated_bytes == pytest.approx(own.allocated_bytes, rel=1e-4)


def test_the_few_that_fit_are_found_where_most_degrees_leave_heads_whole() -> None:
    """Four of 780 configurations fit; what three ranks hold was taken for what two hold, and refused them all."""
    profile = load_profile("ascend-910b")
    sample = Sample(_vit(2048, 6), profile)
    strategy = "megatron:dp=1,tp=2,pp=3,micro_batch=1,zero=0,sp=true,recompute=full,schedule=zb-h1,gradient_bytes=2"
    c = parse_strategy(strategy, devices=6, batch=6)
    expected = predict(sample.workload(c), c, profile)
    limit = round(1.01 * expected.allocated_bytes)
    searched = Sample(sample.whole, profile)  # knows no configuration's own layout yet
    (found,) = best_of(searched, Space(6, 6, sample.layers, "bf16", contexts=sample.contexts), limit).best
    assert found.prediction.step_time_s <= expected.step_time_s


def test_where_pairs_of_devices_are_slow_three_ranks_are_laid_out_by_themselves() -> None:
    """On a V100 server, three pairs of devices do not exchange as two pairs do."""
    profile = load_profile("v100")
    sizes = {"layers": 2, "hidden": 512, "heads": 4, "kv_heads": 4, "ffn": 1024, "vocab": 32000, "seq": 512, "batch": 6}
    model = build("llama", {**sizes, "attention": "unfused"})
    sample = Sample(import_bytes(model.SerializeToString(), name="llama"), profile)
    c = parse_strategy("megatron:dp=3,tp=2,micro_batch=2,zero=0,sp=false,gradient_bytes=2", devices=6, batch=6)
    c = c.with_(precision="fp16")
    estimated, own = predict(sample.estimated(c), c, profile), predict(sample.workload(c), c, profile)
    assert estimated.step_time_s == pytest.approx(own.step_time_s, rel=1e-4)


@pytest.mark.parametrize("strategy", ["zero3:shard=3", "zero2:shard=3", "zero3:shard=2", "zero2", "zero3"])
def test_weights_that_not_all_ranks_divide_are_laid_out_by_themselves(strategy: str) -> None:
    """Six ranks cut 512 rows in two, and three of them do not: they cut the 1,536 columns of queries, keys, values."""
    profile = load_profile("v100")
    sizes = {"layers": 2, "hidden": 512, "heads": 8, "vocab": 1024, "seq": 2048, "batch": 6}
    model = build("gpt", {**sizes, "attention": "unfused"})
    sample = Sample(import_bytes(model.SerializeToString(), name="gpt"), profile)
    c = parse_strategy(f"{strategy}{',' if ':' in strategy else ':'}micro_batch=1", devices=6, batch=6)
    c = c.with_(precision="fp16", gradient_bytes=2)
    own = predict(sample.workload(c), c, profile)
    assert predict(sample.estimated(c), c, profile).step_time_s == pytest.approx(own.step_time_s, rel=1e-4)
    assert not sample.follows(c)
    space = Space(6, 6, sample.layers, "fp16", contexts=sample.contexts)
    found = best_of(sample, space, None)
    assert found.best[0].prediction.step_time_s <= own.step_time_s
    assert prove(sample, space, None, found.best[0], found.coarse).bound_s <= own.step_time_s


@pytest.mark.parametrize("beside", ["ep=2", "cp=2", "ep=2,tp=2"])
def test_over_all_ranks_no_more_is_held_than_over_a_group_of_them(beside: str) -> None:
    """Law: three ranks divide no weight, and two of another kind inside of them do."""
    sizes = {"layers": 2, "hidden": 256, "heads": 8, "kv_heads": 2, "ffn": 512, "vocab": 1024, "seq": 128, "batch": 6}
    sample = Sample(import_bytes(build("moe", sizes).SerializeToString(), name="moe"), A100)
    dp, devices = (6, 12 if "tp" in beside else 6) if "ep" in beside else (3, 6)
    for zero in (1, 3):
        text = f"megatron:dp={dp},{beside},micro_batch=1,zero={zero}"
        over_all = parse_strategy(text, devices=devices, batch=6)
        group = parse_strategy(f"{text},shard=2", devices=devices, batch=6)
        held, held_by_group = (predict(sample.workload(c), c, A100).allocated_bytes for c in (over_all, group))
        assert held <= held_by_group


def test_groups_that_divide_what_all_ranks_do_not_are_found() -> None:
    """ZeRO over two ranks of six, which divide experts, was faster than over all, which divided no weight."""
    sizes = {"layers": 2, "hidden": 2048, "heads": 8, "kv_heads": 2, "ffn": 8192, "vocab": 1024, "seq": 2048}
    sample = Sample(import_bytes(build("moe", {**sizes, "batch": 6}).SerializeToString(), name="moe"), A100)
    text = "megatron:dp=6,ep=2,micro_batch=1,shard=2,zero=2,gradient_bytes=2"
    shortest = predict(sample.workload(c := parse_strategy(text, devices=6, batch=6)), c, A100)
    searched = Sample(sample.whole, A100)
    space = Space(6, 6, sample.layers, "bf16", experts=True, contexts=sample.contexts)
    found = best_of(searched, space, None)
    assert found.best[0].prediction.step_time_s <= shortest.step_time_s
    assert prove(searched, space, None, found.best[0], found.coarse).bound_s <= shortest.step_time_s


def test_prescribed_stages_micro_batches_and_recomputation_are_kept() -> None:
    sample = Sample(graph("gpt", 8), A100)
    space = Space(4, 8, sample.layers, stages=2, micro_batches=4, recompute="blocks", unsupported=_one_order)
    (found,) = best_of(sample, space, None).best
    c = found.configuration
    assert (c.pp, c.micro_batches, c.recompute, c.order) == (2, 4, "full", "1f1b")
    assert best_of(sample, Space(4, 8, sample.layers, micro_batches=3), None).best == ()


def test_a_search_that_is_stopped_has_a_configuration_that_fits() -> None:
    sample = Sample(graph("gpt", 8), A100)
    space = Space(4, 8, sample.layers)
    (fastest,) = best_of(sample, space, None).best
    limit = round(0.9 * fastest.prediction.allocated_bytes)
    told: list[Scored] = []
    stopped = best_of(Sample(graph("gpt", 8), A100), space, limit, stopped=lambda: True, first=told.append)
    (found,) = stopped.best
    assert told == [found]
    assert stopped.at_once_s == 0, "operators are searched as well"
    assert found.prediction == predict(sample.workload(found.configuration), found.configuration, A100)
    assert found.prediction.allocated_bytes <= limit


def test_a_first_plan_divides_the_model_further_where_others_hold_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four ways to divide a model by four none may fit, as of exporters' graphs of 405 billion parameters."""
    sample = Sample(graph("gpt", 16), A100)
    space = Space(16, 16, sample.layers)
    ways = list(likely(configurations(space, A100), space, A100, sample.elements, None))
    tries = [*[c for c in ways if c.pp * c.tp <= 2], *[c for c in ways if c.pp * c.tp == 4][:1]]
    held = [p.allocated_bytes for c in tries if (p := simulated(sample, c)) is not None]
    assert len(held) == len(tries) == 4
    assert held[-1] < min(held[:-1])
    monkeypatch.setattr("planner.uniform.best.likely", lambda *_: iter(tries))
    begun: list[Scored] = []
    best_of(Sample(graph("gpt", 16), A100), space, round(held[-1]), stopped=lambda: True, first=begun.append)
    assert [f.configuration for f in begun] == tries[-1:]


def test_nothing_fits_where_nothing_can() -> None:
    sample = Sample(graph("gpt", 8), A100)
    found = best_of(sample, Space(4, 8, sample.layers), 1000)
    assert found.best == ()
    assert found.refused["memory"] > 0
    assert found.at_once_s == float("inf")


def test_what_the_model_does_not_admit_is_laid_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is refused in the same words each time."""
    tried: list[Configuration] = []

    def counted(at: Graph, c: Configuration, profile: HardwareProfile, *, prices: Prices, kept: bool) -> Program:
        tried.append(c)
        return program_of_configuration(at, c, profile, prices=prices, kept=kept)

    monkeypatch.setattr("planner.uniform.sample.program_of_configuration", counted)
    sample = Sample(graph("gpt", 4), A100)
    c = Configuration(cp=8, context="all-to-all", micro_batch=1)  # of four heads
    for of in (sample.workload, sample.estimated):
        for pp in (1, 2):
            with pytest.raises(UsageError, match="cannot divide its heads among 8 ranks"):
                of(c.with_(pp=pp))
        assert len(tried) == 1
        tried.clear()


def test_what_is_known_has_to_be_beaten() -> None:
    request = Request(4, A100, Settings(True))
    free = make_plan(graph("gpt", 8), request)
    with pytest.raises(NotFasterError, match="shorter than"):
        make_plan(graph("gpt", 8), Request(4, A100, Settings(True), known_step_s=free.step_time_s * 0.99))
    again = make_plan(graph("gpt", 8), Request(4, A100, Settings(True), known_step_s=free.step_time_s * 1.01))
    assert again.step_time_s == pytest.approx(free.step_time_s, rel=1e-3)


def test_where_nothing_fits_a_known_step_ends_the_search_in_order() -> None:
    """Under a limit that only blocks that run again may keep, plans with these are not searched where they are slower
    than the known one."""
    sizes = {"layers": 2, "hidden": 256, "heads": 4, "vocab": 512, "seq": 64, "batch": 16}
    small = import_bytes(build("gpt", sizes).SerializeToString(), name="gpt")
    free = make_plan(small, Request(8, A100, Settings(True)))
    limit = int(0.15 * free.peak_memory_bytes)
    request = Request(8, A100, Settings(True), memory_limit=limit, known_step_s=1.05 * free.step_time_s)
    with pytest.raises((NotFasterError, InfeasibleError)):
        make_plan(small, request)


def test_configurations_are_said_in_words() -> None:
    c = parse_strategy("megatron:tp=2,pp=4,vpp=2,micro_batch=1,zero=1", devices=64, batch=128)
    expected = "DP 8 x TP 2 x PP 4 (interleaved 1F1B, 2 chunks a stage, 16 micro-batches of 1), ZeRO 1, "
    assert in_words(c) == expected + "sequence parallel"
    assert in_words(parse_strategy("ddp", devices=1, batch=4)) == "one device (1 micro-batch of 4)"


def searched(capsys: pytest.CaptureFixture[str], folder: Path, *options: str) -> dict[str, object]:
    model = folder / "gpt.onnx"
    if not model.exists():
        sizes = {"layers": 4, "hidden": 256, "heads": 4, "vocab": 512, "seq": 64, "batch": 16, "attention": "fused"}
        model.write_bytes(build("gpt", sizes).SerializeToString())
    words = [
        "search",
        str(model),
        "--devices",
        "4",
        "--no-cache",
        "--force",
        "--json",
        "--out",
        str(folder / "plan"),
        *options,
    ]
    assert main(words) == 0
    document: dict[str, object] = json.loads(capsys.readouterr().out)
    return document


def test_micro_batches_fit_where_the_whole_batch_does_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = ("--memory-limit", "16MB")
    whole = searched(capsys, tmp_path, *short)
    uniform = whole["uniform"]
    assert isinstance(uniform, dict)
    rejected = uniform["rejected"]  # each configuration once
    assert min(rejected.values()) >= 0
    assert rejected["memory"] > 0
    assert sum(rejected.values()) < uniform["considered"]
    assert whole["step_time_s"] == uniform["step_time_s"]
    assert whole["peak_memory_bytes"] <= 16_000_000  # type: ignore[operator]
    plan = tmp_path / "plan" / "plan.json"
    request = read_plan(plan).search.request
    assert request is not None
    assert request.strategy == uniform["strategy"]
    assert main(["verify", str(plan), str(tmp_path / "gpt.onnx")]) == 0
    capsys.readouterr()
    again = searched(capsys, tmp_path, *short, "--strategy", str(uniform["strategy"]))
    assert again["step_time_s"] == whole["step_time_s"]
    model = str(tmp_path / "gpt.onnx")
    alone = ["search", model, "--devices", "4", "--no-cache", "--out", str(tmp_path / "x"), "--space", "operators"]
    assert main([*alone, *short]) == 4


def test_operators_are_searched_alone_where_memory_is_not_short(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = searched(capsys, tmp_path)
    assert "uniform" not in alone
    whole = searched(capsys, tmp_path, "--space", "whole", "--top-k", "2")
    assert whole["step_time_s"] <= alone["step_time_s"]  # type: ignore[operator]
    assert len(whole["plans"]) == 2  # type: ignore[arg-type]
    request = read_plan(tmp_path / "plan" / "plan.json").search.request
    assert request is not None
    assert request.space in ((None, "operators") if request.strategy else ("whole",))


def test_further_plans_are_there_whichever_kind_is_fastest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan of operators one by one is followed by uniform configurations."""
    kinds = set()
    for options in (["--hardware", "cpu", "--precision", "fp32"], ["--hardware", "h100"]):
        found = searched(capsys, tmp_path, "--space", "whole", "--top-k", "3", *options, "--force")
        plans = [read_plan(Path(p["plan"])) for p in found["plans"]]  # type: ignore[attr-defined]
        steps = [p.cost.step_time_s for p in plans]
        assert len(plans) == 3
        assert steps == sorted(steps)
        kinds.add(plans[0].search.request.strategy is None)  # type: ignore[union-attr]
    assert True in kinds


def test_seconds_are_enough_for_a_plan_that_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the whole batch at once does not fit."""
    found = searched(capsys, tmp_path, "--memory-limit", "16MB", "--time-limit", "30")
    peak = found["peak_memory_bytes"]
    assert isinstance(peak, int)
    assert peak <= 16_000_000
    assert "uniform" in found


def test_a_limit_leaves_time_for_operators_inside_of_the_fastest() -> None:
    """Configurations are searched for three quarters of the time, bounded for a tenth more, and then left."""
    control = Control(1000.0)
    uniforms = Uniforms(SearchRequest(Path("gpt.onnx"), "8"), graph("gpt", 8), 8, A100, control, History())
    stopped = []
    for seconds in (700.0, 800.0, 900.0, 1000.0):
        control.started = time.monotonic() - seconds
        stopped.append([uniforms._stopped(), uniforms._stopped(_PROVEN), control.stopped])
    control.started = time.monotonic() - 800
    uniforms._searched = True
    assert not uniforms._stopped(), "another search, after the first one, has time"
    assert stopped == [[False, False, False], [True, False, False], [True, True, False], [True, True, True]]


def test_configurations_are_searched_for_longer_while_none_is_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guess from bounds may be much slower: Llama 405B on 16,384 devices took 7.6 s in place of 5.5."""
    control = Control(1000.0)
    uniforms = Uniforms(SearchRequest(Path("gpt.onnx"), "8"), graph("gpt", 8), 8, A100, control, History())
    over = []

    def looked(*searched: Any, stopped: Callable[[], bool], improved: Callable[[Scored], float], **how: Any) -> Found:
        for seconds in (960.0, 800.0):
            control.started = time.monotonic() - seconds
            over.append(stopped())
        found = best_of(*searched, **how)
        improved(found.best[0])
        over.append(stopped())
        return found

    monkeypatch.setattr("planner.requests.uniform.best_of", looked)
    assert uniforms.best() is not None
    assert over == [True, False, True]


@pytest.mark.parametrize("large", [False, True])
def test_operators_of_a_large_graph_are_not_searched_one_by_one_where_time_for_configurations_did_not_reach(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    """What is left of the time is for those inside of the fastest configuration that was met."""
    monkeypatch.setattr(Uniforms, "_stopped", lambda self, share=0.0: True)
    monkeypatch.setattr("planner.requests.choosing._LARGE", 10 if large else 1_000)
    found = searched(capsys, tmp_path, "--space", "whole", "--time-limit", "60")
    assert isinstance(found["uniform"], dict)
    plan = read_plan(tmp_path / "plan" / "plan.json")
    assert plan.search.request is not None
    assert plan.search.request.strategy == (found["uniform"]["strategy"] if large else None)


def test_the_upper_end_of_the_interval_counts_where_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a configuration unlike all that were measured, and of the best that is like them."""
    usual = searched(capsys, tmp_path, "--space", "whole", "--risk", "upper")["uniform"]
    assert isinstance(usual, dict)
    assert "safer_than" not in usual
    best = str(usual["strategy"])

    def outside(c: Configuration) -> tuple[str, ...]:
        return ("something new",) if spelled(c) == best else ()

    for module in ("planner.requests.uniform", "planner.requests.headline", "planner.clock.predict"):
        monkeypatch.setattr(import_module(module), "extrapolated", outside)
    monkeypatch.setattr(import_module("planner.clock.predict"), "FURTHER_OFF", 50.0)
    expected = searched(capsys, tmp_path, "--space", "whole")["uniform"]
    assert isinstance(expected, dict)
    assert expected["strategy"] == best
    safer = searched(capsys, tmp_path, "--space", "whole", "--risk", "upper")["uniform"]
    assert isinstance(safer, dict)
    assert safer["strategy"] != best
    assert safer["safer_than"]["strategy"] == best
    assert safer["step_time_s"] >= expected["step_time_s"]


def test_a_search_that_is_stopped_answers_with_the_most_promising_that_fits() -> None:
    """Whenever it is stopped: no slower than what it began with, within the limit, and mostly close to the best."""
    sample = Sample(graph("gpt", 4), A100)
    space = Space(4, 4, sample.layers, experts=False)
    (free,) = best_of(sample, space, None).best
    limit = round(0.9 * free.prediction.allocated_bytes)
    (best,) = best_of(sample, space, limit).best
    begun: list[Scored] = []
    steps: list[float] = []
    for looks in (1, 8, 16, 32, 64):
        left = iter(range(looks))
        found = best_of(sample, space, limit, stopped=partial(_none_left, left), first=begun.append)
        (met,) = found.best
        assert round(met.prediction.allocated_bytes) <= limit
        assert best.prediction.step_time_s <= met.prediction.step_time_s <= begun[-1].prediction.step_time_s
        steps.append(met.prediction.step_time_s)
    assert min(steps) <= 1.1 * best.prediction.step_time_s


@pytest.mark.parametrize("copies", [1, 2])
def test_passes_that_differ_in_what_runs_again_are_those_found_alone(copies: int) -> None:
    c = Configuration(dp=2, tp=2, micro_batch=1, micro_batches=4, copies=copies, sequence_parallel=True)
    workload = Sample(graph("gpt", 8), A100).workload(c)
    for again in ("full", "none", "selective", "products"):
        for share in (1.0, 0.25) if again == "full" else (1.0,):
            one = c.with_(dp=1, micro_batches=copies, recompute=again, recompute_blocks=share)
            alone = Passes(workload, one, A100, Links(workload.mesh, 1, A100))
            assert passes_of(workload, one, A100).units == alone.units


@pytest.mark.parametrize("frozen", ["matrices", "first"])
def test_the_fastest_is_that_of_all_configurations_where_most_weights_are_frozen(frozen: Frozen) -> None:
    job = Job("gpt", {"layers": 4, "hidden": 256, "heads": 4, "vocab": 1024, "seq": 128}, 4, 2, "a100-80", None)
    rows = rows_of([replace(job, frozen=frozen, share=share) for share in (None, 0.3, 0.02)])
    assert [(r["ratio"] <= 1 + 1e-9, r["bound"] <= 1 + 1e-9) for r in rows] == [(True, True)] * 3


def test_a_micro_batch_of_one_sample_is_bounded_by_one_sample() -> None:
    """Ranks of positions divide them behind the last block in one sample alone: there the vocabulary takes a quarter of
    the time per sample that it takes in several, while blocks take longer."""
    v100 = load_profile("v100")
    sizes = {"layers": 3, "hidden": 256, "heads": 8, "kv_heads": 2, "ffn": 512, "vocab": 32000, "seq": 2048, "batch": 8}
    sample = Sample(import_bytes(build("moe", sizes).SerializeToString(), name="m"), v100)
    space = Space(6, 8, sample.layers, "fp16", experts=True, contexts=sample.contexts)
    bounds = Bounds(sample, space, None)
    c = Configuration(dp=1, pp=3, cp=2, micro_batch=1, micro_batches=8, precision="fp16", gradient_bytes=2)
    large = bounds.passes(c.with_(micro_batch=8, micro_batches=1))
    assert large is not None
    together = bounds.together(large, c)
    for n in (1, 2, 4, 8):
        one = c.with_(micro_batch=n, micro_batches=8 // n)
        assert step_of(together.of(n), one) <= predict(sample.estimated(one), one, v100).step_time_s
    own = predict(sample.workload(c), c, v100)
    assert step_of(large, c) > own.step_time_s, "one sample is laid out as several are: nothing is tested here"
    (found,) = best_of(sample, space, round(own.allocated_bytes)).best  # with more room, others are faster
    assert found.prediction.step_time_s <= own.step_time_s
