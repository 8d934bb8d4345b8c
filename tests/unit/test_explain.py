"""`planner explain`: costs are the plan's own, alternatives are what a fresh search finds, limits are what binds."""

from __future__ import annotations

import json
import re
import shlex
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from planner.builder import build
from planner.cli.main import main
from planner.errors import InputError, PlannerError
from planner.explain import ExplanationDocument, explanation_text
from planner.explain.find import find_operator
from planner.explain.splits import OtherThan, pin_text, splits_into
from planner.explain.wording import why
from planner.frontends import load_model
from planner.ir import DeviceMesh
from planner.planning import read_plan
from planner.pricing import bind_rules
from planner.requests.explanation import explanation
from planner.rules.strategy import strategies

MLP = Path(__file__).parents[2] / "sample_graphs" / "mlp.onnx"
GPT = Path(__file__).parents[1] / "golden" / "emit" / "plans" / "gpt-tensor.json"
MATMUL = "layers.1.matmul"
RELU = "relu"


@cache
def wide() -> Path:
    """A model whose plan is split in several ways, and which is searched in no time."""
    path = Path(mkdtemp(prefix="explain-")) / "wide.onnx"
    sizes = {"features": 256, "hidden": 2048, "layers": 3, "classes": 64, "batch": 512}
    path.write_bytes(build("mlp", sizes).SerializeToString())
    return path


def searched(folder: Path, *extra: str, devices: int = 4) -> Path:
    arguments = ["search", str(wide()), "--devices", str(devices), "--no-cache", "--force", "--out", str(folder)]
    assert main([*arguments, *extra]) == 0
    return folder / "plan.json"


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return searched(tmp_path_factory.mktemp("wide"))


@pytest.fixture(scope="module")
def explained(plan: Path) -> ExplanationDocument:
    return explanation(plan, MATMUL, most=2)


