"""One model of memory: laws between plans of a search and of known configurations, and between whole and units."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import accumulate
from pathlib import Path

import pytest

from planner.clock import held_of_plan, levels_of_plan, usual
from planner.cost_models import load_profile
from planner.frontends import load_model
from planner.ir import DeviceMesh, Graph
from planner.planning import Planned, Request, make_plan
from planner.planning.schemes import parse_strategy
from planner.planning.schemes.pins import constraints_of_configuration
from planner.pricing import Settings

SAMPLES = Path(__file__).parents[2] / "sample_graphs"
JOINED = load_profile("a100-80")
ALONE = replace(JOINED, framework=replace(JOINED.framework, joins_kernels=False))
DEVICES, BATCH = 4, 8
STRATEGIES = (
    "ddp",
    "fsdp",
    "hsdp:shard=2",
    "megatron:tp=2,micro_batch=4",
    "megatron:tp=4,sp=false,micro_batch=8",
    "megatron:cp=2,micro_batch=4",
)


@cache
def graph_of(model: str) -> Graph:
    return load_model(SAMPLES / f"{model}.onnx", batch=BATCH)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("model", ["gpt_tiny", "llama_tiny"])
def test_a_layout_holds_the_same_whoever_asked_for_it(model: str, strategy: str) -> None:
    """A known configuration's layouts, pinned in a search, hold what the configuration does, given that it is run so;
    and the other way round, run as searched plans are."""
    graph = graph_of(model)
    c = parse_strategy(strategy, devices=DEVICES, batch=BATCH, precision="bf16", optimizer="adam")
    assert c.micro_batches == c.pp == 1
    pins = constraints_of_configuration(graph, c, "--strategy")
    request = Request(DEVICES, JOINED, Settings(True), recompute="none", constraints=pins, memory_limit=1 << 50)
    searched, configured = make_plan(graph, request), make_plan(graph, replace(request, execution=c))
    for way in (c, None):
        one, other = (held_of_plan(p.priced, p.program, way) for p in (searched, configured))
        assert one == other
    assert searched.memory == held_of_plan(searched.priced, searched.program)
    assert configured.memory == held_of_plan(configured.priced, configured.program, c)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_without_redistributed_activations_the_way_of_running_decides_nothing_but_widths(strategy: str) -> None:
    """Of a plan that redistributes no activation nothing is gathered again: what waits is the same either way."""
    graph = graph_of("gpt_tiny")
    c = parse_strategy(strategy, devices=DEVICES, batch=BATCH, precision="bf16", optimizer="adam")
    pins = constraints_of_configuration(graph, c, "--strategy")
    request = Request(DEVICES, JOINED, Settings(True), recompute="none", constraints=pins, memory_limit=1 << 50)
    p = make_plan(graph, request)
    searched, configured = held_of_plan(p.priced, p.program), held_of_plan(p.priced, p.program, c)
    assert searched.activations == configured.activations
    assert searched.inputs == configured.inputs
    own = usual(p.program, p.priced.machine.settings)
    if (c.zero < 2) == (own.zero < 2):  # what ZeRO divides is the configuration's to say
        assert configured.gradients * own.gradient_bytes == searched.gradients * c.gradient_bytes


def plans() -> Iterator[tuple[str, Settings, bool]]:
    for model in ("gpt_tiny", "bert_tiny", "llama_tiny", "moe_tiny", "resnet18_tiny", "mlp"):
        for joined in (True, False):
            yield model, Settings(True), joined
            yield model, Settings(False), joined


@cache
def planned(model: str, settings: Settings, joined: bool, recompute: bool) -> Planned:
    profile = JOINED if joined else ALONE
    request = Request(
        DEVICES, profile, settings, (DeviceMesh.of(DEVICES),), recompute="blocks" if recompute else "none"
    )
    return make_plan(graph_of(model), request)


@pytest.mark.parametrize(("model", "settings", "joined"), list(plans()))
def test_units_add_up_to_what_every_instruction_holds(model: str, settings: Settings, joined: bool) -> None:
    """The most that any instruction holds is what units up to one keep, and by how much that one rises above."""
    for recompute in (False, True) if settings.training else (False,):
        p = planned(model, settings, joined, recompute)
        found = levels_of_plan(p.priced, p.program)
        saved = accumulate(u.saved for u in found.units)
        composed = found.resident + max(k + u.over for k, u in zip(saved, found.units, strict=True))
        assert composed == found.levels.max()
        held = p.memory
        assert held.activations == sum(u.saved for u in found.units)
        # Weights lie outside the levels, but for copies of them in inference.
        assert held.inputs + held.activations + held.transient == pytest.approx(composed)
