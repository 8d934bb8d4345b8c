"""Pins: what a constraints file may say, what it then means for a plan, and what is said where it cannot hold."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from planner.cost_models import load_profile
from planner.errors import InfeasibleError, InputError, UsageError
from planner.frontends import import_bytes, load_model
from planner.ir import DeviceMesh, Graph
from planner.lowering import Program
from planner.planning import Planned, Request, describe, make_plan
from planner.planning.constraints import constraints_of_plan, parse_constraints, parse_pin, read_constraints
from planner.planning.constraints.conflicts import smallest_conflict
from planner.pricing import Settings
from planner.redistribute.steps import FREE
from planner.verify.check import verify_program
from tests.unit.alpa_graphs import mlp
from tests.unit.semantics_model import fan, transformer

PROFILE = replace(load_profile("alpha-beta"), heavy_operators_must_split=False)
SCHEMA = "schema: planner.constraints/1\n"


def planned(
    graph: Graph,
    text: str,
    *,
    devices: int | None = None,
    mesh: tuple[int, ...] | None = None,
    target: Literal["any", "torch", "mindspore"] = "any",
    memory_limit: int | None = None,
) -> Planned:
    request = Request(
        devices or math.prod(mesh or (4,)),
        PROFILE,
        Settings(training=True, precision="fp32", target=target),
        meshes=None if mesh is None else (DeviceMesh.of(*mesh),),
        memory_limit=memory_limit,
        constraints=parse_constraints(SCHEMA + text, "pins.yaml"),
    )
    return make_plan(graph, request)


def refused(
    graph: Graph,
    text: str,
    *parts: str,
    mesh: tuple[int, ...] | None = None,
    target: Literal["any", "torch", "mindspore"] = "any",
) -> str:
    with pytest.raises(InputError) as e:
        planned(graph, text, mesh=mesh, target=target)
    for part in parts:
        assert part in str(e.value)
    return str(e.value)


def strategy(plan: Planned, name: str) -> str:
    return plan.assignment.strategies[name].text(plan.mesh)


def moved(program: Program, *, gradient: bool) -> list[tuple[str, str, tuple[str, ...]]]:
    """(tensor, kind, axes) of every collective between operators."""
    return [
        (c.tensor, str(s.kind), s.axes)
        for c in program.redistributions()
        if c.gradient == gradient
        for s in c.steps
        if s.kind not in FREE
    ]


@pytest.fixture(scope="module")
def perceptron() -> Graph:
    return mlp(2, 64, 16)


@pytest.fixture(scope="module")
def language() -> Graph:
    return import_bytes(transformer())


def product(graph: Graph, weight: str) -> str:
    return next(op.name for op in graph.ops if weight in op.inputs)


# What pins mean.


@pytest.mark.parametrize(
    "pin",
    [
        "strategy: {m: x, n: y}",
        "strategy: {m: 2, n: y}",
        "roles: {x: 'split:m', y: 'split:n'}",
        "shard: [[2, 1], [1, 2]]",
    ],
)
def test_a_strategy_may_be_pinned_in_four_ways(perceptron: Graph, pin: str) -> None:
    plan = planned(perceptron, f"operators: [{{reads: Dense_0.weight, type: MatMul, {pin}}}]", mesh=(2, 2))
    name = product(perceptron, "Dense_0.weight")
    shards = [[plan.mesh.size(d) for d in x.dims] for x in plan.assignment.strategies[name].operands if x is not None]
    assert shards == [[2, 1], [1, 2]]
    assert plan.objective_gap == 0


def test_a_strategy_is_complete_and_roles_leave_other_axes_free(perceptron: Graph) -> None:
    name = product(perceptron, "Dense_0.weight")
    whole = planned(perceptron, f"operators: [{{match: {name}, strategy: {{n: x}}}}]", mesh=(2, 2))
    assert dict(whole.assignment.strategies[name].splits) == {"n": ("x",)}
    cheapest = planned(perceptron, f"operators: [{{match: {name}, roles: {{x: 'split:n'}}}}]", mesh=(2, 2))
    assert dict(cheapest.assignment.strategies[name].splits)["n"][0] == "x"
    assert cheapest.objective_s <= whole.objective_s


def test_numbers_of_shards_hold_on_every_mesh_that_can_form_them(perceptron: Graph) -> None:
    name = product(perceptron, "Dense_0.weight")
    plan = planned(perceptron, f"operators: [{{match: {name}, shard: [[2, 1], [1, 4]]}}]", devices=8)
    fits = {str(c.mesh): c.status for c in plan.candidates}
    assert fits == {"8": "pins do not fit", "2x4": "optimal", "4x2": "optimal"}


def test_a_tensor_is_read_as_pinned_by_every_reader(language: Graph) -> None:
    hidden = next(t for t, r in language.consumers.items() if len(r) > 2 and language.tensors[t].rank == 3)
    plan = planned(language, f"tensors: [{{match: {hidden}, layout: [x, y, _]}}]", mesh=(2, 2))
    reads = [plan.assignment.strategies[op.name].operands[i] for op, i in language.consumers[hidden]]
    assert {str(r) for r in reads} == {"[x,y,_]"}


def test_a_tensor_may_be_delivered_with_a_pending_sum(perceptron: Graph) -> None:
    name = product(perceptron, "Dense_0.weight")
    plan = planned(perceptron, f"tensors: [{{match: {name}, produced: '[y,_]+x'}}]", mesh=(2, 2))
    assert str(plan.assignment.strategies[name].results[0]) == "[y,_]+x"


def test_how_a_parameter_is_stored_and_how_it_is_read_are_two_pins(perceptron: Graph) -> None:
    text = "parameters: [{match: Dense_0.weight, stored: '[x, _]', compute: replicated}]"
    plan = planned(perceptron, text, mesh=(4,))
    assert str(plan.assignment.stored["Dense_0.weight"]) == "[x,_]"
    read = plan.assignment.strategies[product(perceptron, "Dense_0.weight")].operands[1]
    assert read is not None
    assert read.is_replicated
    assert ("Dense_0.weight", "all_gather", ("x",)) in moved(plan.program, gradient=False)


def test_only_the_meshes_that_are_named_are_searched(perceptron: Graph) -> None:
    assert [str(c.mesh) for c in planned(perceptron, "mesh: 2x2").candidates] == ["2x2"]
    assert [str(c.mesh) for c in planned(perceptron, "mesh: [4, 2x2x1, 8]").candidates] == ["4", "2x2x1"]
    refused(perceptron, "mesh: 3x3", "mesh 3x3: none is made of the 4 devices")
    refused(perceptron, "mesh: 2x2", "of mesh 4;", mesh=(4,))


def test_megatron_by_hand_reduces_activations_twice_per_layer_and_pass() -> None:
    text = """
