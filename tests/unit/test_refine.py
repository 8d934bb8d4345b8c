"""Laws of the changes to uniform configurations: where stages begin, what runs again, groups of ZeRO."""

from __future__ import annotations

from functools import cache
from itertools import combinations, pairwise
from typing import Any

import pytest

from planner.builder import build
from planner.clock import Configuration, predict
from planner.cost_models import load_profile
from planner.cost_models.pipeline import stage_numbers
from planner.emit import unsupported
from planner.emit.uniform import Model
from planner.frontends import import_bytes
from planner.planning.schemes import in_words, parse_strategy, spelled
from planner.uniform import Sample, Scored, Space, best_of, refined
from planner.uniform.refine import least_share

MACHINE = load_profile("h100")
# A vocabulary that weighs as much as several layers.
SIZES = {"layers": 8, "hidden": 1024, "heads": 8, "kv_heads": 4, "ffn": 2816, "vocab": 64000, "seq": 1024}


@cache
def sample_of(layers: int = 8) -> Sample:
    sizes = {**SIZES, "layers": layers, "attention": "fused", "batch": 32}
    return Sample(import_bytes(build("llama", sizes).SerializeToString(), name="llama"), MACHINE)


def space(devices: int, batch: int = 32, **more: Any) -> Space:
    return Space(devices, batch, sample_of().layers, experts=False, **more)


def scored(strategy: str, devices: int, layers: int = 8, batch: int = 32) -> Scored:
    c = parse_strategy(f"megatron:{strategy}", devices=devices, batch=batch)
    return Scored(c, predict(sample_of(layers).workload(c), c, MACHINE))


@pytest.mark.parametrize(
    ("strategy", "devices"), [("pp=2", 2), ("pp=4", 4), ("pp=2,vpp=2", 2), ("pp=2,schedule=zb-v", 4)]
)
def test_no_change_makes_a_step_longer_or_breaks_the_limit(strategy: str, devices: int) -> None:
    begun = scored(strategy, devices)
    for share in (1.0, 0.9):
        limit = round(begun.prediction.allocated_bytes * share)
        found = refined(sample_of(), space(devices), limit, begun)
        assert found.prediction.step_time_s <= begun.prediction.step_time_s
        assert found is begun or round(found.prediction.allocated_bytes) <= limit
        c = found.configuration
        assert found.prediction == predict(sample_of().workload(c), c, MACHINE), "simulated as it is"
        assert sum(c.stage_layers or (8,)) == 8
        assert parse_strategy(spelled(c), devices=devices, batch=32) == c.with_(precision="bf16")


