"""Laws of where stages begin in models whose layers differ: the bound holds for every cut, and is near the best one."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from math import inf

import pytest

from planner.builder import build
from planner.clock import Prediction, predict
from planner.clock.stages import layers_of
from planner.cost_models import load_profile
from planner.frontends import import_bytes
from planner.planning.schemes import parse_strategy, spelled
from planner.trace import Unit
from planner.uniform import Sample
from planner.uniform.cuts import QUICK, Cut, Effort, best_cut
from planner.uniform.each_layer import EachLayer, each_layer
from planner.uniform.load import least_handover, load_of
from planner.uniform.loads import Loads
from tests.unit.test_families import cuts, once_of_ranks
from tests.unit.test_uniform_models import perceptron

H100 = load_profile("h100")
BATCH = 64
ENCODER_DECODER = [2048] * 5 + [8192] * 6  # widths of its layers: the forward and the backward passes differ as they do
SCHEDULES = ("pp=2", "pp=2,schedule=zb-h1", "pp=4,schedule=zb-h1", "pp=2,schedule=zb-v", "pp=2,vpp=2", "pp=4")


@cache
def sample_of(name: str) -> Sample:
    model = (
        perceptron(BATCH, ENCODER_DECODER) if name == "perceptron" else build("resnet", {"image": 64, "batch": BATCH})
    )
    return Sample(import_bytes(model.SerializeToString(), name=name), H100)


class Case:
    def __init__(self, name: str, schedule: str, layout: str) -> None:
        self.sample = sample_of(name)
        self.c = parse_strategy(f"megatron:{schedule},{layout},gradient_bytes=2", devices=8, batch=BATCH)
        self.loads = Loads(self.sample, H100)
        self.workload = self.sample.workload(self.c)
        load = self.loads.of(self.c, exact=True)
        assert load is not None
        assert load.lightest is not None, "its layers differ"
        self.load = load

    def members(self, most: int = 300) -> list[Prediction]:
        every = [*cuts(self.load.layers, self.c.pp * self.c.virtual_stages)]
        every = every if len(every) <= most else random.Random(0).sample(every, most)
        return [predict(self.workload, self.c.with_(stage_layers=cut), H100) for cut in every]

    def each(self) -> EachLayer:
        least = once_of_ranks(self.load, self.workload, self.c, H100).least
        each = self.loads.each_layer(self.c, least, exact=True)
        assert each is not None
        return each

    def found(self, *, limit: float | None = None, each: bool = True, effort: Effort | None = QUICK) -> Cut:
        handed = least_handover(self.workload, self.c, H100)
        once = once_of_ranks(self.load, self.workload, self.c, H100)
        known = self.each() if each else None
        cut = best_cut(self.load, self.c, limit, inf, handed, once, whole=effort, each=known)
        assert cut is not None
        return cut


@pytest.mark.parametrize("name", ["perceptron", "resnet"])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("layout", ["micro_batch=4", "micro_batch=2,zero=3", "micro_batch=2,zero=2"])
def test_no_cut_is_faster_than_the_bound(name: str, schedule: str, layout: str) -> None:
    """With and without a limit of memory, with layers in parts and in whole numbers."""
    dp = 8 // int(schedule[3])
    case = Case(name, schedule, f"dp={dp},{layout}")
    every = case.members()
    sizes = sorted(p.allocated_bytes for p in every)
    for limit in (None, sizes[0], sizes[len(sizes) // 4]):
        best = min(p.step_time_s for p in every if limit is None or p.allocated_bytes <= limit)
        parts, whole = case.found(limit=limit, effort=None), case.found(limit=limit)
        assert parts.seconds * (1 - 2e-5) <= whole.seconds <= best * (1 + 1e-9), spelled(case.c)
        assert all(sum(layers) == case.load.layers for layers in (whole.layers, *whole.others) if layers)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_bound_is_near_the_best_cut(schedule: str) -> None:
    """Nearer than where layers are parts or multiples of each other; and the best cut is among those that are named."""
    dp = 8 // int(schedule[3])
    case = Case("perceptron", schedule, f"dp={dp},micro_batch=4")
    best = min(p.step_time_s for p in case.members(10_000))
    found = case.found()
    assert case.found(each=False).seconds < best * 0.98
    assert best * 0.999 <= found.seconds <= best * (1 + 1e-9)
    met = min(predict(case.workload, case.c.with_(stage_layers=cut), H100).step_time_s for cut in found.others)
    assert met <= best * 1.01


def test_what_its_layers_come_to_is_what_the_model_does() -> None:
    """Seconds of the passes of all layers together, as the load has them."""
    for name in ("perceptron", "resnet"):
        case = Case(name, "pp=2", "dp=4,micro_batch=4")
        passes = case.each().passes.sum(axis=0)
        assert passes[0] == pytest.approx(case.load.total[0])
        assert passes[1] + passes[2] == pytest.approx(case.load.total[1])


def computing(unit: Unit, factor: int) -> Unit:
    """A unit with so many times the kernels."""
    more = ({k: n * factor for k, n in of.items()} for of in (unit.forward, unit.backward, unit.of_weights))
    return replace(unit, **dict(zip(("forward", "backward", "of_weights"), more, strict=True)))


def exchanging(unit: Unit, factor: int) -> Unit:
    """A unit that exchanges so many times as much."""

    def more(name: str) -> tuple[object, ...]:
        return tuple(replace(x, elements=x.elements * factor) for x in getattr(unit, name))

    return replace(unit, **{name: more(name) for name in ("gathers", "sums", "scatters")})


@pytest.mark.parametrize(("micro_batches", "factor"), [(1, 56), (2, 40)])
def test_gradients_of_weights_run_beside_what_other_layers_exchange(micro_batches: int, factor: int) -> None:
    """Layers that compute much, between layers whose weights take long to travel: the exchange bounds the backward pass
    of a chunk, in which all gradients of weights are computed, also where those of one layer take longer than its own
    exchange."""
    slow, batch = load_profile("a10g"), 8 * 64 * micro_batches
    graph = import_bytes(build("resnet", {"image": 224, "batch": batch}).SerializeToString(), name="resnet")
    layout = "pp=2,dp=64,schedule=zb-h1,micro_batch=8,zero=3,gradient_bytes=4"
    c = parse_strategy(f"megatron:{layout}", devices=128, batch=batch)
    of_resnet = Sample(graph, slow).workload(c)
    layers = layers_of(of_resnet)
    pair = computing(of_resnet.units[layers[1]], factor), exchanging(of_resnet.units[layers[13]], 20)
    workload = replace(of_resnet, units=pair * 12, repeated=(True,) * 24, tied=(), like=None)
    load, once = load_of(workload, c, slow), once_of_ranks(load_of(workload, c, slow), workload, c, slow)
    each = each_layer(workload, load, c, slow, least_once=once.least)
    found = best_cut(load, c, None, inf, least_handover(workload, c, slow), once, whole=QUICK, each=each)
    best = min(predict(workload, c.with_(stage_layers=cut), slow).step_time_s for cut in cuts(24, 2))
    assert found is not None
    assert best * 0.9 <= found.seconds <= best * (1 + 1e-9)
