"""Laws of what runs again, or waits in the host's memory, on each stage by itself."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import pytest

from planner.builder import build
from planner.clock import Configuration, held_by_rank, predict
from planner.clock.stages import chunks, chunks_of
from planner.clock.step import step_of
from planner.cost_models import load_profile
from planner.errors import UsageError
from planner.frontends import import_bytes
from planner.planning.schemes import in_words, parse_strategy, spelled
from planner.uniform import Sample, Scored, Space, refined
from planner.uniform.by_stage import blocks_of_chunks, fewest_by_stage, with_stage_layers

MACHINE = load_profile("h100")
SCHEDULES = ("pp=2", "pp=4", "pp=2,vpp=2", "pp=2,schedule=zb-v", "pp=4,schedule=zb-h1", "pp=2,schedule=gpipe")


@cache
def sample_of() -> Sample:
    """Of blocks that hold much beside what stands before and behind them."""
    sizes = {"layers": 8, "hidden": 1024, "heads": 8, "ffn": 2816, "vocab": 1024, "seq": 1024, "attention": "fused"}
    return Sample(import_bytes(build("llama", {**sizes, "batch": 32}).SerializeToString(), name="llama"), MACHINE)


def configuration(strategy: str, **more: Any) -> Configuration:
    devices = 4 if "pp=4" in strategy else 2
    return parse_strategy(f"megatron:zero=0,{strategy}", devices=devices, batch=32).with_(**more)


def parts_of(c: Configuration) -> tuple[tuple[int, ...], ...]:
    return chunks(sample_of().workload(c), c.pp * c.virtual_stages, c.stage_layers)


def held(c: Configuration) -> list[float]:
    workload, parts = sample_of().workload(c), parts_of(c)
    step = step_of(workload, c, MACHINE, parts)
    return [h.total for h in held_by_rank(workload, c, parts, step.pipeline.activation_bytes)]


@pytest.mark.parametrize("strategy", SCHEDULES)
@pytest.mark.parametrize("kind", ["recompute", "offload"])
def test_the_same_count_in_every_chunk_is_that_share_of_all_blocks(strategy: str, kind: str) -> None:
    c = configuration(strategy)
    each = 8 // (c.pp * c.virtual_stages)
    for count in {1, each // 2, each} - {0}:
        counts = (count,) * (c.pp * c.virtual_stages)
        if kind == "recompute" and count == each:
            continue  # the program runs whole blocks again itself, without what nothing reads
        if kind == "recompute":
            share = c.with_(recompute="full", recompute_blocks=count / each)
            own = c.with_(recompute="full", recompute_layers=counts)
        else:
            share, own = c.with_(offload=count / each), c.with_(offload_layers=counts)
        workload = sample_of().workload(c)
        expected, found = predict(workload, share, MACHINE), predict(workload, own, MACHINE)
        assert found.step_time_s == pytest.approx(expected.step_time_s, rel=1e-12)
        assert found.allocated_bytes == pytest.approx(expected.allocated_bytes, rel=1e-12)


@pytest.mark.parametrize("strategy", SCHEDULES)
def test_one_more_block_that_runs_again_changes_its_own_rank_alone(strategy: str) -> None:
    c = configuration(strategy)
    count = c.pp * c.virtual_stages
    plain = c.with_(recompute="full", recompute_layers=(0,) * count)
    assert predict(sample_of().workload(c), plain, MACHINE).step_time_s == pytest.approx(
        predict(sample_of().workload(c), c, MACHINE).step_time_s, rel=1e-12
    )
    for k in range(count):
        one = plain.with_(recompute_layers=tuple(int(i == k) for i in range(count)))
        rank = next(d for d in range(c.pp) if k in chunks_of(c, d))
        before, after = held(plain), held(one)
        rows = [step_of(sample_of().workload(c), x, MACHINE, parts_of(x)).rows for x in (plain, one)]
        for d in range(c.pp):
            spent = [sum(x.backward_s for x in row[d]) for row in rows]
            assert (spent[1] > spent[0]) == (d == rank)
        if c.order in ("1f1b", "gpipe"):  # where no time decides on the order of passes
            assert all(after[d] == before[d] for d in range(c.pp) if d != rank)


@pytest.mark.parametrize("strategy", ["pp=2", "pp=4", "pp=2,schedule=zb-v"])
@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.8])
def test_no_rank_runs_more_again_than_its_memory_asks_for(strategy: str, share: float) -> None:
    """Against all counts there are, of chunks that begin to fill with the one whose activations wait longest."""
    way = configuration(strategy, recompute="full")
    workload, parts = sample_of().workload(configuration(strategy)), parts_of(way)
    blocks = blocks_of_chunks(workload, parts)
    most, least = (max(held(way.with_(recompute_layers=n))) for n in ((0,) * len(blocks), tuple(blocks)))
    limit = round(least + share * (most - least))
    found = fewest_by_stage(workload, way, MACHINE, limit)
    assert found is not None
    assert found.recompute_layers is not None
    assert max(held(found)) <= limit
    shortest = min(
        predict(workload, c, MACHINE).step_time_s
        for counts in product(*(range(n + 1) for n in blocks))
        if max(held(c := way.with_(recompute_layers=counts))) <= limit
    )
    if strategy.endswith(("2", "4")):
        assert predict(workload, found, MACHINE).step_time_s == pytest.approx(shortest, rel=1e-9)
    for k, count in enumerate(found.recompute_layers):
        if count:
            fewer = tuple(n - (i == k) for i, n in enumerate(found.recompute_layers))
            assert max(held(way.with_(recompute_layers=fewer))) > limit


def test_nothing_fits_where_all_blocks_run_again_and_it_is_still_too_much() -> None:
    way = configuration("pp=2", recompute="full")
    assert fewest_by_stage(sample_of().workload(configuration("pp=2")), way, MACHINE, 1000) is None
    free = fewest_by_stage(sample_of().workload(configuration("pp=2")), way, MACHINE, None)
    assert free is not None
    assert (free.recompute, free.recompute_layers) == ("none", None)


def test_a_pipeline_under_a_limit_runs_again_where_micro_batches_wait() -> None:
    """The first rank of 1F1B holds four micro-batches, the last one: that one runs nothing again."""
    whole = configuration("pp=4", recompute="full")
    workload = sample_of().workload(whole)
    limit = round(0.3 * held(configuration("pp=4"))[0] + 0.7 * held(whole)[0])
    begun = Scored(whole, predict(workload, whole, MACHINE))
    found = refined(sample_of(), Space(4, 32, 8, experts=False), limit, begun, layouts=False)
    counts = found.configuration.recompute_layers
    assert counts is not None
    assert counts[0] > 0 == counts[-1]
    assert found.prediction.allocated_bytes <= limit
    shares = [whole.with_(recompute_blocks=n / 8) for n in range(9)]
    uniform = [p for c in shares if (p := predict(sample_of().workload(c), c, MACHINE)).allocated_bytes <= limit]
    assert found.prediction.step_time_s < min(p.step_time_s for p in uniform)
    assert "recomputation of " in in_words(found.configuration)
    assert "blocks by stage" in in_words(found.configuration)
    assert parse_strategy(spelled(found.configuration), devices=4, batch=32) == found.configuration


def test_a_chunk_that_gains_layers_runs_them_again() -> None:
    workload = sample_of().workload(configuration("pp=4"))
    c = configuration("pp=4", recompute="full", recompute_layers=(2, 1, 0, 0))
    assert with_stage_layers(workload, c, (1, 2, 2, 3)).recompute_layers == (1, 1, 0, 1)
    assert with_stage_layers(workload, c, (3, 2, 2, 1)).recompute_layers == (3, 1, 0, 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"recompute": "full", "recompute_layers": (1,)}, "recompute_layers=1: expected 2 counts"),
        ({"recompute": "full", "recompute_layers": (1, -1)}, "expected 2 counts"),
        ({"recompute_layers": (1, 1)}, "expected recompute=full without recompute_blocks"),
        ({"recompute": "full", "recompute_blocks": 0.5, "recompute_layers": (1, 1)}, "without recompute_blocks"),
        ({"offload": 0.5, "offload_layers": (1, 1)}, "offload_layers=1-1: expected no offload beside it"),
        ({"recompute": "full", "recompute_layers": (5, 0)}, "expected at most the 4 blocks of a chunk, found 5"),
        ({"offload_layers": (0, 5)}, "offload_layers: expected at most the 4 blocks of a chunk, found 5"),
    ],
)
def test_counts_are_those_of_the_chunks(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        predict(sample_of().workload(configuration("pp=2")), configuration("pp=2", **changes), MACHINE)


@pytest.mark.parametrize("strategy", ["pp=2,vpp=2", "pp=2,schedule=zb-v"])
def test_what_waits_in_the_host_is_dealt_to_all_chunks_of_a_rank(strategy: str) -> None:
    """Each chunk copies beside its own passes: all of one and nothing of another would wait for the copies."""
    way = configuration(strategy, offload=1.0)
    workload = sample_of().workload(configuration(strategy))
    plain, all_waiting = max(held(configuration(strategy))), max(held(way))
    met = 0
    for share in (0.4, 0.6, 0.8):
        found = fewest_by_stage(workload, way, MACHINE, round(plain + share * (all_waiting - plain)))
        if found is None or found.offload_layers is None:
            continue
        met += 1
        for d in range(way.pp):
            counts = [found.offload_layers[k] for k in sorted(chunks_of(way, d))]
            assert max(counts) - min(counts) <= 1
            assert counts == sorted(counts, reverse=True)
    assert met