@pytest.mark.parametrize("strategy", ["pp=2,vpp=2", "pp=2,schedule=zb-v", "pp=2,vpp=4"])
def test_no_layer_that_moves_between_chunks_of_a_rank_makes_what_is_found_faster(strategy: str) -> None:
    sample = sample_of(12)
    found = refined(sample, Space(2, 32, 12, experts=False), None, scored(strategy, 2, layers=12))
    c = found.configuration
    sizes = c.stage_layers or (12 // (2 * c.virtual_stages),) * (2 * c.virtual_stages)
    tried = 0
    for rank in stage_numbers(c.order, 2, c.virtual_stages):
        for a, b in [*pairwise(rank), *((b, a) for a, b in pairwise(rank))]:
            if sizes[a] > 1:
                moved = tuple(n - (k == a) + (k == b) for k, n in enumerate(sizes))
                other = predict(sample.workload(c), c.with_(stage_layers=moved), MACHINE)
                assert other.step_time_s >= found.prediction.step_time_s * (1 - 1e-6)
                tried += 1
    assert tried


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_stages_begin_where_the_step_is_shortest_of_all_cuts(stages: int) -> None:
    begun = scored(f"pp={stages}", stages, layers=9 if stages == 3 else 8)
    layers = 9 if stages == 3 else 8
    sample = sample_of(layers)
    steps = {}
    for ends in combinations(range(1, layers), stages - 1):
        sizes = tuple(b - a for a, b in zip((0, *ends), (*ends, layers), strict=True))
        c = begun.configuration.with_(stage_layers=sizes)
        steps[sizes] = predict(sample.workload(c), c, MACHINE).step_time_s
    found = refined(sample, Space(stages, 32, layers, experts=False), None, begun)
    assert found.prediction.step_time_s == min(steps.values())
    assert found.prediction.step_time_s < begun.prediction.step_time_s, "an even share leaves the last stage slowest"


def test_no_more_runs_again_than_memory_asks_for() -> None:
    begun = scored("dp=2,zero=0,micro_batch=8,recompute=full", 2)
    plain = scored("dp=2,zero=0,micro_batch=8", 2)
    limit = round((begun.prediction.allocated_bytes + plain.prediction.allocated_bytes) / 2)
    found = refined(sample_of(), space(2), limit, begun, layouts=False)
    assert found.prediction.step_time_s < begun.prediction.step_time_s
    c = found.configuration
    if c.recompute == "full":
        one_less = c.with_(recompute_blocks=c.recompute_blocks - 1 / 8)
        assert predict(sample_of().workload(one_less), one_less, MACHINE).allocated_bytes > limit
    prescribed = refined(sample_of(), space(2, recompute="blocks"), limit, begun, layouts=False)
    assert prescribed.configuration.recompute_blocks == 1.0


@pytest.mark.parametrize(("needed", "found"), [(0.3, 3), (1.0, 8), (0.01, 1), (1.1, None)])
def test_the_least_fraction_of_layers_that_fits(needed: float, found: int | None) -> None:
    assert least_share(lambda f: f >= needed, 8, 1.0) == (None if found is None else found / 8)


def test_offloading_is_a_change_only_where_the_space_has_it() -> None:
    begun = scored("dp=2,zero=0,micro_batch=8,recompute=full", 2)
    limit = round(begun.prediction.allocated_bytes * 1.05)
    without = refined(sample_of(), space(2), limit, begun, layouts=False)
    assert without.configuration.offload == 0
    with_it = refined(sample_of(), space(2, offload=True), limit, begun, layouts=False)
    assert with_it.prediction.step_time_s <= without.prediction.step_time_s


def test_zero_divides_in_groups_where_that_is_faster() -> None:
    """Between servers scattering in each of many passes is slow, and within one there is memory to spare."""
    begun = scored("dp=16,zero=2,micro_batch=1", 16, batch=256)
    found = refined(sample_of(), space(16, batch=256), None, begun)
    assert found.configuration.shard_ranks is not None
    assert found.prediction.step_time_s < begun.prediction.step_time_s
    assert f"in groups of {found.configuration.shard_ranks} ranks" in in_words(found.configuration)


def test_frameworks_without_words_for_a_change_do_not_get_it() -> None:
    model = Model.of(sample_of().graph)
    grouped = Configuration(dp=16, zero=1, shard_ranks=8, micro_batches=2)
    assert unsupported("deepspeed", grouped, model)
    assert not unsupported("megatron", grouped, model)
    for target in ("megatron", "torch", "mindspore"):
        assert "host" in unsupported(target, Configuration(dp=16, offload=0.5), model)
    begun = scored("dp=16,zero=3,micro_batch=2", 16)
    only = space(16, unsupported=lambda c: "" if c == begun.configuration else "anything else")
    assert refined(sample_of(), only, None, begun) is begun


def test_the_words_say_where_stages_begin() -> None:
    c = parse_strategy("megatron:pp=4,stage_layers=3-2-2-1", devices=4, batch=32)
    assert "layers by stage 3-2-2-1" in in_words(c)


def test_the_best_of_the_space_are_the_beginning() -> None:
    found = best_of(sample_of(), space(4), None, 3)
    changed = [refined(sample_of(), space(4), None, s) for s in found.best]
    assert min(s.prediction.step_time_s for s in changed) <= found.best[0].prediction.step_time_s
