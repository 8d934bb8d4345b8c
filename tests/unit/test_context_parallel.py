"""A long sequence divided among ranks, in decomposed and in fused attention: pinned, lowered and executed, training."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from planner.lowering import Program, lower
from planner.pricing import PricedProblem
from planner.search.solve import solve
from planner.verify.check import verify_program
from tests.unit.semantics_model import Sizes, transformer
from tests.unit.test_semantics import pinned, priced

PROFILE = "a100-80"
BATCH, SEQUENCE, HEADS, KEY_HEADS, DEPTH = 2, 12, 4, 2, 4


def planned(p: PricedProblem, roles: Mapping[str, list[str]]) -> Program:
    """The cheapest program in which the named operators play these roles, one per mesh axis."""
    keep = {}
    for name, node in p.op_nodes.items():
        if name in roles:
            keep[node] = [[str(r) for r in s.roles] for s in p.tables[name].strategies].index(roles[name])
    solution = solve(pinned(p.problem, keep))
    assert solution.status == "optimal"
    return lower(p.graph, p.machine.mesh, p.rules, p.active, p.decode(solution.choice))


def gathered(program: Program) -> set[str]:
    """Values that are put together from their shards."""
    steps = [(c.tensor, str(s)) for c in program.redistributions() if not c.gradient for s in c.steps]
    return {tensor for tensor, step in steps if step.startswith("all_gather")}


@pytest.fixture(scope="module")
def decomposed() -> PricedProblem:
    return priced(transformer(layers=1, sizes=Sizes(batch=2, sequence=6, hidden=8, heads=2, vocabulary=12)), PROFILE, 2)


def test_decomposed_attention_offers_sequence_and_vocabulary(decomposed: PricedProblem) -> None:
    def roles(name: str) -> set[str]:
        return {str(s.roles[0]) for s in decomposed.tables[name].strategies}

    assert roles("l0.scores") >= {"m", "n"}  # queries, keys
    assert roles("l0.weights") >= {"d2", "d3"}
    assert roles("l0.context") >= {"m", "k"}
    assert roles("embedded") >= {"v"}
    assert roles("logits") >= {"m", "n"}
    assert roles("loss") >= {"d0", "c"}


def test_queries_are_split_and_keys_gathered(decomposed: PricedProblem) -> None:
    rows = {"l0.norm1": "d1", "l0.q": "m", "l0.k": "m", "l0.v": "m", "l0.q.heads": "d2", "l0.k.heads": "d3"}
    rows |= {"l0.v.heads": "d2", "l0.scores": "m", "l0.weights": "d2", "l0.context": "m", "l0.joined": "d1"}
    rows |= {"l0.projected": "m", "l0.middle": "d1", "l0.up": "m", "l0.down": "m"}
    program = planned(decomposed, {name: [role] for name, role in rows.items()})
    assert gathered(program) >= {"l0.k.heads", "l0.v.heads"}
    assert not any(t.startswith(("l0.q", "l0.scores", "l0.weights", "l0.context")) for t in gathered(program))
    assert verify_program(program).ok


def test_keys_are_split_alone(decomposed: PricedProblem) -> None:
    """Every rank sees all queries, and weighs its part of the values: the outputs are a pending sum."""
    roles = {"l0.scores": ["n"], "l0.scaled": ["d3"], "l0.weights": ["d3"], "l0.context": ["k"]}
    program = planned(decomposed, roles)
    assert program.strategies["l0.context"].results[0].partial_axes
    assert verify_program(program).ok


def fused(*, flat: bool) -> bytes:
    """Tokens (batch, sequence, hidden) through causal grouped attention to a mean."""
    rng = np.random.default_rng(3)
    width, key_width = HEADS * DEPTH, KEY_HEADS * DEPTH
    weights = {"wq": (width, width), "wk": (width, key_width), "wv": (width, key_width), "wo": (width, width)}
    held = [numpy_helper.from_array(rng.normal(0, 0.5, s).astype(np.float32), n) for n, s in weights.items()]
    nodes = [helper.make_node("MatMul", ["x", f"w{n}"], [n], name=n) for n in "qkv"]
    operands = list("qkv")
    attributes: dict[str, int] = {"is_causal": 1}
    if flat:
        attributes |= {"q_num_heads": HEADS, "kv_num_heads": KEY_HEADS}
    else:
        for n, heads in (("q", HEADS), ("k", KEY_HEADS), ("v", KEY_HEADS)):
            shape = np.array([BATCH, SEQUENCE, heads, DEPTH], dtype=np.int64)
            held.append(numpy_helper.from_array(shape, f"{n}.shape"))
            nodes.append(helper.make_node("Reshape", [n, f"{n}.shape"], [f"{n}.cut"], name=f"{n}.cut"))
            nodes.append(helper.make_node("Transpose", [f"{n}.cut"], [f"{n}.heads"], f"{n}.heads", perm=[0, 2, 1, 3]))
        operands = [f"{n}.heads" for n in "qkv"]
    nodes.append(helper.make_node("Attention", operands, ["attended"], name="attended", **attributes))
    last = "attended"
    if not flat:
        held.append(numpy_helper.from_array(np.array([BATCH, SEQUENCE, width], dtype=np.int64), "flat.shape"))
        nodes.append(helper.make_node("Transpose", [last], ["joined"], name="joined", perm=[0, 2, 1, 3]))
        nodes.append(helper.make_node("Reshape", ["joined", "flat.shape"], ["flat"], name="flat"))
        last = "flat"
    nodes.append(helper.make_node("MatMul", [last, "wo"], ["y"], name="y"))
    nodes.append(helper.make_node("Mul", ["y", "y"], ["squares"], name="squares"))
    nodes.append(helper.make_node("ReduceMean", ["squares"], ["loss"], name="loss", keepdims=0))
    graph = helper.make_graph(
        nodes,
        "context",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (BATCH, SEQUENCE, width))],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, ())],
        held,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    onnx.checker.check_model(model, full_check=True)
    data: bytes = model.SerializeToString()
    return data


@pytest.mark.parametrize("flat", [False, True], ids=["4d", "3d"])
@pytest.mark.parametrize(
    ("mesh", "roles"),
    [
        ((2,), ["s"]),
        ((2,), ["t"]),
        ((3,), ["s&t"]),
        ((2, 2), ["s", "s&t"]),
        ((2, 2), ["s&t", "s"]),
        ((2, 2), ["s&t", "s&t"]),
        ((2, 2), ["s", "t"]),
        ((2, 2), ["h", "s&t"]),
        ((2, 3), ["b", "t"]),
        ((2, 2, 2), ["h", "g", "s&t"]),
    ],
    ids=lambda v: "x".join(map(str, v)),
)
def test_fused_attention_trains(mesh: tuple[int, ...], roles: list[str], *, flat: bool) -> None:
    program = planned(priced(fused(flat=flat), PROFILE, *mesh), {"attended": roles})
    assert verify_program(program).ok
