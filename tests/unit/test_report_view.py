"""A plan as pictures show it: nothing is left out, nothing is shown twice, everything adds up."""

from __future__ import annotations

import time
from collections import Counter
from itertools import pairwise

import pytest

from planner.planning import PlanDocument
from planner.report.colours import SPLITS, Splits
from planner.report.document import document_of, report_document
from planner.report.figures import PARTS, part_of_move
from planner.report.layout import GAP
from planner.report.mesh import shards
from planner.report.view import SIZES, View, box_kind, view
from tests.unit.report_plans import SEARCHES, deepened, hostile, old, plan_of, without_modules

KINDS = [*SEARCHES, "old", "without modules", "hostile"]


def made(kind: str) -> PlanDocument:
    edits = {"old": old, "without modules": without_modules, "hostile": hostile}
    return edits[kind](plan_of("megatron")) if kind in edits else plan_of(kind)


@pytest.fixture(params=KINDS)
def seen(request: pytest.FixtureRequest) -> View:
    return view(made(request.param))


def test_every_operator_stands_once_in_the_tree(seen: View) -> None:
    leaves = Counter(c for n in seen.tree.nodes for c in n.children if seen.tree.nodes[c].kind == "operator")
    assert leaves == Counter(range(len(seen.plan.operators)))
    assert sorted(seen.tree.nodes[seen.tree.root].operators) == list(range(len(seen.plan.operators)))
    assert all(i in seen.tree.nodes[n.parent].children for i, n in enumerate(seen.tree.nodes) if n.parent >= 0)


def test_every_redistribution_is_on_an_edge_or_with_the_readers_of_its_parameter(seen: View) -> None:
    on_edges = {i for level in seen.levels.values() for pill in level.pills for i in pill.moves}
    with_readers = {i for moves in seen.of_parameters.values() for i in moves}
    assert on_edges | with_readers == set(range(len(seen.plan.redistributions)))
    assert not on_edges & with_readers
    stored = {i for i, r in enumerate(seen.plan.redistributions) if r.tensor in seen.plan.parameters}
    assert with_readers == stored


def test_a_redistribution_stands_between_its_producer_and_a_reader(seen: View) -> None:
    for group, level in seen.levels.items():
        for pill in level.pills:
            for i in pill.moves:
                move = seen.plan.redistributions[i]
                producer = next((n for n, o in seen.plan.operators.items() if move.tensor in o.outputs), move.tensor)
                assert pill.source in seen.tree.path(seen.tree.number[producer])
            assert set(pill.targets) <= set(level.members)
            assert seen.tree.nodes[pill.source].parent == group


def test_boxes_of_a_row_do_not_overlap_and_rows_follow_the_flow(seen: View) -> None:
    for level in seen.levels.values():
        widths = [SIZES[box_kind(seen.tree.nodes[m].kind)][0] for m in level.members]
        widths += [SIZES["pill"][0]] * len(level.pills)
        row_of = {item: r for r, row in enumerate(level.drawing.rows) for item in row}
        assert sorted(row_of) == list(range(len(level.drawing.x)))
        for row in level.drawing.rows:
            for a, b in pairwise(row):
                half = sum(widths[i] / 2 if i < len(widths) else 3.0 for i in (a, b))
                assert level.drawing.x[b] - level.drawing.x[a] >= half + GAP - 0.2
        assert all(row_of[b] == row_of[a] + 1 for a, b in level.drawing.segments)


@pytest.mark.parametrize("kind", SEARCHES)
def test_costs_of_operators_and_redistributions_add_up_to_the_parts_exactly(kind: str) -> None:
    v = view(made(kind))
    cost, unit = v.plan.cost, v.costs.unit_s
    parts = dict.fromkeys(PARTS, 0)
    for e in (e for events in v.costs.runs.values() for e in events):
        parts["compute_backward" if e.phase == "backward" else "compute_forward"] += e.units - e.inside
        parts["inside_operators"] += e.inside
    for i, units in enumerate(v.costs.moved):
        parts[part_of_move(v.plan, i)] += units
    parts["optimizer"] = sum(v.costs.optimizer.values())
    assert parts == {part: round(s / unit) for part, s in cost.parts_s.items()}
    spent = sum(sum(s.values()) for s in v.costs.of_operators().values())
    assert spent == round(cost.objective_s / unit)


def test_totals_are_the_very_numbers_of_the_plan(seen: View) -> None:
    document = document_of(seen)
    assert document["cost"] == seen.plan.cost.model_dump()
    assert {r["part"]: r["seconds"] for r in document["time"]} == seen.plan.cost.parts_s
    assert {r["kind"]: r["bytes"] for r in document["memory"]} == seen.plan.cost.memory_bytes
    assert sum(r["operators"] for r in document["splits"]) == len(seen.plan.operators)
    assert sum(r["count"] for r in document["collectives"]) == sum(len(r.steps) for r in seen.plan.redistributions)


def piles(plan: PlanDocument) -> list[tuple[str, int]]:
    return [(n.title, n.alike) for n in view(plan).tree.nodes if n.kind == "pile"]