operators:
  - {match: ["*.attn.c_attn.matmul", "*.mlp.c_fc.matmul"], strategy: {b0: x, n: y}}
  - {match: ["*.attn.c_proj.matmul", "*.mlp.c_proj.matmul"], strategy: {b0: x, k: y}}
  - {match: ["*.attn.matmul*"], strategy: {b0: x, b1: y}}
tensors:
  - {match: ["transformer.h.?.add*", "*.layernormalization"], layout: [x, _, _]}
"""
    graph = load_model(Path(__file__).parents[2] / "sample_graphs" / "gpt_tiny.onnx")
    plan = planned(graph, text, mesh=(4, 2))
    activations = {
        gradient: [m for m in moved(plan.program, gradient=gradient) if m[0] not in plan.assignment.stored]
        for gradient in (False, True)
    }
    forward = [m for m in activations[False] if ".h." in m[0]]
    assert [m[1:] for m in forward] == [("all_reduce", ("y",))] * 4
    assert all(t.endswith((".add", ".add_1", ".c_proj.matmul")) for t, _, _ in forward)
    backward = [m for m in activations[True] if m[2] == ("y",) and m[0] != "transformer.wte.gather"]
    assert len(backward) == 4, backward
    assert {k for _, k, _ in backward} <= {"all_reduce", "reduce_scatter"}
    assert all(t.endswith((".layernormalization", "transformer.add")) for t, _, _ in backward), backward
    assert all(str(plan.assignment.stored[f"transformer.h.{i}.mlp.c_fc.weight"]) == "[_,y]" for i in range(2))


# The rest.


def test_data_parallel_rest_communicates_gradients_of_parameters_alone(language: Graph) -> None:
    plan = planned(language, "rest: data_parallel", mesh=(4,))
    assert all(x.is_replicated for x in plan.assignment.stored.values())
    travels = moved(plan.program, gradient=False) + moved(plan.program, gradient=True)
    assert {t for t, _, _ in travels} <= {*plan.assignment.stored, language.loss}
    assert {(k, a) for _, k, a in travels} == {("all_reduce", ("x",))}
    assert not any(s.inner for s in plan.assignment.strategies.values() if not s.splits)


def test_zero_stores_parameters_in_as_many_shards_as_their_sizes_allow(language: Graph) -> None:
    plan = planned(language, "rest: zero", mesh=(4,))
    for name, layout in plan.assignment.stored.items():
        splittable = any(s % 4 == 0 for s in language.tensors[name].shape or ())
        assert layout.shards(plan.mesh) == (4 if splittable else 1), name


def test_replicated_rest_splits_and_moves_nothing(perceptron: Graph) -> None:
    request = Request(
        4,
        load_profile("a100-80"),
        Settings(training=True),
        constraints=parse_constraints(SCHEMA + "rest: replicated", "pins.yaml"),
    )
    plan = make_plan(perceptron, request)
    assert not any(s.splits for s in plan.assignment.strategies.values())
    assert not moved(plan.program, gradient=False) + moved(plan.program, gradient=True)


def test_the_rest_splits_the_batch_over_the_axes_that_pins_leave(perceptron: Graph) -> None:
    text = """