def fresh(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    program, *arguments = shlex.split(command)
    assert program == "planner"
    assert main([*arguments, "--no-cache", "--force", "--json", "--out", str(folder)]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_alternatives_are_what_a_fresh_search_finds(
    explained: ExplanationDocument, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(explained.alternatives) == 2
    for a in explained.alternatives:
        found = fresh(a.command, tmp_path, capsys)
        for key in ("objective_s", "objective_lower_bound_s", "gap", "step_time_s", "peak_memory_bytes", "mesh"):
            assert getattr(a, key) == found[key], (a.pin, key)


def test_the_best_alternatives_are_the_best_of_all_that_are_offered(plan: Path) -> None:
    """Every split that some mesh offers, pinned one after the other."""
    explained = explanation(plan, RELU, most=2)
    model = str(plan.parent / "model.onnx")
    graph = load_model(model)
    rules, _ = bind_rules(graph)
    costs = {}
    for mesh in (DeviceMesh.of(4), DeviceMesh.of(2, 2)):
        for strategy in strategies(rules[RELU], mesh, training=True):
            split = splits_into(strategy, mesh)
            text = pin_text(RELU, split, graph)
            assert text is not None
            out = plan.parent / "each"
            if (
                split not in costs
                and main(["search", model, "--devices", "4", "--no-cache", "--force", "--out", str(out), "--pin", text])
                == 0
            ):
                costs[split] = read_plan(out / "plan.json").cost.step_time_s
    assert explained.choice is not None
    others = sorted(cost for split, cost in costs.items() if dict(split) != explained.choice.split)
    assert [a.step_time_s for a in explained.alternatives] == others[:2]


def test_differences_add_up_by_part(explained: ExplanationDocument, plan: Path) -> None:
    unit = read_plan(plan).cost.price_resolution_s
    for a in explained.alternatives:
        for parts, whole in (
            (a.step_parts_difference_s, a.difference_s),
            (a.parts_difference_s, a.objective_difference_s),
        ):
            assert sum(round(s / unit) for s in parts.values()) == round(whole / unit)
        assert round(a.step_time_s / unit) - round(explained.plan.step_time_s / unit) == round(a.difference_s / unit)


def test_what_the_choice_costs_is_what_the_plan_says(explained: ExplanationDocument, plan: Path) -> None:
    document = read_plan(plan)
    choice = explained.choice
    assert choice is not None
    runs = document.operators[MATMUL].runs
    assert choice.runs_s == {r.phase: r.seconds for r in runs}
    assert choice.inside_s == sum(r.inside_s for r in runs)
    moved = {(r.tensor, r.direction): r.seconds for r in document.redistributions}
    for m in (*choice.reads, *choice.writes):
        assert m.seconds == moved[m.tensor, m.direction]
    assert explained.plan.parts_s == document.cost.parts_s


def test_a_reason_is_given_once(tmp_path: Path) -> None:
    """Where alternatives of several operators lead to the same plan, they change the same things."""
    found = explanation(searched(tmp_path), None, most=1)
    with_one = [t for t in found.operators if t.alternative is not None]
    assert len(with_one) > 1
    reasons = [t.alternative.why for t in with_one if t.alternative]
    alike = [t.model_copy(update={"alternative": with_one[0].alternative}) for t in with_one]
    text = explanation_text(found.model_copy(update={"operators": alike}))
    assert text.count(f"; it {reasons[0]}") == 1
    said = f"; it is so for the reason given for {with_one[0].choice.operator}"
    assert text.count(said) == len(with_one) - 1
    text = explanation_text(found)
    assert all(text.count(f"; it {reason}") == 1 for reason in reasons)


def test_operators_are_found_by_name_suffix_and_module() -> None:
    document = read_plan(GPT)
    gelu, product = "transformer.h.0.mlp.gelu", "transformer.h.0.mlp.c_fc.matmul"
    assert find_operator(document, product) == product
    assert find_operator(document, "h.0.mlp.gelu") == gelu
    assert find_operator(document, "transformer/h/0/mlp/c_fc/matmul") == product
    with pytest.raises(InputError, match=r"2 operators go by it: transformer\.h\.0\.mlp\.gelu, transformer\.h\.1"):
        find_operator(document, "mlp.gelu")
    with pytest.raises(InputError, match=r"did you mean transformer\.h\.0\.mlp\.gelu"):
        find_operator(document, "gelo")


def test_a_memory_limit_that_binds_is_named_with_the_limit_that_does(tmp_path: Path) -> None:
    free = searched(tmp_path / "free", devices=2)
    peak = read_plan(free).cost.peak_memory_bytes
    tight = searched(tmp_path / "tight", "--memory-limit", str(peak * 31 // 32), devices=2)
    found = explanation(tight, MATMUL, most=1)
    memory = next(entry for entry in found.limits if entry.kind == "memory")
    assert memory.binding
    assert memory.outcome is not None
    assert memory.outcome.step_time_s == read_plan(free).cost.step_time_s
    assert "memory limit" in found.binding
    assert memory.smallest is not None
    assert memory.largest_without is not None
    step_s = read_plan(tight).cost.step_time_s
    at = [
        read_plan(searched(tmp_path / str(limit), "--memory-limit", str(limit), devices=2)).cost.step_time_s
        for limit in (memory.smallest, memory.largest_without)
    ]
    assert at[0] < step_s
    # A search under a limit that binds need not find what one under a lower limit found, but nothing better is there.
    assert at[1] >= step_s


def test_pins_that_cost_something_are_named(tmp_path: Path) -> None:
    pinned = searched(tmp_path, "--pin", f"{MATMUL} m=4", "--pin", f"{RELU} replicated")
    found = explanation(pinned, RELU, most=1)
    pins = {entry.name: entry for entry in found.limits if entry.kind == "pin"}
    assert set(pins) == {"all pins", f"--pin '{MATMUL} m=4'", f"--pin '{RELU} replicated'"}
    assert pins["all pins"].binding
    assert not found.alternatives
    assert all(f"contradicts --pin '{RELU} replicated'" in r.reason for r in found.refused)


def test_restrictions_that_say_the_same_bind_together(tmp_path: Path) -> None:
    pinned = searched(
        tmp_path, "--pin", "mesh=4", "--mesh", "4", "--pin", f"{MATMUL} n=4", "--pin", f"{MATMUL} shard_out=[[1,4]]"
    )
    other = searched(tmp_path / "other", "--pin", f"{MATMUL} m=4", "--pin", f"{MATMUL} shard_out=[[4,1]]")
    assert explanation(pinned, MATMUL, most=1).binding.startswith("no limit costs anything")
    found = explanation(other, MATMUL, most=1)
    assert {entry.name: entry.binding for entry in found.limits if entry.kind in ("pin", "all")} == {
        "all pins": True,
        f"--pin '{MATMUL} m=4'": False,
        f"--pin '{MATMUL} shard_out=[[4,1]]'": False,
        "all of these together": True,
    }
    assert found.binding.startswith("all pins: without them, the step is shorter by")


def test_a_mesh_that_was_asked_for_is_lifted(tmp_path: Path) -> None:
    free = read_plan(searched(tmp_path / "a")).cost.step_time_s
    other = "2x2" if str(read_plan(tmp_path / "a" / "plan.json").mesh) == "4" else "4"
    found = explanation(searched(tmp_path / "b", "--mesh", other), MATMUL, most=1)
    mesh = next(entry for entry in found.limits if entry.kind == "mesh")
    assert mesh.binding == (found.plan.step_time_s > free)
    assert mesh.outcome is not None
    assert mesh.outcome.step_time_s == free
    assert {a.mesh for a in found.alternatives} == {other}


def test_sizes_that_do_not_divide_are_named(tmp_path: Path) -> None:
    found = explanation(searched(tmp_path, devices=3), "layers.2.matmul", most=1)
    assert {(u.size, u.shards) for u in found.undivided} == {(512, 3), (2048, 3), (64, 3)}


def test_the_plan_as_a_whole_ranks_its_operators(plan: Path) -> None:
    found = explanation(plan)
    document = read_plan(plan)
    assert [m.mesh for m in found.meshes] == [c.mesh for c in document.search.candidates]
    totals = [t.total_s for t in found.operators]
    assert totals == sorted(totals, reverse=True)
    assert all(t.alternative is not None or t.reason for t in found.operators)
    seconds = [m.seconds for m in found.redistributions]
    assert seconds[0] == max(r.seconds for r in document.redistributions)


def test_a_pipeline_is_explained_by_the_search_it_came_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline = searched(tmp_path / "a", "--stages", "2", "--micro-batches", "2")
    (best,) = explanation(pipeline, RELU, most=1).alternatives
    found = fresh(best.command, tmp_path / "b", capsys)
    assert (best.objective_s, best.step_time_s) == (found["objective_s"], found["step_time_s"])
    assert best.peak_memory_bytes == found["peak_memory_bytes"]


def test_a_known_configuration_is_explained_with_its_pins(tmp_path: Path) -> None:
    found = explanation(searched(tmp_path, "--strategy", "zero1"), MATMUL, most=1)
    strategy = next(entry for entry in found.limits if entry.kind == "pin")
    assert strategy.name == "--strategy zero1"
    assert strategy.binding
    assert any("contradicts --strategy zero1" in r.reason for r in found.refused)


def test_constraints_are_taken_from_the_plan_and_not_from_the_file(tmp_path: Path) -> None:
    pins = tmp_path / "pins.yaml"
    pins.write_text(
        f"schema: planner.constraints/1\noperators:\n  - {{match: {MATMUL}, strategy: {{m: 4}}}}\n", encoding="utf-8"
    )
    made = searched(tmp_path / "a", "--constraints", str(pins))
    with_file = explanation(made, RELU, most=1)
    pins.unlink()
    without = explanation(made, RELU, most=1)
    assert without.alternatives == with_file.alternatives
    assert not with_file.notes
    assert any(str(pins) in note for note in without.notes)


def test_a_plan_that_is_not_what_the_search_finds_is_compared_as_it_is_priced_today(plan: Path, tmp_path: Path) -> None:
    document = read_plan(plan)
    other = searched(tmp_path, "--pin", f"{MATMUL} m=4")
    changed = read_plan(other).model_copy(update={"search": document.search})
    other.write_text(changed.model_dump_json(by_alias=True), encoding="utf-8")
    found = explanation(other, MATMUL, most=1)
    assert any("not the one at hand" in note for note in found.notes)
    assert found.plan.objective_s == changed.cost.objective_s


def test_what_is_missing_is_said(plan: Path, tmp_path: Path) -> None:
    alone = tmp_path / "plan.json"
    alone.write_bytes(plan.read_bytes())
    with pytest.raises(InputError, match=r"no model\.onnx lies beside it"):
        explanation(alone)
    with pytest.raises(InputError, match="the model given is another one"):
        explanation(alone, model=MLP)
    document = read_plan(plan)
    old = document.model_copy(update={"search": document.search.model_copy(update={"request": None})})
    alone.write_text(old.model_dump_json(by_alias=True), encoding="utf-8")
    with pytest.raises(InputError, match="does not say what was asked for"):
        explanation(alone, model=plan.parent / "model.onnx")


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("devices", 8, "expected 4 as of cluster.devices, found 8"),
        ("hardware", "/etc/passwd", "keeps no profile of /etc/passwd"),
        ("strategy", "-no-such", "-no-such"),
        ("pins", ["--json"], "--json"),
        ("mesh", "4x4", "has 16 devices"),
        ("constraints", {"name": "..", "text": "schema: none"}, "found 'none'"),
    ],
)
def test_a_request_that_was_tampered_with_is_an_error(
    plan: Path, tmp_path: Path, key: str, value: object, told: str
) -> None:
    document = json.loads(plan.read_text())
    document["search"]["request"][key] = value
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(document))
    with pytest.raises(PlannerError, match=re.escape(told)):
        explanation(path, model=plan.parent / "model.onnx")


def test_the_command_prints_text_or_one_document(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["explain", str(plan), RELU, "--alternatives", "1"]) == 0
    text = capsys.readouterr().out
    assert "alternatives" in text
    assert f"--pin '{RELU} " in text
    assert main(["explain", str(plan), RELU, "--alternatives", "1", "--json"]) == 0
    captured = capsys.readouterr()
    document = ExplanationDocument.model_validate_json(captured.out)
    assert captured.out.isascii()
    assert document.searches == captured.err.count("searching: ")


HOSTILE = ("a b", "x=1", "*", "[q]", "'; rm -rf /", "<script>", "?", "q\u3000r=s", "zero\u200bwide")


def hostile_model(folder: Path) -> Path:
    """A chain of operators with these names."""
    names = ["in", *HOSTILE]
    nodes = [helper.make_node("Relu", [a], [b]) for a, b in pairwise(names)]
    put, out = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [8, 64]) for n in (names[0], names[-1]))
    graph = helper.make_graph(nodes, "g", [put], [out])
    path = folder / "hostile.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), path)
    return path


