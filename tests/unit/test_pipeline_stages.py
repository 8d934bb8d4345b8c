"""Plans cut into pipeline stages: where the cuts lie, what stages cost and hold, and what the plan file says."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.builder import build
from planner.cli.main import main
from planner.clock import Held, held_by_rank, redistribution_cost, step_of, usual, workload_of_plan
from planner.cost_models import HardwareProfile, load_profile
from planner.cost_models.accelerator import HostSpec
from planner.cost_models.link import CollectiveModel
from planner.cost_models.pipeline import ChunkTimes, simulate
from planner.errors import InfeasibleError, InputError
from planner.frontends import import_bytes
from planner.ir import Graph
from planner.lowering import Redistribute
from planner.planning import Planned, Request, make_plan, read_plan
from planner.planning.constraints import parse_pin
from planner.planning.pipeline import Parts, Pipelined, cut_points, pipelined, plan_in_parts, stage_of_operators
from planner.pricing import Settings

SAMPLES = Path(__file__).parents[2] / "sample_graphs"
PROFILE = load_profile("a100-80")


def gpt_graph(**sizes: int) -> Graph:
    base = {"layers": 4, "hidden": 256, "heads": 4, "vocab": 512, "seq": 64, "batch": 4}
    return import_bytes(build("gpt", {**base, **sizes}).SerializeToString(), name="gpt")


def punctual() -> HardwareProfile:
    """A machine whose host is never late and where nothing passes outside the model."""
    profile = load_profile("a100-80")
    return replace(profile, host=HostSpec())


def planned(kind: str = "gpt", devices: int = 2, **sizes: int) -> Planned:
    base = {"gpt": {"layers": 4, "hidden": 256, "heads": 4, "vocab": 512, "seq": 64, "batch": 4}}.get(kind, {})
    graph = import_bytes(build(kind, {**base, **sizes}).SerializeToString(), name=kind)
    return make_plan(graph, Request(devices, punctual(), Settings(training=True)))


@pytest.fixture(scope="module")
def gpt() -> Planned:
    return planned()


def slowest(work: list[float], crossing: list[float], points: tuple[int, ...]) -> float:
    ends = [0, *points, len(work)]
    return max(sum(work[a:b]) + (crossing[a] if a else 0.0) for a, b in pairwise(ends))


@given(st.data())
def test_no_other_cuts_have_a_faster_slowest_stage(data: st.DataObject) -> None:
    figure = st.integers(0, 9).map(float)
    work = data.draw(st.lists(figure, min_size=3, max_size=9))
    crossing = data.draw(st.lists(figure, min_size=len(work), max_size=len(work)))
    stages = data.draw(st.integers(2, 4))
    ways = [
        p
        for p in combinations(range(1, len(work)), stages - 1)
        if all(sum(work[a:b]) > 0 for a, b in pairwise([0, *p, len(work)]))
    ]
    if not ways:
        with pytest.raises(InputError, match="use fewer"):
            cut_points(work, np.array(crossing), stages)
        return
    found = cut_points(work, np.array(crossing), stages)
    assert found in ways
    best = min(slowest(work, crossing, p) for p in ways)
    assert slowest(work, crossing, found) == pytest.approx(best, rel=1e-4)


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_data_flows_to_later_stages_only_and_every_stage_computes(gpt: Planned, stages: int) -> None:
    found = pipelined(gpt, stages, 8)
    graph = gpt.priced.graph
    for op in graph.ops:
        for t in op.inputs:
            if t in graph.producers:
                assert found.stage_of[graph.producers[t].name] <= found.stage_of[op.name]
    assert set(found.stage_of.values()) == set(range(stages))
    assert all(s > 0 for s in found.run.busy_s)


def test_a_layer_is_not_cut_from_its_bias() -> None:
    found = pipelined(planned("mlp", layers=4, hidden=4096, features=64, classes=32, batch=64), 3, 4)
    for i in range(4):
        mine = [op.name for op in found.planned.priced.graph.ops if op.module == f"layers.{i}"]
        assert len(mine) == 2
        assert len({found.stage_of[n] for n in mine}) == 1


@pytest.mark.parametrize(("ranks", "products"), [(1, 2), (8, 0)])
def test_stages_are_cut_where_little_crosses_when_links_are_slow(ranks: int, products: int) -> None:
    """Between ranks of one server the work is shared; between servers only the few classes are sent."""
    sizes = {"features": 1024, "hidden": 1024, "layers": 4, "classes": 8, "batch": 65536}
    graph = import_bytes(build("mlp", sizes).SerializeToString(), name="mlp")
    constraints = parse_pin(f"mesh={ranks}") + parse_pin("rest=replicated")
    request = Request(ranks, load_profile("a100-80"), Settings(training=True), constraints=constraints)
    found = pipelined(make_plan(graph, request), 2, 4)
    assert sum(op.type == "MatMul" and found.stage_of[op.name] == 1 for op in graph.ops) == products


def test_what_is_computed_from_weights_stands_with_its_reader(gpt: Planned) -> None:
    graph = gpt.priced.graph
    turned = next(op for op in graph.ops if op.type == "Transpose" and op.inputs[0] == "transformer.wte.weight")
    reader = graph.consumers[turned.outputs[0]][0][0]
    position = [op.name for op in graph.ops].index(reader.name)
    stage_of = stage_of_operators(graph, [position])
    assert stage_of[turned.name] == stage_of[reader.name] == 1


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_stages_share_the_work_of_a_micro_batch(gpt: Planned, stages: int) -> None:
    found = pipelined(gpt, stages, 4)
    unit = gpt.priced.machine.unit_s
    parts = gpt.parts
    passes = parts.compute_forward + parts.compute_backward + parts.inside_operators
    once = (Redistribute,)
    passes += sum(
        redistribution_cost(gpt.priced, c)
        for c in gpt.program.redistributions()
        if isinstance(c, once) and c.tensor not in gpt.priced.parameter_nodes
    )
    assert sum(found.run.busy_s) / 4 == pytest.approx(passes * unit)


def test_one_stage_and_one_micro_batch_are_the_plan(gpt: Planned) -> None:
    found = pipelined(gpt, 1, 1)
    assert found.memory == (gpt.peak_memory_bytes,)
    assert found.step_time_s == pytest.approx(gpt.objective_s)
    assert found.run.bubble_fraction == 0


def test_more_micro_batches_shrink_the_bubble(gpt: Planned) -> None:
    bubbles = [pipelined(gpt, 4, m).run.bubble_fraction for m in (1, 4, 16, 64)]
    assert bubbles == sorted(bubbles, reverse=True)
    assert bubbles[0] >= 0.75


def test_early_stages_hold_more_micro_batches(gpt: Planned) -> None:
    found: Pipelined = pipelined(gpt, 4, 8)
    assert found.run.in_flight == (4, 3, 2, 1)
    assert found.memory[1] > found.memory[2]


def parted(graph: Graph, limit: int, *, recompute: Literal["auto", "none", "blocks"] = "none") -> Pipelined:
    request = Request(2, load_profile("a100-80"), Settings(training=True), memory_limit=limit, recompute=recompute)
    return plan_in_parts(graph, request, Parts(2, 4, None))[1]


def test_a_plan_that_fits_is_found_where_the_first_does_not() -> None:
    graph = gpt_graph(batch=8)
    roomy = max(parted(graph, 1 << 36).memory)
    tight = roomy * 9 // 10
    found = parted(graph, tight)
    assert max(found.memory) <= tight
    assert found.planned.memory_limit == tight


def test_a_stage_that_does_not_fit_is_named() -> None:
    with pytest.raises(InfeasibleError, match=r"stage \d of 2 holds|cannot fit"):
        parted(gpt_graph(batch=8), 1 << 20, recompute="auto")


def test_more_stages_than_operators_are_refused() -> None:
    with pytest.raises(InputError, match="--stages 64"):
        pipelined(planned("mlp", layers=2, hidden=16, features=16, classes=8, batch=4), 64, 4)


def search(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    model = str(SAMPLES / "gpt_tiny.onnx")
    assert main(["search", model, "--no-cache", "--out", str(folder), "--json", *options]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_plan_file_says_stages_and_can_be_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--devices", "8", "--stages", "2", "--micro-batches", "4", "--batch", "32")
    document = search(tmp_path, capsys, *options)
    plan = read_plan(tmp_path / "plan.json")
    assert (plan.devices, plan.mesh.devices, plan.cluster.devices) == (8, 4, 8)
    assert (plan.schedule.stages, plan.schedule.micro_batches, plan.schedule.order) == (2, 4, "1f1b")
    assert plan.model.batch == 8
    assert [sum(o.stage == s for o in plan.operators.values()) for s in range(2)] == [s.operators for s in plan.stages]
    assert (document["devices"], document["batch"], document["stages"]) == (8, 32, 2)
    assert document["step_time_s"] == plan.cost.step_time_s
    assert document["peak_memory_bytes"] == max(s.peak_memory_bytes for s in plan.stages)
    assert main(["verify", str(tmp_path / "plan.json"), str(SAMPLES / "gpt_tiny.onnx")]) == 0


def test_micro_batches_alone_accumulate_gradients(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = search(tmp_path, capsys, "--devices", "4", "--micro-batches", "4", "--batch", "64")
    plan = read_plan(tmp_path / "plan.json")
    assert (plan.schedule.stages, plan.schedule.micro_batches, plan.model.batch) == (1, 4, 16)
    assert document["bubble"] == 0
    accumulated = plan.stages[0]
    passes = 4 * ((accumulated.forward_s or 0.0) + (accumulated.backward_s or 0.0))
    assert document["step_time_s"] > passes
    assert document["gap"] == pytest.approx(1 - document["step_time_lower_bound_s"] / document["step_time_s"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--devices", "8", "--stages", "3"), "expected a divisor of --devices 8"),
        (("--devices", "8", "--stages", "2", "--micro-batches", "3"), "expected a divisor of the batch, 8"),
        (("--devices", "8", "--stages", "2", "--top-k", "2"), "one at a time"),
    ],
)
def test_parts_that_do_not_divide_are_a_usage_error(
    tmp_path: Path, options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["search", str(SAMPLES / "gpt_tiny.onnx"), "--out", str(tmp_path), *options]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("change", [("schedule", "stages", 3), ("operators", "lm_head.matmul", {"stage": 5})])
def test_stages_that_do_not_agree_are_refused(
    tmp_path: Path, change: tuple[str, str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    search(tmp_path, capsys, "--devices", "4", "--stages", "2")
    path = tmp_path / "plan.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    table, key, value = change
    if isinstance(value, dict):
        document[table][key] |= value
    else:
        document[table][key] = value
    path.write_text(json.dumps(document), encoding="utf-8")
    assert main(["verify", str(path), str(SAMPLES / "gpt_tiny.onnx")]) == 3
    assert "at stages" in capsys.readouterr().err


def test_layers_stay_whole_where_there_are_enough(gpt: Planned) -> None:
    found = pipelined(gpt, 4, 8)
    for layer in range(4):
        inside = [op.name for op in gpt.priced.graph.ops if f".h.{layer}." in f".{op.module}."]
        assert len({found.stage_of[n] for n in inside}) == 1, layer


# Figures of two stages of an MLP, by hand

ROWS, WIDTH, LAYERS = 256, 2048, 4


@pytest.fixture(scope="module")
def mlp() -> Planned:
    """Replicated on both devices of a stage: every rank computes all, nothing is communicated within a stage."""
    sizes = {"features": WIDTH, "hidden": WIDTH, "layers": LAYERS, "classes": 64, "batch": ROWS}
    graph = import_bytes(build("mlp", sizes).SerializeToString(), name="mlp")
    constraints = parse_pin("mesh=2") + parse_pin("rest=replicated")
    return make_plan(graph, Request(2, punctual(), Settings(training=True), constraints=constraints))


def late(plan: Planned) -> dict[str, int]:
    """The first layer alone in stage 0, all others in stage 1."""
    return {t.name: int(not t.name.startswith("layers.0.")) for t in plan.priced.graph.parameters}


def test_the_step_is_that_of_the_closed_form_plus_what_happens_once(mlp: Planned) -> None:
    found = pipelined(mlp, 2, 6, late(mlp))
    busy = [b / 6 for b in found.run.busy_s]
    assert found.run.total_s > 6 * max(busy)  # the other stage fills and drains, and what crosses takes its time
    alone = simulate("1f1b", [[ChunkTimes(b / 2, b / 2)] for b in busy], 6)
    assert found.run.total_s >= alone.total_s
    update = sum(
        int(mlp.priced.problem.nodes[n].costs[mlp.solution.choice[n]]) for n in mlp.priced.parameter_nodes.values()
    )
    each = dict.fromkeys(range(2), 0)
    for name, n in mlp.priced.parameter_nodes.items():
        each[found.stage_of[mlp.priced.graph.consumers[name][0][0].name]] += int(
            mlp.priced.problem.nodes[n].costs[mlp.solution.choice[n]]
        )
    assert sum(each.values()) == update
    assert each[1] > each[0]
    assert found.step_time_s - found.run.total_s == pytest.approx(max(each.values()) * mlp.priced.machine.unit_s)


def test_what_crosses_takes_the_time_of_its_bytes(mlp: Planned) -> None:
    """One micro-batch: forward and backward of both stages, and the activations there and their gradient back.  Both
    ranks of a stage hold them, so that each sends half and gathers the other half."""
    found = pipelined(mlp, 2, 1)
    crossing = found.run.total_s - sum(found.run.busy_s)
    model = CollectiveModel(mlp.priced.machine.profile)
    size = float(ROWS * WIDTH * 2)
    sent = float(model.seconds("permute", size / 2, model.group((2, 2), (0,))))
    gathered = float(model.seconds("all_gather", size, model.group((2, 2), (1,))))
    one_way = sent + gathered + mlp.priced.machine.profile.host.handover_s
    assert crossing == pytest.approx(2 * one_way)


@pytest.mark.parametrize("micro_batches", [1, 8])
def test_a_stage_holds_its_parameters_what_it_keeps_and_what_it_was_sent(mlp: Planned, micro_batches: int) -> None:
    found = pipelined(mlp, 2, micro_batches, late(mlp))
    graph = mlp.priced.graph
    each = mlp.request.settings.per_parameter
    sent = ROWS * WIDTH * 2
    for stage in range(2):
        own = [t for t in graph.parameters if found.stage_of[graph.consumers[t.name][0][0].name] == stage]
        elements = sum(t.elements for t in own)
        # While activations wait, gradients are there from the micro-batches before, and one more is made beside them.
        first = (each.total - (each.gradient if micro_batches == 1 else 0)) * elements
        most = each.total * elements + each.gradient * max(t.elements for t in own)
        layers = sum(len(t.shape or ()) == 2 for t in own)
        flying = found.run.in_flight[stage]
        # What products read, as ReLUs of this stage have made it: ROWS x WIDTH values of two bytes; and what was sent
        # to it.  What a ReLU and the loss read may be kept as well.
        relus = sum(op.type == "Relu" and found.stage_of[op.name] == stage for op in graph.ops)
        assert relus == (layers if stage else 0)
        least = flying * (relus + stage) * sent
        assert max(first + least, each.total * elements) <= found.memory[stage]
        assert found.memory[stage] <= most + 2 * least + 4 * flying * sent
    one, eight = pipelined(mlp, 2, 1), pipelined(mlp, 2, 8)
    assert eight.memory[0] - one.memory[0] >= sent  # one more in flight at the first stage
    # Copies of weights, and gradients as they are made, are held throughout as soon as there are several.
    copied = sum(t.elements * 2 * each.gradient for t in graph.parameters)
    assert one.memory[1] <= eight.memory[1] <= one.memory[1] + copied


def test_what_the_backward_reads_is_held_for_every_micro_batch_in_flight(mlp: Planned) -> None:
    """What a product was sent, and what ReLUs made: their backward pass reads the result, not what they were sent.
    Every operator is a kernel by itself."""
    alone = replace(mlp.request.profile, framework=replace(mlp.request.profile.framework, joins_kernels=False))
    mlp = make_plan(mlp.priced.graph, replace(mlp.request, profile=alone))
    found = pipelined(mlp, 4, 8)
    graph, sent = mlp.priced.graph, ROWS * WIDTH * 2
    workload = workload_of_plan(mlp.priced, mlp.program, None, found.chunk_of)
    for stage in (1, 2):
        mine = [op for op in graph.ops if found.stage_of[op.name] == stage]
        made = {t for op in mine for t in op.outputs}
        products = sum(op.type == "MatMul" and op.inputs[0] not in made for op in mine)
        relus = sum(op.type == "Relu" for op in mine)
        assert products + relus == 1
        waiting = sum(workload.units[u].saved_bytes for u in workload.chunks[stage])
        assert waiting == (products + relus) * sent
        assert held(found)[stage].activations == found.run.in_flight[stage] * waiting


def held(found: Pipelined) -> list[Held]:
    """What a device of each stage holds."""
    made = found.planned
    workload = workload_of_plan(made.priced, made.program, None, found.chunk_of)
    c = usual(made.program, made.request.settings).with_(pp=found.stages, micro_batches=found.micro_batches)
    step = step_of(workload, c, made.priced.machine.profile, workload.chunks)
    ranks = held_by_rank(workload, c, workload.chunks, step.pipeline.activation_bytes)
    assert tuple(rank.peak for rank in ranks) == found.memory
    return ranks


def test_gradients_of_stored_shards_wait_whole_for_the_last_micro_batch() -> None:
    """Where stored shards are gathered once a step, gradients are summed once a step, too."""
    graph = gpt_graph(batch=8)
    request = Request(2, PROFILE, Settings(training=True), constraints=parse_pin("rest=zero"))
    (one,) = held(pipelined(make_plan(graph, request), 1, 4))
    assert one.gradients == sum(t.elements * 2 for t in graph.parameters)
    assert one.optimizer < 12 * sum(t.elements for t in graph.parameters)


def test_a_table_tied_across_stages_is_held_by_each() -> None:
    made = planned()
    found = pipelined(made, 2, 4)
    table = "transformer.wte.weight"
    assert found.shared == (table,)
    graph, each = made.priced.graph, made.request.settings.per_parameter
    for stage, x in enumerate(held(found)):
        mine = {
            t.name: t.elements // made.assignment.stored[t.name].shards(made.mesh)
            for t in graph.parameters
            if stage in {found.stage_of[op.name] for op, _ in graph.consumers[t.name]}
        }
        assert table in mine
        assert x.optimizer == (each.optimizer + each.master) * sum(mine.values())


def test_recomputation_counts_as_backward() -> None:
    graph = gpt_graph()
    profile, settings = load_profile("a100-80"), Settings(training=True)
    plain = pipelined(make_plan(graph, Request(1, profile, settings)), 2, 4)
    again = pipelined(make_plan(graph, Request(1, profile, settings, recompute="blocks")), 2, 4)
    forward = [[p.end_s - p.begin_s for p in x.run.timeline if p.kind == "F"] for x in (plain, again)]
    assert sum(forward[1]) == pytest.approx(sum(forward[0]), rel=1e-6)
    assert sum(again.run.busy_s) > sum(plain.run.busy_s)


@pytest.mark.parametrize("how", [("--bind", "batch=8"), ("--batch", "8")])
def test_the_batch_is_divided_or_the_command_refused(
    tmp_path: Path, how: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A model whose first input has no samples, and whose batch is a symbol."""
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 16, 32])
    position = onnx.helper.make_tensor_value_info("position", onnx.TensorProto.FLOAT, [16, 32])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", 16, 32])
    weights = [onnx.numpy_helper.from_array(np.ones((32, 32), np.float32), f"w{i}") for i in range(2)]
    nodes = [
        onnx.helper.make_node("Add", ["x", "position"], ["a"]),
        onnx.helper.make_node("MatMul", ["a", "w0"], ["b"]),
        onnx.helper.make_node("Relu", ["b"], ["c"]),
        onnx.helper.make_node("MatMul", ["c", "w1"], ["y"]),
    ]
    graph = onnx.helper.make_graph(nodes, "g", [position, x], [y], weights)
    path = tmp_path / "model.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10), str(path))
    arguments = ["search", str(path), "--devices", "2", "--mode", "training", "--micro-batches", "4", "--no-cache"]
    status = main([*arguments, *how, "--out", str(tmp_path / "plan"), "--json"])
    if how[0] == "--bind":
        assert status == 2
        assert "by --batch, not by --bind" in capsys.readouterr().err
        return
    assert status == 0
    assert json.loads(capsys.readouterr().out)["batch"] == 8
    assert read_plan(tmp_path / "plan" / "plan.json").inputs["x"].shape == [2, 16, 32]


def test_several_plans_are_not_described_by_the_stages_of_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["search", str(SAMPLES / "gpt_tiny.onnx"), "--devices", "8", "--batch", "32", "--no-cache"]
    assert main([*arguments, "--strategy", "megatron:pp=2", "--top-k", "2", "--out", str(tmp_path)]) == 2
    assert "one at a time" in capsys.readouterr().err


def test_the_plan_says_the_limit_of_a_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = search(tmp_path, capsys, "--devices", "4", "--stages", "2", "--memory-limit", "10GiB")
    assert document["memory_limit_bytes"] == read_plan(tmp_path / "plan.json").cluster.memory_limit_bytes == 10 * 2**30