operators:
  - {reads: Dense_0.weight, type: MatMul, strategy: {m: x, n: y}}
  - {reads: Dense_1.weight, type: MatMul, strategy: {m: x, k: y}}
rest: data_parallel
"""
    plan = planned(perceptron, text, mesh=(2, 2))
    named = {product(perceptron, w) for w in ("Dense_0.weight", "Dense_1.weight")}
    rest = [s for n, s in plan.assignment.strategies.items() if n not in named]
    assert {axes for s in rest for _, axes in s.splits} == {("x",)}
    both = planned(perceptron, text.replace("rest: data_parallel", "rest: {data_parallel: [x, y]}"), mesh=(2, 2))
    rest = [s for n, s in both.assignment.strategies.items() if n not in named]
    assert {axes for s in rest for _, axes in s.splits} == {("x", "y")}


def test_the_batch_may_be_another_dimension(perceptron: Graph) -> None:
    plan = planned(perceptron, "rest: data_parallel\nbatch: {x: 1}", mesh=(4,))
    first = plan.assignment.strategies[product(perceptron, "Dense_0.weight")]
    assert dict(first.splits) == {"k": ("x",)}
    refused(perceptron, "rest: zero\nbatch: {x: 2}", "input x of shape (64, 16) has no dimension 2")
    refused(perceptron, "rest: zero\nbatch: {z: 0}", "'z' is no input; they are x")


# A whole plan.


def test_a_plan_pinned_whole_is_priced_as_it_was_found(language: Graph, tmp_path: Path) -> None:
    free = planned(language, "mesh: 2x2")
    document = describe(free, bind={}, batch=None)
    path = tmp_path / "plan.json"
    path.write_text(document.model_dump_json(by_alias=True))
    again = make_plan(
        language, Request(4, free.request.profile, free.request.settings, constraints=read_constraints(path))
    )
    assert again.parts.total == free.parts.total
    assert again.assignment.strategies == free.assignment.strategies
    assert again.assignment.stored == free.assignment.stored
    other = make_plan(
        language,
        Request(4, free.request.profile, free.request.settings, constraints=constraints_of_plan(document, "p")),
    )
    assert other.parts.total == free.parts.total


def test_a_pinned_plan_is_proved_by_execution_and_says_what_was_pinned(language: Graph) -> None:
    weight = next(t.name for t in language.parameters if t.rank == 2)
    plan = planned(language, f"parameters: [{{match: {weight}, stored: '[_, x]'}}]\nrest: zero", mesh=(2, 2))
    assert verify_program(plan.program).ok
    pins = describe(plan, bind={}, batch=None).pins
    assert [(p.object, p.name, p.pin) for p in pins] == [
        ("parameter", weight, "stored [_,x]"),
        ("rest", "", "zero over x, y"),
    ]
    assert pins[0].source == "pins.yaml:2"


# Contradictions.


def test_two_pins_on_one_operator(perceptron: Graph) -> None:
    text = """operators:
  - {reads: "Dense_*.weight", type: MatMul, strategy: {m: x}}
  - {reads: Dense_1.weight, strategy: {n: x}}
  - {reads: Dense_0.weight, strategy: {m: x}}
