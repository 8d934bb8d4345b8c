"""Laws of the bounds over families of uniform configurations: whichever the cut, and whatever runs again."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import combinations
from math import floor, inf
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.builder import build
from planner.cli.main import main
from planner.clock import Configuration, Prediction, predict
from planner.cost_models import HardwareProfile, load_profile
from planner.cost_models.pipeline import GradientBucket, gradient_sync, zero3_forward
from planner.errors import InputError, UsageError
from planner.frontends import import_bytes
from planner.planning.schemes import parse_strategy, spelled
from planner.trace import Workload
from planner.uniform import Sample, Space, best_of, configurations, prove, refined
from planner.uniform.cut_program import CutProgram, _rounded
from planner.uniform.cuts import QUICK, THOROUGH, Effort, Paths, best_cut
from planner.uniform.families import dealt, held_evenly, least_once, least_seconds
from planner.uniform.inner import LEAST_CHUNK, Inner
from planner.uniform.load import Load, least_handover, load_of
from planner.uniform.loads import Loads
from planner.uniform.once import ByRank, added_share, not_hidden, once_by_rank, tied_seconds
from planner.uniform.space import groups, levels, schedules

GPT2 = Path(__file__).parents[2] / "sample_graphs" / "gpt2_small.onnx"
MACHINES = {name: load_profile(name) for name in ("h100", "ascend-910b")}
SIZES = {
    "gpt": {"layers": 8, "hidden": 1024, "heads": 8, "vocab": 32000, "seq": 512, "attention": "fused"},
    "moe": {"layers": 6, "hidden": 512, "heads": 8, "kv_heads": 4, "ffn": 1024, "vocab": 8192, "seq": 256},
    "vit": {"layers": 4, "hidden": 512, "heads": 8},
    "resnet": {"image": 32},
}
BATCH = 16


@cache
def sample_of(architecture: str, machine: str) -> Sample:
    model = build(architecture, {**SIZES[architecture], "batch": BATCH})
    return Sample(import_bytes(model.SerializeToString(), name=architecture), MACHINES[machine])


def space_of(sample: Sample, devices: int, *, offload: bool = False) -> Space:
    copies = (1, 2) if sample.profile.name.startswith("ascend") else (1,)
    return Space(devices, BATCH, sample.layers, experts=sample.has_experts, copies=copies, offload=offload)


def families(space: Space, sample: Sample) -> Iterator[Configuration]:
    for c in configurations(space, sample.profile):
        for s in schedules(space, c):
            if s.recompute_blocks in (0.5, 1.0) and s.offload in (0.0, 0.5):
                for level in levels(space, s):
                    yield level
                    yield from groups(space, level)


def cuts(layers: int, chunks: int) -> Iterator[tuple[int, ...]]:
    """All that leave every chunk its least share."""
    least = max(1, floor(LEAST_CHUNK * layers / chunks))
    for ends in combinations(range(1, layers), chunks - 1):
        cut = tuple(b - a for a, b in zip((0, *ends), (*ends, layers), strict=True))
        if min(cut) >= least:
            yield cut


def member(c: Configuration, layers: int, dice: random.Random) -> Configuration:
    if c.pp > 1:
        every = [*cuts(layers, c.pp * c.virtual_stages)]
        c = c.with_(stage_layers=dice.choice(every)) if every else c
    by_stage = [dice.randint(0, n) for n in c.stage_layers or ()] if dice.random() < 0.5 else []
    if c.recompute == "full" and c.recompute_blocks < 1:
        if any(by_stage):
            return c.with_(recompute_blocks=1.0, recompute_layers=tuple(by_stage))
        c = c.with_(recompute_blocks=dice.randrange(1, layers) / layers)
    if c.offload:
        if any(by_stage):
            return c.with_(offload=0.0, offload_layers=tuple(by_stage))
        c = c.with_(offload=dice.randrange(1, layers + 1) / layers)
    return c


def simulated(sample: Sample, c: Configuration) -> Prediction | None:
    try:
        return predict(sample.workload(c), c, sample.profile)
    except (UsageError, InputError):
        return None


@pytest.mark.parametrize(
    ("architecture", "machine", "devices"),
    [("gpt", "h100", 8), ("moe", "ascend-910b", 4), ("vit", "h100", 4), ("resnet", "h100", 4)],
)
def test_no_member_is_faster_than_the_bound_of_its_family(architecture: str, machine: str, devices: int) -> None:
    """With and without a limit of memory that the member itself just keeps."""
    sample, dice = sample_of(architecture, machine), random.Random(0)
    every: dict[object, list[Configuration]] = defaultdict(list)  # of one layout, which takes a while to find
    for c in families(space_of(sample, devices, offload=machine == "h100"), sample):
        if c.context != "ring" and architecture in ("vit", "resnet"):
            continue  # no attention whose positions could be divided
        every[
            c.dp, c.tp, c.cp, c.context, c.ep, c.sequence_parallel, c.micro_batch, c.zero > 0, c.recompute == "full"
        ].append(c)
    tried = bound_by_memory = 0
    for c in (c for of in dice.sample([*every.values()], 16) for c in dice.sample(of, min(len(of), 12))):
        m = member(c, sample.layers, dice)
        p = simulated(sample, m)
        if p is None:
            continue
        load = load_of(sample.workload(m), c, sample.profile)
        least = [least_seconds(load, c, sample.profile, limit, float("inf")) for limit in (None, p.allocated_bytes)]
        assert least[0] <= least[1] <= p.step_time_s * (1 + 1e-9), (spelled(m), least, p.step_time_s)
        if c.pp > 1:
            cut = best_cut(load, c, p.allocated_bytes, float("inf"))
            assert cut is not None
            once = least_once(load, c, sample.profile)
            assert cut.seconds + once <= p.step_time_s * (1 + 1e-9), spelled(m)
            assert sum(cut.layers) == sample.layers
            # With whole layers, of what is hardly faster than the member, and with what stages hand over.
            handed = least_handover(sample.workload(m), c, sample.profile)
            closer = best_cut(load, c, p.allocated_bytes, p.step_time_s * (1 + 1e-6) - once, handed)
            assert closer is not None
            assert closer.seconds + once <= p.step_time_s * (1 + 1e-6), spelled(m)
            assert all(seconds > 0 for seconds in handed)
            whole = best_cut(load, c, p.allocated_bytes, p.step_time_s * (1 + 1e-6) - once, handed, whole=QUICK)
            assert whole is not None
            assert closer.seconds * (1 - 2e-5) <= whole.seconds
            assert whole.seconds + once <= p.step_time_s * (1 + 1e-6), spelled(m)
            assert all(sum(layers) == sample.layers for layers in (whole.layers, *whole.others) if layers)
            # With what each rank exchanges and updates once a step, which depends on its layers, too.
            by_rank = once_of_ranks(load, sample.workload(m), c, sample.profile)
            every = best_cut(load, c, p.allocated_bytes, p.step_time_s * (1 + 1e-6), handed, by_rank, whole=QUICK)
            assert every is not None
            assert (whole.seconds + once) * (1 - 2e-5) <= every.seconds <= p.step_time_s * (1 + 1e-6), spelled(m)
        tried += 1
        bound_by_memory += least[1] > least[0] * (1 + 1e-6)
    assert tried > 40
    assert bound_by_memory or architecture in ("vit", "resnet")


def once_of_ranks(load: Load, workload: Workload, c: Configuration, profile: HardwareProfile) -> ByRank:
    once = least_once(load, c, profile)
    return once_by_rank(load.once, load.inner, load.layers, once, tied_seconds(workload, c, profile), c, profile)


@pytest.mark.parametrize(("architecture", "machine", "step"), [("gpt", "h100", 13), ("moe", "ascend-910b", 97)])
def test_what_bounds_all_groups_bounds_each(architecture: str, machine: str, step: int) -> None:
    """With and without a limit of memory, at all levels of ZeRO, with and without accumulation."""
    sample = sample_of(architecture, machine)
    loads, space = Loads(sample, sample.profile), space_of(sample, 8)
    compared = lower = 0
    for c in [c for c in families(space, sample) if c.shard_ranks is None and c.zero][::step]:
        any_group, over_all = loads.in_groups(c), loads.of(c, exact=False)
        if any_group is None or over_all is None:
            assert any_group is None
            continue
        for limit in (None, 2 * held_evenly(over_all, c)):
            least = least_seconds(any_group, c, sample.profile, limit, inf)
            for group in groups(space, c):
                load = loads.of(group, exact=False)
                assert load is not None
                own = least_seconds(load, group, sample.profile, limit, inf)
                assert least <= own * (1 + 1e-9), spelled(group)
                compared += 1
                lower += own < least_seconds(over_all, c, sample.profile, limit, inf)
    assert compared > 40
    assert lower > 0


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
@pytest.mark.parametrize("micro_batch", [1, 4])
@pytest.mark.parametrize("effort", [QUICK, THOROUGH])
def test_no_cut_into_whole_layers_is_faster_than_the_bound(schedule: str, micro_batch: int, effort: Effort) -> None:
    """Of all there are, where the logits weigh as much as several layers, so that the best cut is a very uneven one."""
    profile = MACHINES["h100"]
    sizes = {"layers": 9, "hidden": 1024, "heads": 16, "vocab": 128_000, "seq": 512, "attention": "fused", "batch": 32}
    sample = Sample(import_bytes(build("gpt", sizes).SerializeToString(), name="gpt"), profile)
    c = parse_strategy(f"megatron:dp=2,pp=4,micro_batch={micro_batch},schedule={schedule}", devices=8, batch=32)
    load = load_of(sample.workload(c), c, profile)
    every = [predict(sample.workload(c), c.with_(stage_layers=cut), profile) for cut in cuts(9, 4)]
    assert len(every) == 56
    once, handed = least_once(load, c, profile), least_handover(sample.workload(c), c, profile)
    for limit in (None, round(sorted(p.allocated_bytes for p in every)[5])):
        best = min(p.step_time_s for p in every if limit is None or round(p.allocated_bytes) <= limit)
        for enough in (inf, best * 1.001 - once):
            parts = best_cut(load, c, limit, enough, handed)
            whole = best_cut(load, c, limit, enough, handed, whole=effort)
            assert parts is not None
            assert whole is not None
            assert parts.seconds * (1 - 2e-5) <= whole.seconds
            assert whole.seconds + once <= best * (1 + 1e-9)
            assert whole.whole


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "zb-v"])
@pytest.mark.parametrize("layout", ["dp=8,micro_batch=8,zero=1", "dp=8,micro_batch=8,zero=2", "dp=8,micro_batch=1"])
def test_the_bound_of_a_cut_is_near_the_best_one(schedule: str, layout: str) -> None:
    """Of GPT-2 as an exporter writes it, whose embedding is its output layer too: what ranks exchange and update once a
    step depends on their layers as what they compute does, and the best cut is one of both."""
    profile = MACHINES["h100"]
    sample = Sample(import_bytes(GPT2.read_bytes(), name="gpt2", batch=64), profile)
    c = parse_strategy(f"megatron:pp=2,{layout},schedule={schedule},gradient_bytes=2", devices=16, batch=64)
    workload = sample.workload(c)
    load, handed = load_of(workload, c, profile), least_handover(workload, c, profile)
    best = min(
        predict(workload, c.with_(stage_layers=cut), profile).step_time_s
        for cut in cuts(sample.layers, c.pp * c.virtual_stages)
    )
    found = best_cut(load, c, None, inf, handed, once_of_ranks(load, workload, c, profile), whole=QUICK)
    assert found is not None
    assert best * 0.99 <= found.seconds <= best * (1 + 1e-9)


@pytest.mark.parametrize(
    "layout",
    [
        "dp=8,pp=2,micro_batch=1,zero=3,recompute=full",
        "tp=2,cp=2,pp=4,vpp=3,micro_batch=4,zero=3,sp=false,recompute=selective",
        "tp=2,cp=4,pp=2,micro_batch=4,zero=2,sp=false,schedule=zb-v,frozen=true",
        "dp=8,pp=2,micro_batch=1,zero=2,schedule=zb-h1",
    ],
)
def test_a_unit_may_hide_what_another_one_exchanges(layout: str) -> None:
    """What is gathered and scattered in every pass, for one unit, runs beside another one's computing: a chunk takes as
    long as either in sum, not as the longer of both unit by unit.  Where weights are frozen nothing is scattered."""
    profile = MACHINES["ascend-910b"]
    sample = Sample(import_bytes(GPT2.read_bytes(), name="gpt2", batch=64), profile)
    c = parse_strategy(f"megatron:{layout},gradient_bytes=2", devices=16, batch=64)
    workload = sample.workload(c)
    load, handed = load_of(workload, c, profile), least_handover(workload, c, profile)
    every = list(cuts(sample.layers, c.pp * c.virtual_stages))
    best = min(
        predict(workload, c.with_(stage_layers=cut), profile).step_time_s
        for cut in random.Random(0).sample(every, min(60, len(every)))
    )
    found = best_cut(load, c, None, inf, handed, once_of_ranks(load, workload, c, profile), whole=QUICK)
    assert found is not None
    assert least_seconds(load, c, profile, None, inf) <= best * (1 + 1e-9)
    assert best * 0.9 <= found.seconds <= best * (1 + 1e-9)


def test_gradients_are_summed_beside_what_runs_again_too() -> None:
    """Where blocks run again because memory asks for it, the backward pass hides more of the sums than one that is as
    short as can be."""
    profile = load_profile("l4")
    sizes = {"layers": 16, "hidden": 768, "heads": 12, "batch": 256}
    sample = Sample(import_bytes(build("vit", sizes).SerializeToString(), name="vit"), profile)
    layout = "dp=64,pp=2,micro_batch=4,recompute=full,recompute_blocks=0.5,zero=0"
    c = parse_strategy(f"megatron:{layout}", devices=128, batch=256)
    workload = sample.workload(c)
    every = c.with_(stage_layers=(8, 8), recompute_layers=(8, 8), recompute_blocks=1.0)
    again = predict(workload, every, profile)
    load, handed = load_of(workload, c, profile), least_handover(workload, c, profile)
    once = once_of_ranks(load, workload, c, profile)
    found = best_cut(load, c, again.allocated_bytes, inf, handed, once, whole=QUICK)
    assert found is not None
    assert found.seconds <= again.step_time_s * (1 + 1e-9)


@pytest.mark.parametrize("seconds", [60e-6, 200e-6, 600e-6])
def test_a_unit_that_begins_a_chunk_hides_what_its_first_layer_exchanges(seconds: float) -> None:
    """Before the layer's sum, or gathering, nothing else runs; the unit runs beside it, at the speed that is left."""
    profile, layer, sent = MACHINES["h100"], 400e-6, 300e-6
    slowed = profile.framework.contention
    inner = Inner(2, 2, (seconds, seconds), (seconds, 0.0), (seconds, seconds))
    sums, gathers = not_hidden((sent, sent), [inner], profile)
    added = added_share(profile) * 3 * sent
    buckets = [GradientBucket(k, 1.0) for k in range(1, 5)]
    back = gradient_sync([layer] * 3 + [seconds], buckets, [sent] * 3 + [0.0], contention=slowed)
    assert added + (1 - added_share(profile)) * sums <= back.exposed_s * (1 + 1e-9)
    forward = zero3_forward([seconds] + [layer] * 3, [0.0] + [sent] * 3, prefetch=4, contention=slowed)
    assert added + (1 - added_share(profile)) * gathers <= forward.exposed_s * (1 + 1e-9)


