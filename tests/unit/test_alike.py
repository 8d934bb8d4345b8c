"""What is traced of a few blocks that do the same is what is traced of all of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from planner.builder import build
from planner.clock import Configuration
from planner.cost_models import load_profile
from planner.evaluate import program_of_configuration
from planner.frontends import import_bytes
from planner.frontends.resized.blocks import repeated_blocks
from planner.ir import DeviceMesh, Graph, Op, Role
from planner.lowering import Instruction, Program, Redistribute, Run, lower
from planner.pricing import Machine, PricedProblem, Settings, active_tensors, bind_rules, price
from planner.search.problem import FORBIDDEN
from planner.search.solve import solve
from planner.trace import Workload, count, trace
from planner.trace.alike import condensed

A100 = load_profile("a100-80")
LAYERS = 7
MODELS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "gpt": ("gpt", {}),
    "llama": ("llama", {"attention": "fused"}),
    "bert": ("bert", {}),
    "moe": ("moe", {}),
    "vit": ("vit", {}),
}
FUSED = {"chains": True, "attention": True, "copies": False}
WAYS: tuple[dict[str, bool], ...] = (
    {},
    {"gathered_again": True},
    {"chains": False, "attention": False},
    {"copies": True, "held_alone": True},
)


@lru_cache
def graph_of(name: str) -> Graph:
    architecture, sizes = MODELS[name]
    return import_bytes(build(architecture, {"layers": LAYERS, "batch": 8, **sizes}).SerializeToString(), name=name)


def solved(graph: Graph, mesh: tuple[int, ...], settings: Settings) -> tuple[PricedProblem, tuple[int, ...]]:
    rules, _ = bind_rules(graph)
    active = active_tensors(graph, rules) if settings.training else frozenset[str]()
    priced = price(graph, Machine(A100, DeviceMesh.of(*mesh), settings), rules, active, None)
    choice = solve(priced.problem).choice
    assert choice is not None
    return priced, tuple(choice)


def lowered(priced: PricedProblem, choice: Sequence[int]) -> Program:
    return lower(priced.graph, priced.machine.mesh, priced.rules, priced.active, priced.decode(choice))


@lru_cache
def priced_of(name: str, mesh: tuple[int, ...], settings: Settings) -> tuple[PricedProblem, tuple[int, ...]]:
    return solved(graph_of(name), mesh, settings)


def program_of(name: str, mesh: tuple[int, ...], settings: Settings, changes: int, seed: int) -> Program:
    """The cheapest program in which some operators, alone or with those that stand where they do, run otherwise."""
    priced, best = priced_of(name, mesh, settings)
    choice, dice = list(best), random.Random(seed)
    places = [list(place) for run in repeated_blocks(priced.graph) for place in zip(*run.blocks, strict=True)]
    for _ in range(changes):
        place = dice.choice([p for p in places if p[0] in priced.op_nodes])
        other = dice.randrange(1 << 16)
        for op in place if dice.random() < 0.5 else [dice.choice(place)]:
            costs = priced.problem.nodes[priced.op_nodes[op]].costs
            open_ = [k for k, cost in enumerate(costs) if cost < FORBIDDEN]
            choice[priced.op_nodes[op]] = open_[other % len(open_)]
    return lowered(priced, choice)


def both(
    monkeypatch: pytest.MonkeyPatch, program: Program, settings: Settings, **way: Any
) -> tuple[Workload, Workload]:
    few = trace(program, settings, **way)
    with monkeypatch.context() as patch:
        patch.setattr(count, "condensed", lambda *_, **__: None)
        return few, trace(program, settings, **way)


def values(workload: Workload) -> Iterator[object]:
    for f in fields(workload):
        value = getattr(workload, f.name)
        if f.name == "units":
            yield [[getattr(u, g.name) for g in fields(u)] for u in value]
        else:
            yield f.name, set(value) if f.name == "tied" else value


def same(few: Workload, all_: Workload) -> bool:
    return list(values(few)) == list(values(all_))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_equal_blocks_are_traced_once(monkeypatch: pytest.MonkeyPatch, name: str, training: bool) -> None:
    settings = Settings(training)
    program = program_of(name, (2, 2), settings, 0, 0)
    few = condensed(program, None, **FUSED)
    assert few is not None
    assert len(few.program.graph.ops) < len(program.graph.ops) * 5.5 / LAYERS
    for way in WAYS:
        assert same(*both(monkeypatch, program, settings, **way))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("name", MODELS)
def test_blocks_that_differ_are_traced_as_they_are(monkeypatch: pytest.MonkeyPatch, name: str, seed: int) -> None:
    dice = random.Random(seed)
    settings = Settings(dice.random() < 0.75)
    program = program_of(name, dice.choice([(4,), (2, 2)]), settings, dice.randint(1, 3), seed)
    stage_of = None
    if dice.random() < 0.4:
        ops = [op.name for op in program.graph.ops]
        cut = dice.randrange(1, len(ops))
        stage_of = {op: int(i >= cut) for i, op in enumerate(ops)}
    assert same(*both(monkeypatch, program, settings, stage_of=stage_of, **dice.choice(WAYS)))


@pytest.mark.parametrize(
    "way",
    [
        {"dp": 4, "zero": 3},
        {"dp": 2, "tp": 2, "sequence_parallel": True, "recompute": "full"},
        {"tp": 2, "cp": 2},
        {"dp": 2, "zero": 2, "recompute": "selective", "tp": 2},
    ],
    ids=lambda way: "-".join(f"{k}{v}" for k, v in way.items()),
)
@pytest.mark.parametrize("name", ["gpt", "llama", "bert"])
def test_configurations_are_traced_by_few_blocks(
    monkeypatch: pytest.MonkeyPatch, name: str, way: dict[str, Any]
) -> None:
    c = Configuration(**way)
    program = program_of_configuration(graph_of(name), c, A100)
    assert condensed(program, None, **FUSED) is not None
    assert same(*both(monkeypatch, program, Settings(True), gathered_again=True))


@pytest.mark.parametrize("block", [1, 3, 5])
def test_an_instruction_that_one_block_alone_has_keeps_it(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    """Programs are read back from files, too: that strategies are the same says nothing about instructions."""
    settings = Settings(True)
    program = program_of("gpt", (2, 2), settings, 0, 0)
    (run,) = [r for r in repeated_blocks(program.graph) if r.count == LAYERS]
    inside = set(run.blocks[block])
    redistributions = [
        i
        for i in program.instructions
        if isinstance(i, Redistribute) and not i.gradient and i.tensor in program.graph.producers and i.reader in inside
    ]
    again = [i for i in program.instructions if isinstance(i, Run) and i.backward and i.op in inside]
    extras: list[Instruction] = [*redistributions[:1], *again[:1]]
    for extra in extras:
        at = program.instructions.index(extra)
        other = replace(program, instructions=(*program.instructions[:at], extra, *program.instructions[at:]))
        few = condensed(other, None, **FUSED)
        assert few is None or set(run.blocks[block]) <= few.program.graph.producers.keys()
        assert same(*both(monkeypatch, other, settings, gathered_again=True))


def test_a_strategy_that_one_block_alone_has_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(True)
    program = program_of("gpt", (2, 2), settings, 0, 0)
    (run,) = [r for r in repeated_blocks(program.graph) if r.count == LAYERS]
    for place in range(run.size):
        op = run.blocks[3][place]
        slower = replace(program.strategies[op], parallelism=1, inner=())
        other = replace(program, strategies={**program.strategies, op: slower})
        assert same(*both(monkeypatch, other, settings))


def test_steps_that_one_block_alone_takes_keep_it(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(True)
    program = program_of_configuration(graph_of("gpt"), Configuration(dp=2, tp=2, sequence_parallel=True), A100)
    (run,) = [r for r in repeated_blocks(program.graph) if r.count == LAYERS]
    inside = {t for name in run.blocks[3] for t in program.graph.op(name).inputs}
    at = next(k for k, i in enumerate(program.instructions) if isinstance(i, Redistribute) and i.tensor in inside)
    redistribution = program.instructions[at]
    assert isinstance(redistribution, Redistribute)
    twice = replace(redistribution, steps=(*redistribution.steps, *redistribution.steps))
    other = replace(program, instructions=(*program.instructions[:at], twice, *program.instructions[at + 1 :]))
    assert same(*both(monkeypatch, other, settings))


def _handed_out(graph: Graph, middle: tuple[str, ...], _: tuple[str, ...]) -> Graph:
    return replace(graph, outputs=(*graph.outputs, middle[-1]))


def _read_again(graph: Graph, middle: tuple[str, ...], __: tuple[str, ...]) -> Graph:
    """What stands behind the blocks adds the result of the one in the middle."""
    last = repeated_blocks(graph)[-1].blocks[-1][-1]
    add = Op("again", "Add", (last, middle[-1]), ("again",), opset=17)
    at = max(k for k, op in enumerate(graph.ops) if last in op.outputs) + 1
    behind = [replace(op, inputs=tuple("again" if t == last else t for t in op.inputs)) for op in graph.ops[at:]]
    tensors = {**graph.tensors, "again": replace(graph.tensors[last], name="again")}
    return replace(graph, ops=(*graph.ops[:at], add, *behind), tensors=tensors)


def _shared(graph: Graph, middle: tuple[str, ...], other: tuple[str, ...]) -> Graph:
    """Two blocks between others read one weight."""
    place, slot, weight = next(
        (place, slot, t)
        for place, name in enumerate(middle)
        for slot, t in enumerate(graph.op(name).inputs)
        if graph.op(name).type == "MatMul" and graph.tensors[t].role is Role.PARAMETER
    )
    gone = graph.op(other[place]).inputs[slot]
    ops = tuple(replace(op, inputs=tuple(weight if t == gone else t for t in op.inputs)) for op in graph.ops)
    return replace(graph, ops=ops, tensors={t: v for t, v in graph.tensors.items() if t != gone})


def _two_constants(graph: Graph, middle: tuple[str, ...], other: tuple[str, ...]) -> Graph:
    """Some blocks between others read another constant."""
    constant = next(t for t, r in graph.consumers.items() if graph.tensors[t].role is Role.CONSTANT and len(r) == 9)
    run = next(r for r in repeated_blocks(graph) if middle in r.blocks)
    theirs = {name for block in run.blocks[run.blocks.index(middle) : run.blocks.index(other)] for name in block}
    ops = []
    for op in graph.ops:
        inputs = tuple("second" if t == constant and op.name in theirs else t for t in op.inputs)
        ops.append(replace(op, inputs=inputs))
    tensors = {**graph.tensors, "second": replace(graph.tensors[constant], name="second")}
    return replace(graph, ops=tuple(ops), tensors=tensors)


def _fed(graph: Graph, middle: tuple[str, ...], _: tuple[str, ...]) -> Graph:
    """Every block adds an input of its own, as blocks do that are given what was computed for earlier tokens."""
    run = next(r for r in repeated_blocks(graph) if middle in r.blocks)
    ends = {block[-1]: f"fed_{k}" for k, block in enumerate(run.blocks)}
    tensors, ops = dict(graph.tensors), list[Op]()
    for op in graph.ops:
        ops.append(op)
        if op.name in ends:
            made, fed = f"{op.name}_made", ends[op.name]
            tensors[fed] = replace(tensors[op.name], name=fed, role=Role.INPUT)
            tensors[made] = replace(tensors[op.name], name=made)
            ops[-1] = replace(op, name=made, outputs=(made,))
            ops.append(Op(op.name, "Add", (made, fed), (op.name,), opset=17))
    return replace(graph, ops=tuple(ops), tensors=tensors, inputs=(*graph.inputs, *ends.values()))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "edit", [_handed_out, _read_again, _shared, _two_constants, _fed], ids=lambda edit: edit.__name__.strip("_")
)
def test_what_tells_blocks_apart_in_the_graph_keeps_them(
    monkeypatch: pytest.MonkeyPatch, edit: Callable[[Graph, tuple[str, ...], tuple[str, ...]], Graph], training: bool
) -> None:
    plain = import_bytes(build("gpt", {"layers": 9, "batch": 8}).SerializeToString(), name="gpt")
    (run,) = repeated_blocks(plain)
    graph = edit(plain, run.blocks[3], run.blocks[6])
    settings = Settings(training)
    program = lowered(*solved(graph, (2, 2), settings))
    for way in WAYS:
        assert same(*both(monkeypatch, program, settings, **way))


class _Net:
    """A small network of matrix products, written operator by operator."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
        return name

    def op(self, kind: str, *inputs: str) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name]))
        return name

    def product(self, x: str) -> str:
        return self.op("MatMul", x, self.weight(64, 64))

    def block(self, x: str) -> str:
        return self.op("Add", x, self.product(self.op("Relu", self.product(x))))

    def graph(self, output: str) -> Graph:
        info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (32, 64)) for n in ("x", output)]
        graph = helper.make_graph(self.nodes, "net", info[:1], info[1:], self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
        return import_bytes(model.SerializeToString(), name="net")


def _skips_across() -> Graph:
    """Blocks of one run read what those of another run made, the last of them first."""
    net, x, skips = _Net(), "x", list[str]()
    for _ in range(8):
        x = net.block(x)
        skips.append(x)
    x = net.op("Tanh", net.product(x))
    for skip in reversed(skips):
        x = net.block(net.op("Add", x, net.product(skip)))
    return net.graph(x)


def _two_of_the_last() -> Graph:
    """Some blocks read one result of the last block of another run, the rest read another of its results."""
    net, x, y = _Net(), "x", ""
    for _ in range(6):
        y = net.product(net.op("Relu", net.product(x)))
        x = net.op("Add", x, y)
    ends = [x, y]
    x = net.op("Tanh", net.product("x"))
    for k in range(8):
        x = net.block(net.op("Add", x, net.product(ends[k >= 3])))
    return net.graph(x)


def _two_streams() -> Graph:
    """Equal blocks are joined to kernels otherwise near the beginning, where one of two paths is longer."""
    net, x, y = _Net(), "x", "x"
    for _ in range(3):
        y = net.product(y)
    for _ in range(12):
        x = net.op("Relu", net.product(x))
        y = net.op("Add", y, net.op("Mul", x, net.weight(64)))
    return net.graph(net.op("Add", net.product(x), y))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("make", [_skips_across, _two_of_the_last, _two_streams], ids=lambda f: f.__name__.strip("_"))
def test_blocks_that_are_told_apart_by_what_is_around_them(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], Graph], training: bool
) -> None:
    graph = make()
    settings = Settings(training)
    program = lowered(*solved(graph, (2, 2), settings))
    for way in WAYS:
        assert same(*both(monkeypatch, program, settings, **way))


def test_stages_that_go_back_are_traced_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(True)
    program = program_of("gpt", (2, 2), settings, 0, 0)
    ops = [op.name for op in program.graph.ops]
    stage_of = {op: int(k < len(ops) // 2) for k, op in enumerate(ops)}
    assert same(*both(monkeypatch, program, settings, stage_of=stage_of))