"""
    name = product(perceptron, "Dense_1.weight")
    message = refused(perceptron, text, "pins contradict each other", "pins.yaml:3", "pins.yaml:4", name, mesh=(4,))
    assert "pins.yaml:5" not in message


def test_a_strategy_that_is_not_offered_lists_what_is_nearest_first(perceptron: Graph) -> None:
    name = product(perceptron, "Dense_0.weight")
    message = refused(perceptron, f"operators: [{{match: {name}, strategy: {{m: 3}}}}]", "1 pin cannot hold", mesh=(4,))
    assert "MatMul offers m=x" in message
    refused(perceptron, f"operators: [{{match: {name}, strategy: {{m: y}}}}]", "mesh 4 has no axis y", mesh=(4,))


def test_a_tensor_pin_against_an_operator_pin(perceptron: Graph) -> None:
    text = """operators:
  - {reads: Dense_0.weight, type: MatMul, strategy: {m: x}}
tensors:
  - {match: x, layout: "[_, x]"}
"""
    refused(perceptron, text, "pins.yaml:3", "pins.yaml:5", "tensor x layout [_,x]", mesh=(4,))


def test_readers_of_a_shared_parameter_under_a_target_that_keeps_one_layout() -> None:
    graph = import_bytes(transformer())
    shared = next(t.name for t in graph.parameters if len(graph.consumers[t.name]) == 1 and t.rank == 2)
    reader = graph.consumers[shared][0][0]
    text = f"""operators:
  - {{match: "{reader.name}", roles: {{x: "split:{_factor(graph, shared, 0)}"}}}}
parameters:
  - {{match: {shared}, stored: "[_, x]"}}
"""
    assert planned(graph, text, mesh=(2,)).objective_gap == 0  # a redistribution joins them
    message = refused(graph, text, "pins.yaml:3", "pins.yaml:5", mesh=(2,), target="mindspore")
    assert f"they share parameter {shared}" in message


def _factor(graph: Graph, parameter: str, dim: int) -> str:
    from planner.pricing import bind_rules

    op, slot = graph.consumers[parameter][0]
    dims = bind_rules(graph)[0][op.name].operands[slot]
    assert dims is not None
    return dims[dim][0]


def test_three_readers_of_one_tensor_in_three_layouts() -> None:
    """The planner holds a tensor in at most two layouts at once, and says so."""
    graph = import_bytes(fan(8, 8, 3))
    hidden = next(t for t, r in graph.consumers.items() if len(r) == 3)
    layouts = ["split:d0", "split:d1", "replicate"]
    entries = [
        f"  - {{match: {op.name}, roles: {{x: '{role}'}}}}"
        for (op, _), role in zip(graph.consumers[hidden], layouts, strict=True)
    ]
    message = refused(graph, "operators:\n" + "\n".join(entries), mesh=(4,))
    assert f"tensor {hidden}, which can be held in at most two layouts at once" in message
    assert all(f"pins.yaml:{line}" in message for line in (3, 4, 5))


def test_the_smallest_conflict_is_found_among_many() -> None:
    calls = 0

    def conflicting(some: Sequence[int]) -> bool:
        nonlocal calls
        calls += 1
        return {3, 77, 200} <= set(some)

    assert sorted(smallest_conflict(range(256), conflicting)) == [3, 77, 200]
    assert calls < 60
    assert smallest_conflict(range(4), lambda _: True) == []


def test_where_memory_alone_forbids_the_pins_that_take_it_are_named() -> None:
    graph = mlp(2, 16, 256)
    text = """parameters:
  - {match: "Dense_*.weight", stored: replicated}
  - {match: "Dense_*.bias", stored: "[x]"}