def test_equal_blocks_are_piled_and_others_stand_apart() -> None:
    plan = deepened(plan_of("megatron"), 12)
    assert piles(plan) == [("h.1 – 11", 11)]  # what the first reads lies as the embedding left it
    other = plan.model_copy(deep=True)
    other.operators["transformer.h.5.mlp.c_fc.matmul"].strategy["y"] = "replicate"
    assert piles(other) == [("h.1 – 4", 4), ("h.6 – 11", 6)]


def test_blocks_of_the_plan_are_taken_where_there_are_no_modules() -> None:
    plan = without_modules(plan_of("data"))
    nodes = view(plan).tree.nodes
    blocks = [n for n in nodes if n.kind == "block"]
    assert [len(n.operators) for n in blocks] == [len(b) for run in plan.model.repeated for b in run]


def test_long_rows_without_modules_or_blocks_are_cut_into_segments() -> None:
    plan = old(without_modules(deepened(plan_of("megatron"), 6)))
    v = view(plan)
    assert any(n.kind == "segment" for n in v.tree.nodes)
    assert all(len(level.members) <= 48 + len(plan.inputs) for level in v.levels.values())


def test_stages_of_a_pipeline_are_the_outermost_boxes() -> None:
    v = view(plan_of("pipeline"))
    top = [v.tree.nodes[c] for c in v.tree.nodes[v.tree.root].children]
    stages = [n for n in top if n.kind == "stage"]
    assert [len(n.operators) for n in stages] == [s.operators for s in v.plan.stages]


def test_splits_are_named_as_tensor_parallelism_names_them() -> None:
    plan = plan_of("megatron")
    v = view(plan)
    letters = dict(zip(plan.operators, v.splits, strict=True))
    assert letters["transformer.h.0.mlp.c_fc.matmul"] == "bc"
    assert letters["transformer.h.0.mlp.c_proj.matmul"] == "bk"
    assert set(view(plan_of("images")).splits) <= {"b", "r", "k", "p"}
    assert {x for s in v.splits for x in s} <= set(SPLITS)


def test_columns_are_no_positions_where_there_are_as_many() -> None:
    plan = plan_of("megatron").model_copy(deep=True)
    (batch, positions), *_ = (i.shape for i in plan.inputs.values() if i.shape)
    o = plan.operators["transformer.h.0.mlp.c_fc.matmul"]
    (tensor,) = o.outputs
    for shape in ([batch, positions, positions], [7, 7, positions]):  # the latter: columns of the weight
        plan.tensors[tensor].shape = shape
        assert Splits.of(plan).letters(o)[1] == "c"


def test_samples_before_positions_where_batch_and_positions_are_merged() -> None:
    plan = plan_of("megatron").model_copy(deep=True)
    (batch, positions), *_ = (i.shape for i in plan.inputs.values() if i.shape)
    name, o = next((n, o) for n, o in plan.operators.items() if o.results[0] is not None and len(o.inputs) == 1)
    plan.tensors[name].shape = [batch * positions, 64]
    o.strategy, o.inputs, o.operands = {"x": "split:d0", "y": "split:d0"}, [], []
    o.results[0].dims = [["x", "y"], []]
    assert Splits.of(plan).letters(o) == "bb"
    plan.meshes["m0"].axes[0].size = batch
    assert Splits.of(plan).letters(o) == "bs"


def test_ten_thousand_operators_take_seconds() -> None:
    plan = deepened(plan_of("megatron"), 400)
    assert len(plan.operators) > 10_000
    begin = time.process_time()
    view(plan)
    assert time.process_time() - begin < 4


def test_the_shards_of_a_tensor_are_its_whole_each_held_equally_often(seen: View) -> None:
    plan = seen.plan
    for name, t in list(plan.tensors.items())[:60]:
        if t.shape is None:
            continue
        layout = t.layout.layout()
        found = shards(layout, t.shape, plan.mesh)
        size = 1
        for n in t.shape:
            size *= n
        held = [r for s in found for r in s.ranks]
        volume = 0
        for s in found:
            part = 1
            for a, b in s.ranges:
                part *= b - a
            volume += part
        assert volume == size, name
        assert sorted(held) == list(range(plan.mesh.devices))
        assert len(found) == layout.shards(plan.mesh)
        assert len({len(s.ranks) for s in found}) == 1


def test_what_a_plan_without_times_lacks_is_said() -> None:
    document = report_document(old(plan_of("megatron")))
    assert not document["timed"]
    assert any("does not say when operators run" in n["text"] for n in document["notes"])
    assert document["operators"] == [] or all(set(r["by"]) == {"moved"} for r in document["operators"])


def test_operators_without_a_rule_and_memory_above_the_limit_are_warnings() -> None:
    plan = plan_of("data").model_copy(deep=True)
    plan.search.operators_replicated_for_want_of_a_rule = ["Softmax"]
    plan.cluster.memory_limit_bytes = plan.cost.peak_memory_bytes - 1
    warnings = [n["text"] for n in report_document(plan)["notes"] if n["level"] == "warning"]
    count = sum(o.type == "Softmax" for o in plan.operators.values())
    assert any(text.startswith(f"{count} operators have no sharding rule") for text in warnings)
    assert any("above the memory limit" in text for text in warnings)
