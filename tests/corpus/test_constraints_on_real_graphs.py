"""Pins on real graphs, where the model corpus lies beside the checkout."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from planner.cost_models import load_profile
from planner.frontends import load_model
from planner.ir import DeviceMesh
from planner.planning import Planned, Request, describe, make_plan
from planner.planning.constraints import Constraints, constraints_of_plan, parse_constraints
from planner.pricing import Settings
from planner.redistribute.steps import FREE

MODELS = Path(__file__).parents[3] / "shared" / "models"
SCHEMA = "schema: planner.constraints/1\n"

pytestmark = [
    pytest.mark.corpus,
    pytest.mark.skipif(not MODELS.exists(), reason="the model corpus does not lie beside the checkout"),
]

MEGATRON = """
operators:
  - {match: ["*.attn.c_attn.*", "*.mlp.c_fc.*"], type: Gemm, strategy: {m: x, n: y}}
  - {match: ["*.attn.c_proj.*", "*.mlp.c_proj.*"], type: Gemm, strategy: {m: x, k: y}}
"""


def planned(name: str, pins: Constraints, *shape: int, batch: int = 64) -> Planned:
    graph = load_model(MODELS / f"{name}.onnx", batch=batch)
    mesh = DeviceMesh.of(*shape)
    settings = Settings(training=graph.loss is not None)
    return make_plan(graph, Request(mesh.devices, load_profile("a100-80"), settings, (mesh,), constraints=pins))


def collectives(plan: Planned) -> list[tuple[bool, str, str, tuple[str, ...]]]:
    """(of a gradient, tensor, kind, axes) between operators."""
    return [
        (c.gradient, c.tensor, str(s.kind), s.axes)
        for c in plan.program.redistributions()
        for s in c.steps
        if s.kind not in FREE
    ]


def test_megatron_by_hand_for_gpt2_gives_its_collectives() -> None:
    """Per layer and pass, two reductions of activations inside a layer; the last of each may leave scattered."""
    plan = planned("gpt2_small_loss", parse_constraints(SCHEMA + MEGATRON, "pins.yaml"), 8, 2)
    producers, stored = plan.priced.graph.producers, plan.assignment.stored
    inside = [c for c in collectives(plan) if c[1] not in stored and c[3] == ("y",) and ".h." in producers[c[1]].module]
    forward = Counter(kind for gradient, _, kind, _ in inside if not gradient)
    assert forward["all_reduce"] + forward["reduce_scatter"] == forward.total() == 24
    assert forward["all_reduce"] >= 23
    backward = [
        c for c in collectives(plan) if c[0] and c[1] not in stored and c[2] in ("all_reduce", "reduce_scatter")
    ]
    # The first product's may stay pending until the tables of embeddings sum theirs, over both axes at once.
    tables = {c[3] for c in collectives(plan) if c[0] and c[1].endswith("wpe.weight")}
    assert sum(c[3] == ("y",) for c in backward) + (tables == {("x", "y")}) == 24
    columns = {str(x) for n, x in stored.items() if n.endswith("c_fc.weight")}
    assert columns <= {"[_,y]", "[x,y]"}
    assert plan.gap < 0.02


@pytest.mark.parametrize("name", ["gpt2_small_loss", "vit_b16_loss", "resnet50_loss", "t5_small_loss"])
def test_data_parallel_and_zero_touch_parameters_alone(name: str) -> None:
    """One synchronisation per parameter, and what the loss needs: activations stay where they are."""
    plan = planned(name, parse_constraints(SCHEMA + "rest: data_parallel", "pins.yaml"), 8)
    stored = plan.assignment.stored
    assert all(x.is_replicated for x in stored.values())
    kinds = Counter((gradient, kind) for gradient, t, kind, _ in collectives(plan) if t in stored)
    assert set(kinds) == {(True, "all_reduce")}
    assert sum(t not in stored for _, t, _, _ in collectives(plan)) <= 3
    zero = planned(name, parse_constraints(SCHEMA + "rest: zero", "pins.yaml"), 8)
    kinds = Counter((gradient, kind) for gradient, t, kind, _ in collectives(zero) if t in stored)
    assert set(kinds) >= {(True, "reduce_scatter"), (False, "all_gather")}
    split = [
        x
        for n, x in zero.assignment.stored.items()
        if any(s % 8 == 0 for s in plan.priced.graph.tensors[n].shape or ())
    ]
    assert all(x.shards(zero.mesh) == 8 for x in split)


@pytest.mark.parametrize("name", ["gpt2_small_loss", "resnet50_loss"])
def test_a_plan_pinned_whole_costs_what_it_cost(name: str) -> None:
    free = planned(name, Constraints("nothing"), 4, 4)
    started = time.process_time()
    again = planned(name, constraints_of_plan(describe(free, bind={}, batch=64), "plan.json"), 4, 4)
    assert again.parts.total == free.parts.total
    assert time.process_time() - started < 20