@pytest.mark.parametrize(("schedule", "layers"), [("zb-v", 9), ("interleaved,vpp=2", 9), ("interleaved,vpp=3", 11)])
def test_no_cut_into_chunks_of_whole_layers_is_faster_than_the_bound(schedule: str, layers: int) -> None:
    """Of all there are, where a rank has several chunks; and a cut that is found near the bound is a good one."""
    profile = MACHINES["h100"]
    sizes = {"layers": layers, "hidden": 1024, "heads": 16, "vocab": 64_000, "seq": 512, "attention": "fused"}
    sample = Sample(import_bytes(build("gpt", {**sizes, "batch": 32}).SerializeToString(), name="gpt"), profile)
    c = parse_strategy(f"megatron:dp=4,pp=2,micro_batch=1,schedule={schedule}", devices=8, batch=32)
    workload = sample.workload(c)
    load = load_of(workload, c, profile)
    every = {
        cut: predict(workload, c.with_(stage_layers=cut), profile) for cut in cuts(layers, c.pp * c.virtual_stages)
    }
    assert len(every) > 50
    once, handed = least_once(load, c, profile), least_handover(workload, c, profile)
    for cut, p in every.items():  # a rank may have more than an even share, most of it in the chunk that holds least
        assert least_seconds(load, c, profile, p.allocated_bytes, inf) <= p.step_time_s * (1 + 1e-9), cut
    for cut in random.Random(1).sample([*every], 12):
        p = every[cut]
        found = best_cut(load, c, p.allocated_bytes, p.step_time_s * 1.001 - once, handed, whole=QUICK)
        assert found is not None
        assert found.seconds + once <= p.step_time_s * (1 + 1e-9), cut
    steps = sorted(p.step_time_s for p in every.values())
    for limit in (None, round(sorted(p.allocated_bytes for p in every.values())[len(every) // 3])):
        best = min(p.step_time_s for p in every.values() if limit is None or round(p.allocated_bytes) <= limit)
        parts = best_cut(load, c, limit, inf, handed)
        whole = best_cut(load, c, limit, inf, handed, whole=QUICK)
        assert parts is not None
        assert whole is not None
        assert parts.seconds * (1 - 2e-5) <= whole.seconds
        assert whole.seconds + once <= best * (1 + 1e-9)
        if limit is None:
            assert whole.seconds > parts.seconds * 1.002
            assert min(every[cut].step_time_s for cut in whole.others) <= steps[len(steps) // 10]


@given(st.lists(st.floats(0, 9), min_size=1, max_size=12), st.integers(0, 3), st.integers(0, 40))
def test_rounded_layers_add_up(parts: list[float], least: int, more: int) -> None:
    """And are the parts themselves where these are whole."""
    total = least * len(parts) + more
    found = _rounded(np.array(parts), total, least)
    assert found.sum() == total
    assert found.min() >= least
    assert (_rounded(found.astype(float), total, least) == found).all()


def with_wide_logits(share: float) -> tuple[Configuration, Load, float]:
    """Stages of a model whose logits weigh as much as several layers, and a share of what an even cut holds."""
    sizes = {"layers": 16, "hidden": 1024, "heads": 16, "vocab": 128_000, "seq": 512, "attention": "fused", "batch": 32}
    sample = Sample(import_bytes(build("gpt", sizes).SerializeToString(), name="gpt"), MACHINES["h100"])
    c = parse_strategy("megatron:dp=2,pp=4,micro_batch=1", devices=8, batch=32)
    workload = sample.workload(c)
    limit = share * predict(workload, c, sample.profile).allocated_bytes
    return c, load_of(workload, c, sample.profile), limit


def test_the_best_cut_is_found_where_an_even_one_holds_too_much() -> None:
    """Cuts were simulated half way to the even one, which led nowhere, and the bound was a weak one."""
    c, load, limit = with_wide_logits(0.9)
    program = CutProgram(load, c, limit, inf, 1e-5)
    assert len(program.rows)
    even = np.concatenate([np.full(c.pp, load.layers / c.pp), np.zeros(c.pp)])
    assert not program.holds(even)
    cut = program.descend(even, inf, 30)
    # What the program's own solution takes is hardly more than its bound: no cut is bounded closer.
    assert program.solver.Solve() == program.status.OPTIMAL
    found = program.solution()
    assert program.holds(found)
    assert program.meet(found) <= cut.bound * 1.002


@pytest.mark.parametrize("schedule", ["1f1b", "zb-v"])
def test_paths_of_one_family_bound_the_cuts_of_another(schedule: str) -> None:
    """A path is one of the schedule: with those that decided in another family the bound is the same, and is found in
    fewer rounds."""
    sizes = {"layers": 24, "hidden": 1024, "heads": 16, "vocab": 128_000, "seq": 512, "attention": "fused", "batch": 64}
    sample = Sample(import_bytes(build("gpt", sizes).SerializeToString(), name="gpt"), MACHINES["h100"])
    c = parse_strategy(f"megatron:dp=2,pp=4,micro_batch=2,schedule={schedule}", devices=8, batch=64)
    families = [c, c.with_(recompute="full"), c.with_(sequence_parallel=True, dp=1, tp=2, micro_batch=4)]
    loads = [load_of(sample.workload(f), f, sample.profile) for f in families]
    met: list[float] = []
    meet = CutProgram.meet

    def rounds(paths: Paths | None) -> tuple[list[float], int]:
        before = len(met)
        found = [best_cut(load, f, None, inf, 1e-5, paths=paths) for load, f in zip(loads, families, strict=True)]
        return [cut.seconds for cut in found if cut is not None], len(met) - before

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CutProgram, "meet", lambda self, layers: met.append(0.0) or meet(self, layers))
        alone, each = rounds(None)
        paths = Paths()
        shared, together = rounds(paths)
        again, _ = rounds(paths)
    for deciding in paths.deciding.values():
        assert len({(passes.tobytes(), crossed.tobytes()) for passes, crossed in deciding}) == len(deciding)
    assert again == pytest.approx(shared, rel=2e-3)
    assert shared == pytest.approx(alone, rel=2e-3)
    assert together < each


@pytest.mark.parametrize("share", [0.5, 0.98, 1.1])
def test_a_cut_is_not_bounded_below_what_is_known(share: float) -> None:
    """Where what is known is above what the best cut takes, fewer cuts are simulated, and the bound holds as well."""
    c, load, _ = with_wide_logits(1.0)
    met: list[float] = []

    def simulated(known: float) -> tuple[float, int]:
        before = len(met)
        cut = best_cut(load, c, None, inf, 1e-5, known=known)
        assert cut is not None
        return cut.seconds, len(met) - before

    meet = CutProgram.meet
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CutProgram, "meet", lambda self, layers: met.append(0.0) or meet(self, layers))
        best, rounds = simulated(0.0)
        found, fewer = simulated(best * share)
    assert found <= best * (1 + 1e-9)
    assert (found == pytest.approx(best)) == (share < 1)
    assert (fewer < rounds) == (share > 1)


def test_what_is_proven_names_no_configuration_that_is_ruled_out() -> None:
    """Neither while other cuts of the best are tried, nor behind that."""
    sizes = {"layers": 10, "hidden": 1024, "heads": 16, "vocab": 32000, "seq": 512, "attention": "fused"}
    sample = Sample(
        import_bytes(build("gpt", {**sizes, "batch": BATCH}).SerializeToString(), name="gpt"), MACHINES["h100"]
    )
    ruled_out = set[Configuration]()
    for _ in range(3):

        def unsupported(c: Configuration, out: frozenset[Configuration] = frozenset(ruled_out)) -> str:
            return "taken" if c in out else ""

        space = Space(8, BATCH, sample.layers, stages=4, experts=False, unsupported=unsupported)
        found = best_of(sample, space, None)
        best = min(found.best, key=lambda s: s.prediction.step_time_s)
        for bounded in (True, False):
            proven = prove(sample, space, None, best, found.coarse, bounded=bounded)
            assert proven.best.configuration not in ruled_out
            assert proven.best.prediction.step_time_s <= best.prediction.step_time_s
        ruled_out.add(proven.best.configuration)
    assert len(ruled_out) == 3


def test_a_bound_without_room_for_the_weights_is_none() -> None:
    sample = sample_of("gpt", "h100")
    c = next(c for c in families(space_of(sample, 4), sample) if c.pp == 4 and c.schedule == "1f1b")
    load = load_of(sample.workload(c), c, sample.profile)
    assert least_seconds(load, c, sample.profile, 1000, float("inf")) == float("inf")
    assert dealt(load, c, 1000, 1e9) is None


@pytest.mark.parametrize("order", ["1f1b", "zb-h1", "zb-v"])
def test_layers_dealt_add_up_and_fit_as_far_as_the_bound_tells(order: str) -> None:
    sample = sample_of("gpt", "h100")
    every = families(space_of(sample, 4), sample)
    c = next(c for c in every if c.pp == 4 and c.schedule == order and c.passes >= 4 and c.virtual_stages < 3)
    load = load_of(sample.workload(c), c, sample.profile)
    limit = held_evenly(load, c)
    least = least_seconds(load, c, sample.profile, limit, float("inf"))
    cut = dealt(load, c, limit, least * 1.3)
    assert cut is not None
    assert sum(cut) == sample.layers
    assert len(cut) == c.pp * c.virtual_stages
    assert dealt(load, c, limit, least * 0.5) is None


@pytest.mark.parametrize(("architecture", "machine", "share"), [("gpt", "h100", 0.6), ("vit", "ascend-910b", None)])
def test_what_is_proven_bounds_every_member_of_every_family(
    architecture: str, machine: str, share: float | None
) -> None:
    """All cuts and all numbers of blocks that run again, laid out by themselves, on two devices."""
    sample = sample_of(architecture, machine)
    space = space_of(sample, 2)
    (free,) = best_of(sample, space, None).best
    limit = None if share is None else round(share * free.prediction.allocated_bytes)
    found = best_of(sample, space, limit, 8)
    best = min((refined(sample, space, limit, s) for s in found.best), key=lambda s: s.prediction.step_time_s)
    proven = prove(sample, space, limit, best, found.coarse)
    assert proven.bound_s <= proven.best.prediction.step_time_s <= best.prediction.step_time_s
    assert proven.bound_s > 0.85 * proven.best.prediction.step_time_s
    shortest = float("inf")
    for c in families(space, sample):
        for cut in [None] if c.pp == 1 else cuts(sample.layers, c.pp * c.virtual_stages):
            shares: Iterable[int | None] = [None]
            if c.recompute == "full" and c.recompute_blocks < 1:
                shares = range(1, sample.layers)
            for n in shares:
                m = c.with_(stage_layers=cut, recompute_blocks=c.recompute_blocks if n is None else n / sample.layers)
                p = simulated(sample, m)
                if p is not None and (limit is None or round(p.allocated_bytes) <= limit):
                    shortest = min(shortest, p.step_time_s)
    assert proven.bound_s <= shortest * (1 + 1e-9)


def test_models_without_layers_are_bounded_as_well() -> None:
    model = build("mlp", {"batch": BATCH})
    sample = Sample(import_bytes(model.SerializeToString(), name="mlp"), MACHINES["h100"])
    space = Space(2, BATCH, sample.layers, experts=False)
    (free,) = best_of(sample, space, None).best
    limit = round(0.9 * free.prediction.allocated_bytes)
    found = best_of(sample, space, limit)
    if found.best:
        proven = prove(sample, space, limit, found.best[0], found.coarse)
        assert 0 < proven.bound_s <= proven.best.prediction.step_time_s


@pytest.mark.parametrize("space", ["whole", "operators"])
def test_the_gap_that_is_printed_is_that_of_all_that_was_searched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], space: str
) -> None:
    model = tmp_path / "gpt.onnx"
    model.write_bytes(build("gpt", {**SIZES["gpt"], "layers": 4, "batch": BATCH}).SerializeToString())
    arguments = ["search", str(model), "--devices", "4", "--space", space, "--no-cache", "--out", str(tmp_path)]
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    bound, step = found["step_time_lower_bound_s"], found["step_time_s"]
    assert 0 < bound <= step
    assert found["gap"] == pytest.approx((step - bound) / step)
    if space == "whole":
        assert bound <= found["uniform"]["step_time_lower_bound_s"]
        assert main(arguments) == 0
        (line,) = (x for x in capsys.readouterr().out.splitlines() if x.startswith("optimality"))
        assert "of configurations that treat layers alike, and of plans of operators one by one" in line