"""
    state = 2 * 256 * 256 * 16  # weight, gradient and two moments in single precision
    assert planned(graph, text, mesh=(4,), memory_limit=2 * state).peak_memory_bytes > state
    assert planned(graph, "mesh: 4", memory_limit=state).peak_memory_bytes < state
    with pytest.raises(InfeasibleError) as e:
        planned(graph, text, mesh=(4,), memory_limit=state)
    assert "it is pinned so at pins.yaml:3: parameter Dense_0.weight stored replicated and 1 more" in str(e.value)
    assert "without it a plan fits" in str(e.value)
    with pytest.raises(InfeasibleError, match="without them no plan that fits was found either"):
        planned(graph, text, mesh=(4,), memory_limit=100)


# Patterns.


def test_patterns_that_match_nothing_name_what_comes_near(language: Graph, perceptron: Graph) -> None:
    name = product(perceptron, "Dense_1.weight")
    wrong = name.replace("matmul", "matmal").replace("Dense", "Dens")
    refused(perceptron, f"operators: [{{match: '{wrong}*', strategy: replicated}}]", "no operator by name", name)
    refused(perceptron, "operators: [{type: Matmul, strategy: replicated}]", "did you mean MatMul")
    refused(perceptron, "parameters: [{match: Dense_0.wight, stored: replicated}]", "did you mean Dense_0.weight")
    refused(perceptron, "tensors: [{match: Dense_0.weight, layout: replicated}]", "pin it under `parameters`")
    refused(perceptron, "operators: [{type: Relu, reads: '*.weight', strategy: replicated}]", "no operator is all of")


def test_slashes_and_dots_between_modules_mean_the_same(perceptron: Graph) -> None:
    name = product(perceptron, "Dense_0.weight")
    assert "." in name
    plan = planned(perceptron, f"operators: [{{match: '{name.replace('.', '/')}', strategy: {{n: x}}}}]", mesh=(4,))
    assert strategy(plan, name).startswith("n=x")


def test_a_parameter_is_read_through_its_transpose() -> None:
    graph = import_bytes(transformer())
    pins = parse_constraints(SCHEMA + "operators: [{reads: '*', type: MatMul, strategy: replicated}]", "pins.yaml")
    plan = make_plan(graph, Request(2, load_profile("a100-80"), Settings(training=True), constraints=pins))
    assert plan.pins is not None
    assert {r.name for r in plan.pins.restrictions} < {op.name for op in graph.ops if op.type == "MatMul"}


# The file.


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "expected a mapping with schema: planner.constraints/1"),
        ("- a\n- b", "expected a mapping"),
        ("schema: planner.constraints/2", "found 'planner.constraints/2'"),
        (SCHEMA + "operator: []", "pins.yaml:2: operator: is not a key"),
        (SCHEMA + "operators:\n  - {match: a}", "pins.yaml:3: operators.0: pins nothing"),
        (SCHEMA + "operators:\n  - {strategy: {m: x}}", "pins.yaml:3: operators.0: names no operator"),
        (
            SCHEMA + "operators:\n  - match: a\n    strategy: {m: tp}",
            "pins.yaml:4: operators.0.strategy: factor m: 'tp'",
        ),
        (SCHEMA + "operators: [{match: a, strategy: {m: x, n: x}}]", "uses axis x twice"),
        (SCHEMA + "operators: [{match: a, strategy: {m: 0}}]", "expected a number of shards from 1"),
        (SCHEMA + "operators: [{match: a, strategy: {m: true}}]", "expected a number of shards from 1"),
        (SCHEMA + "operators: [{match: a, roles: {x: split}}]", "expected split:FACTOR"),
        (SCHEMA + "operators: [{match: a, shard: [8, 1]}]", "tensor by tensor"),
        (SCHEMA + "operators: [{match: [], strategy: replicated}]", "expected a pattern"),
        (SCHEMA + "tensors: [{match: a, layout: '[x,'}]", "expected a layout such as"),
        (SCHEMA + "tensors: [{match: a, layout: [x, 2]}]", "stand beside 'x'"),
        (SCHEMA + "tensors: [{match: a, layout: '[x]+x'}]", "uses axis x twice"),
        (SCHEMA + "tensors: [{match: a, layout: '[_]+x(mean)'}]", "expected sum, max, min"),
        (SCHEMA + "tensors: [{match: a}]", "pins nothing"),
        (SCHEMA + "parameters: [{match: a}]", "pins nothing"),
        (SCHEMA + "rest: fsdp", "pins.yaml:2: rest: expected search, replicated"),
        (SCHEMA + "rest: {replicated: [x]}", "expected search, replicated"),
        (SCHEMA + "mesh: 2x", "expected a mesh of up to four sizes"),
        (SCHEMA + "mesh: []", "found an empty list"),
        (SCHEMA + "batch: {x: -1}", "batch.x"),
        (SCHEMA + "rest: search\nrest: zero", "pins.yaml:3: 'rest' stands here twice"),
        (SCHEMA + "operators: [&a {match: b, strategy: replicated}, *a]", "aliases are not understood"),
        (SCHEMA + "rest: !!python/object/apply:os.system [ls]", "pins.yaml:2"),
        (SCHEMA + "rest: !!python/name:os.system", "is not understood"),
        (SCHEMA + "rest: [", "is neither YAML nor JSON"),
        ("a: b: c", "pins.yaml:1: is neither YAML nor JSON"),
        (SCHEMA + "? [a]\n: b", "expected a name before the colon"),
        ("{" * 50, "is"),
        (SCHEMA + "rest: " + "[" * 100_000, "is"),
        (SCHEMA + "rest: " + "[" * 200 + "]" * 200, "is nested too deeply"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_its_line(text: str, found: str) -> None:
    with pytest.raises(InputError) as e:
        parse_constraints(text, "pins.yaml")
    assert found in str(e.value)
    assert len(str(e.value)) < 600


def test_json_says_the_same_as_yaml_and_may_be_indented_with_tabs(tmp_path: Path) -> None:
    data = {
        "schema": "planner.constraints/1",
        "operators": [{"match": "a*", "strategy": {"m": "x", "n": ["y", "z"], "k": "_"}}],
        "tensors": [{"match": ["b", "c"], "layout": ["x", "_", ["y", "z"]]}, {"match": "d", "layout": [8, 1]}],
        "parameters": [{"match": "w", "stored": {"dims": [["x"], []], "partial": {"y": "sum"}}}],
    }
    yaml = """