def test_names_that_pins_cannot_spell_are_pinned_by_patterns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = hostile_model(tmp_path)
    folder = tmp_path / "plan"
    assert main(["search", str(model), "--devices", "4", "--no-cache", "--out", str(folder)]) == 0
    for name in HOSTILE:
        for a in explanation(folder / "plan.json", name, most=1).alternatives:
            assert a.objective_s == fresh(a.command, tmp_path / "again", capsys)["objective_s"]
    graph = load_model(model)
    pinned = [pin_text(name, (("d0", 4),), graph) for name in HOSTILE]
    assert None not in pinned
    capsys.readouterr()
    assert main(["explain", str(folder / "plan.json"), HOSTILE[-1], "--alternatives", "1"]) == 0
    told = capsys.readouterr().out
    assert all(c.isprintable() or c == "\n" for c in told)
    assert "zero\\u200bwide" in told


def test_a_split_is_other_than_those_known_whatever_the_mesh(plan: Path) -> None:
    rule = bind_rules(load_model(plan.parent / "model.onnx"))[0][MATMUL]
    pin = OtherThan(known=((("m", 2), ("n", 2)),))
    two = DeviceMesh.of(2, 2)
    admitted = {splits_into(s, two) for s in strategies(rule, two, training=True) if pin.admits(s, two)}
    every = {splits_into(s, two) for s in strategies(rule, two, training=True)}
    assert every - admitted == {(("m", 2), ("n", 2))}


@pytest.mark.parametrize(
    ("difference", "step", "parts", "sentence"),
    [
        (
            2e-6,
            {"collectives": 3e-6, "optimizer": -1e-6},
            {"activations": 4e-6},
            "loses by 3 us more of collectives that nothing hides, against 1 us less of optimizer "
            "(one after the other: 4 us more of activations moved)",
        ),
        (-1e-6, {"optimizer": -1e-6}, {}, "is better by 1 us less of optimizer"),
        (0.0, {"optimizer": 0.0}, {}, "takes as long"),
        (0.0, {"compute": 1e-6, "host": -1e-6}, {}, "takes as long: 1 us more of computing, made up by"),
    ],
)
def test_differences_are_said_in_one_sentence(
    difference: float, step: dict[str, float], parts: dict[str, float], sentence: str
) -> None:
    assert sentence in why(difference, step, parts)
