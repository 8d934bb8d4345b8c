"""Pipelines over several kinds of devices: each rank by its own machine, layers cut exactly, nothing faster missed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import combinations, pairwise

import pytest

from planner.builder import build
from planner.clock import Configuration, predict, predict_mixed
from planner.clock.stages import chunks
from planner.clock.step import step_of
from planner.cost_models import load_profile
from planner.errors import UsageError
from planner.frontends import import_bytes
from planner.ir import Graph
from planner.planning.schemes import parse_strategy
from planner.uniform import Sample, Space, configurations
from planner.uniform.mixed import Cluster, Kind, alone, assumed, best_mixed, changed, even_layers, layers_cut
from planner.uniform.mixed.bound import Alone
from planner.uniform.mixed.cluster import stands
from planner.uniform.mixed.cut import waiting
from planner.uniform.space import levels, schedules

H100, A100, V100 = (load_profile(n) for n in ("h100", "a100-80", "v100"))
AGAIN = replace(A100, name="a100-again")  # another object, which says the same


@lru_cache
def graph(batch: int = 32, layers: int = 8) -> Graph:
    sizes = {"layers": layers, "hidden": 2048, "heads": 16, "vocab": 8192, "seq": 1024, "attention": "fused"}
    return import_bytes(build("gpt", {**sizes, "batch": batch}).SerializeToString(), name="m")


@lru_cache
def sample() -> Sample:
    return Sample(graph(), A100)


def cluster(first: int = 8, second: int = 8, limit: int | None = None) -> Cluster:
    return Cluster((Kind.of(H100, first, limit), Kind.of(A100, second, limit)))


def configuration(text: str, devices: int = 32) -> Configuration:
    return parse_strategy(text, devices=devices, batch=32, precision="bf16", optimizer="adam")


RUNS = [
    "megatron:pp=4,micro_batch=1",
    "megatron:pp=4,tp=2,micro_batch=1,recompute=full,stage_layers=1-2-2-3",
    "megatron:pp=2,micro_batch=1,zero=3,tp=2",
    "megatron:pp=4,micro_batch=1,zero=2,schedule=zb-h1",
    "megatron:pp=2,vpp=2,micro_batch=1,cp=2",
    "megatron:pp=4,schedule=zb-v,micro_batch=1",
]


@pytest.mark.parametrize("text", RUNS)
def test_kinds_that_are_alike_step_as_one_kind(text: str) -> None:
    """Law: two names for one machine make no difference, where the stages of each fill whole servers."""
    c = configuration(text)
    workload = sample().workload(c)
    one = predict(workload, c, A100)
    two = predict_mixed(workload, c, [A100] * (c.pp // 2) + [AGAIN] * (c.pp // 2))
    assert two.step_time_s == pytest.approx(one.step_time_s, rel=1e-12)
    assert max(h.total for h in two.held) == one.allocated_bytes
    assert sum(two.step.breakdown.values()) == pytest.approx(two.step_time_s)


@pytest.mark.parametrize("text", RUNS)
@pytest.mark.parametrize("fast_first", [True, False])
def test_each_rank_takes_what_it_takes_among_its_own_kind(text: str, fast_first: bool) -> None:
    """Law: passes, exchange and update of a rank are those of its machine, but for the sum of tied tables at both ends.
    So the step lies between those of pipelines all of the faster and all of the slower kind, the slower with
    the slower host."""
    c = configuration(text)
    workload = sample().workload(c)
    parts = chunks(workload, c.pp * c.virtual_stages, c.stage_layers)
    half = c.pp // 2
    machines = [*[H100] * half, *[A100] * half] if fast_first else [*[A100] * half, *[H100] * half]
    mixed = step_of(workload, c, machines, parts)
    own = {id(p): step_of(workload, c, p, parts) for p in (H100, A100)}
    for d, profile in enumerate(machines):
        assert list(mixed.rows[d]) == list(own[id(profile)].rows[d])
        alone = own[id(profile)].once_s[d]
        assert mixed.once_s[d] == pytest.approx(alone) if 0 < d < c.pp - 1 else mixed.once_s[d] >= alone * (1 - 1e-9)
    each = ("handover_s", "step_overhead_s")  # of which the slower host's counts between kinds, and once a step
    slowest = replace(A100.host, **{n: max(getattr(p.host, n) for p in (H100, A100)) for n in each})
    assert own[id(H100)].total_s < mixed.total_s
    assert mixed.total_s < step_of(workload, c, replace(A100, host=slowest), parts).total_s


def test_two_kinds_exchange_at_the_slower_end() -> None:
    """A hand-over between kinds crosses the network of the slower one, even where both stages would share a server."""
    c = configuration("megatron:pp=4,micro_batch=1", devices=16)
    workload = sample().workload(c)
    parts = chunks(workload, 4)
    mixed = step_of(workload, c, [H100, H100, A100, A100], parts).sent_s
    slow = replace(A100, name="slow", network=replace(A100.network, bandwidth_bytes_per_s=1e9))
    slower = step_of(workload, c, [H100, H100, slow, slow], parts).sent_s
    assert slower[1] > mixed[1] >= max(mixed[0], mixed[2])
    assert (slower[0], slower[2]) == (mixed[0], pytest.approx(mixed[2]))


def test_a_machine_is_needed_for_each_rank() -> None:
    c = configuration("megatron:pp=4,micro_batch=1")
    with pytest.raises(ValueError, match="one for each of 4 pipeline ranks, found 2"):
        predict_mixed(sample().workload(c), c, [H100, A100])
    with pytest.raises(UsageError, match="has no device"):
        predict_mixed(sample().workload(c), c, [H100, H100, A100, load_profile("alpha-beta")])


# Where layers are cut


def every_cut(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    for inner in combinations(range(1, layers), stages - 1):
        ends = [0, *inner, layers]
        yield tuple(b - a for a, b in pairwise(ends))


@pytest.mark.parametrize("text", [*RUNS[:1], *RUNS[2:4], "megatron:pp=2,micro_batch=2,recompute=selective"])
@pytest.mark.parametrize("share", [None, 0.97, 0.8])
def test_layers_are_cut_as_the_best_of_all_cuts_that_fit(text: str, share: float | None) -> None:
    """Law: of all cuts whose every stage fits its devices by the clock, that whose passes, by the clock, come to the
    least of t_1 + t_2 + … + (passes - 1) max(t)."""
    c = configuration(text).with_(stage_layers=None)
    workload = sample().workload(c)

    def simulated(cut: tuple[int, ...], stages: tuple[Kind, ...]) -> tuple[float, bool]:
        found = predict_mixed(workload, c.with_(stage_layers=cut), [k.profile for k in stages])
        times = [sum(t.forward_s + t.backward_s for t in row) for row in found.step.rows]
        return sum(times) + (c.passes - 1) * max(times), found.fits([k.memory_limit for k in stages])

    free = stands((Kind.of(H100, 16), Kind.of(A100, 16)), 32 // c.pp)
    unlimited = layers_cut(workload, c, free)
    assert unlimited is not None
    limit = None
    if share is not None:
        held = predict_mixed(workload, c.with_(stage_layers=unlimited), [k.profile for k in free]).held
        limit = round(share * max(h.total for h in held))
    stages = stands((Kind.of(H100, 16, limit), Kind.of(A100, 16)), 32 // c.pp)
    found = layers_cut(workload, c, stages)
    fitting = [cost for cut in every_cut(8, c.pp) for cost, fits in [simulated(cut, stages)] if fits]
    if found is None:
        assert not fitting
        return
    cost, fits = simulated(found, stages)
    assert fits
    assert cost == pytest.approx(min(fitting), rel=1e-12)


@pytest.mark.parametrize("order", ["1f1b", "zb-h1"])
def test_micro_batches_that_wait_are_those_of_the_schedule(order: str) -> None:
    assert waiting("1f1b", 4, 16) == (4, 3, 2, 1)
    c = configuration(f"megatron:pp=4,micro_batch=1,schedule={order}")
    workload = sample().workload(c)
    step = predict_mixed(workload, c, [H100, H100, A100, A100]).step
    each = [row[0].activation_bytes for row in step.rows]
    found = [n * size for n, size in zip(waiting(order, 4, c.passes), each, strict=True)]
    assert found == pytest.approx(list(step.pipeline.activation_bytes))


# The search


def every(space: Space, c: Cluster) -> Iterator[tuple[Configuration, tuple[Kind, ...]]]:
    for one in configurations(space, A100):
        if one.pp > 1 and c.most_per_stage % (one.devices // one.pp) == 0:
            for scheduled in (s for s in schedules(space, one) if s.virtual_stages == 1):
                for level in levels(space, scheduled):
                    for order in c.orders():
                        yield level, stands(order, one.devices // one.pp)


@pytest.mark.parametrize("limit", [None, 9 * 2**30])
def test_the_fastest_is_that_of_all_configurations_and_orders(limit: int | None) -> None:
    """Law: what the bounds leave out is no faster, each configuration laid out by itself, its layers cut."""
    own = Sample(graph(8, 4), A100)
    space, devices = Space(4, 8, own.layers, experts=False), cluster(2, 2, limit)
    found = best_mixed(own, space, devices)
    least = float("inf")
    for c, stages in every(space, devices):
        workload = own.workload(c)
        layers = layers_cut(workload, c, stages)
        if layers is None:
            continue
        simulated = predict_mixed(workload, c.with_(stage_layers=layers), [k.profile for k in stages])
        assert simulated.fits([k.memory_limit for k in stages])
        least = min(least, simulated.step_time_s)
        assert found.bound_s <= simulated.step_time_s
    assert found.best[0].step_time_s == pytest.approx(least, rel=1e-12)


def test_a_bound_is_never_above_the_step_whatever_the_cut() -> None:
    own = Sample(graph(8, 4), A100)
    space, devices = Space(8, 8, own.layers, experts=False), cluster(4, 4, 10 * 2**30)
    tried = 0
    for c, stages in list(every(space, devices))[::23]:
        one = c.with_(dp=c.ep, pp=1, micro_batches=1, zero=0, schedule="1f1b", recompute="none", recompute_blocks=1.0)
        bound = Alone(own.estimated(one), one, devices, c.micro_batch)
        least = max(bound.step(c, stages), bound.whole_layers(c, stages)) if bound.may_fit(c, stages) else float("inf")
        for cut in every_cut(own.layers, c.pp):
            simulated = predict_mixed(own.workload(c), c.with_(stage_layers=cut), [k.profile for k in stages])
            if simulated.fits([k.memory_limit for k in stages]):
                assert simulated.step_time_s >= least * 0.99
                tried += 1
    assert tried > 100


def test_faster_devices_hold_more_layers_and_the_pipeline_beats_every_homogeneous_assumption() -> None:
    """Eight H100 and eight A100: faster than either kind alone, than all taken as A100, and than even layers."""
    own = Sample(graph(512, 24), A100)
    devices = cluster()
    space = Space(16, 512, own.layers, experts=False)
    best = changed(own, best_mixed(own, space, devices, 2).best[0])
    fast = [n for n, k in zip(best.layers, best.stages, strict=True) if k.profile is H100]
    slow = [n for n, k in zip(best.layers, best.stages, strict=True) if k.profile is A100]
    assert min(fast) > max(slow)
    assert sum(best.layers) == 24
    apart = [alone(Sample(graph(512, 24), k.profile), space, k).best for k in devices.kinds]
    taken = assumed(own, space, devices).best
    even = even_layers(own, best)
    assert taken is not None
    assert even is not None
    assert best.step_time_s < taken.prediction.step_time_s
    assert best.step_time_s < even[0]
    assert all(a is not None and best.step_time_s < a.prediction.step_time_s for a in apart)


def test_each_stage_is_weighed_against_its_own_memory() -> None:
    """V100 of 16 GB beside H100 of 80: no stage on a V100 holds more than it has, though an H100 may."""
    own = Sample(graph(64, 24), V100)
    kinds = Kind.of(H100, 4), Kind.of(V100, 4)
    found = best_mixed(own, Space(8, 64, own.layers, "fp16", experts=False), Cluster(kinds), 3)
    for m in found.best:
        held = [(k.profile.name, h.peak) for k, h in zip(m.stages, m.prediction.held, strict=True)]
        assert all(size <= kinds[name == "v100"].memory_limit for name, size in held)
    assert any(max(h.peak for h in m.prediction.held) > kinds[1].memory_limit for m in found.best)