schema: planner.constraints/1

operators: [{match: a*, strategy: {m: x, n: y.z, k: _}}]
tensors: [{match: [b, c], layout: "[x, _, y.z]"}, {match: d, layout: "[8, _]"}]
parameters: [{match: w, stored: "[x,_] + y"}]
"""

    tabs = json.dumps(data, indent="\t")
    assert [o.strategy for o in parse_constraints(tabs, "p").operators] == [
        o.strategy for o in parse_constraints(yaml, "p").operators
    ]
    assert [t.layout for t in parse_constraints(tabs, "p").tensors] == [
        t.layout for t in parse_constraints(yaml, "p").tensors
    ]
    assert [t.stored for t in parse_constraints(tabs, "p").parameters] == [
        t.stored for t in parse_constraints(yaml, "p").parameters
    ]
    assert parse_constraints(tabs, "p").tensors[1].where == "p:31"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(InputError, match="cannot be read"):
            read_constraints(path)
    binary = tmp_path / "b.yaml"
    binary.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(InputError, match="cannot be read"):
        read_constraints(binary)
    large = tmp_path / "l.yaml"
    large.write_text("#" * (9 * 2**20))
    with pytest.raises(InputError, match="at most"):
        read_constraints(large)


# One pin on the command line.


def test_a_pin_in_one_line() -> None:
    first = parse_pin("*.fc1.* m=x n=y") + parse_pin("*.weight stored=[_,x]") + parse_pin("rest=zero")
    assert str(first.operators[0].strategy) == "m=x n=y"
    assert str(first.parameters[0].stored) == "[_,x]"
    assert first.rest.kind == "zero"
    assert str(parse_pin("h layout=[8,1]").tensors[0].layout) == "[8, 1] shards"
    assert str(parse_pin("a type=MatMul shard=[[8,1],[1,2]]").operators[0].strategy) == "shard ((8, 1), (1, 2))"
    assert parse_pin("a replicated").operators[0].strategy.factors == ()
    assert parse_pin("mesh=8x2").meshes == ((8, 2),)


@pytest.mark.parametrize("text", ["", "a", "a b", "a m=", "m=x", "a m=x stored=[x]", "a =x"])
def test_a_pin_in_one_line_that_is_wrong(text: str) -> None:
    with pytest.raises((UsageError, InputError), match="--pin"):
        parse_pin(text)
