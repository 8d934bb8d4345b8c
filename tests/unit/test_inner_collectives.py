"""`operators[].inner` says what is communicated inside operators, as it is priced (that it is what kernels perform is
shown by `tests/rules`)."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest

from planner.cost_models import load_profile
from planner.cost_models.memory import Precision
from planner.frontends import load_model
from planner.ir import DeviceMesh, Graph, Op, Role, Tensor
from planner.planning import PlanDocument, Planned, Request, describe, make_plan
from planner.planning.constraints import parse_pin
from planner.pricing import Settings
from planner.rules.registry import rule_for
from planner.rules.strategy import AxisRole, BoundCollective, bind
from planner.verify.check import verify_program

SAMPLES = Path(__file__).resolve().parents[2] / "sample_graphs"
A100 = load_profile("a100-80")
PINS = {
    "gpt_tiny": ("*.ln_1.* d2=x", "*.softmax d3=x", "softmaxcrossentropyloss c=x", "*.attn.split s3=x"),
    "resnet18_tiny": ("layer1.0.conv1.conv y1=x", "conv1.conv y0=x", "maxpool y1=x"),
    "moe_tiny": ("*.topk v=x", "*.cumsum d1=x"),
}


@lru_cache
def sample(name: str) -> Graph:
    return load_model(SAMPLES / f"{name}.onnx")


@lru_cache
def planned(name: str, precision: Precision) -> Planned:
    """With operators split so that they communicate inside."""
    pins = parse_pin("mesh=4")
    for text in PINS[name]:
        pins += parse_pin(text)
    return make_plan(sample(name), Request(4, A100, Settings(True, precision), constraints=pins))


def document(name: str, precision: Precision) -> PlanDocument:
    return describe(planned(name, precision), bind={}, batch=None)


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("name", PINS)
def test_what_is_told_is_what_is_priced(name: str, precision: Precision) -> None:
    plan, machine = document(name, precision), planned(name, precision).priced.machine
    unit, checked = machine.unit_s, 0
    for op in plan.operators.values():
        for run in op.runs:
            backward = run.phase == "backward"
            price = 0
            for c in op.inner:
                if c.backward == backward:
                    ranks = 1 if c.kind in ("all_reduce", "permute") else machine.mesh.size(c.axes)
                    price += c.count * int(machine.collective(c.kind, tuple(c.axes), c.bytes * ranks))
            assert run.inside_s == price * unit
            checked += price > 0
    assert checked >= 3


@pytest.mark.parametrize("name", PINS)
def test_activations_take_the_width_of_the_precision_and_statistics_and_indices_their_own(name: str) -> None:
    narrow, wide = (document(name, p) for p in ("bf16", "fp32"))
    seen = set()
    for op, other in zip(narrow.operators.values(), wide.operators.values(), strict=True):
        for c, d in zip(op.inner, other.inner, strict=True):
            seen.add(d.bytes / c.bytes)
            if op.type in ("Conv", "MaxPool", "Split", "CumSum"):
                assert d.bytes == 2 * c.bytes, op.type
            elif op.type == "TopK":
                assert 12 * c.bytes == 10 * d.bytes, "a value and an index of eight bytes"
            else:
                assert d.bytes == c.bytes, op.type
    assert len(seen) > 1 or name == "resnet18_tiny"


def test_what_is_communicated_backward_is_exact_where_an_operand_wants_no_gradient() -> None:
    """The first convolution's image: what its backward is said to exchange is performed all the same."""
    program = planned("resnet18_tiny", "fp32").program
    (first,) = (o.name for o in program.graph.ops if o.type == "Conv" and o.inputs[0] in program.graph.inputs)
    strategy = program.strategies[first]
    doubled = tuple(replace(c, elements=c.elements * (1 + c.backward)) for c in strategy.inner)
    strategies = {**program.strategies, first: replace(strategy, inner=doubled)}
    (wrong,) = verify_program(replace(program, strategies=strategies)).failures
    assert "permute" in wrong or "exchange" in wrong


def ring(precision: Precision) -> int:
    """Bytes of keys and values that pass on at a time: 16 positions of 64 a rank, 2 heads, 8 and 8 wide."""
    shape = (1, 2, 64, 8)
    tensors = {n: Tensor(n, shape, "float32", Role.INPUT) for n in "qkv"}
    tensors["y"] = Tensor("y", shape, "float32", Role.ACTIVATION)
    op = Op("y", "Attention", ("q", "k", "v"), ("y",), opset=23)
    rule = rule_for(op, Graph((op,), tensors, ("q", "k", "v"), ("y",)))
    assert rule is not None
    mode = next(c.factor for c in rule.inner if c.ring)
    strategy = bind(rule, DeviceMesh.of(4), (AxisRole("split", factor=mode),))
    assert strategy is not None
    (passed,) = (c for c in strategy.inner if c.kind == "permute" and not c.backward)
    return Settings(True, precision).payload_bytes(passed)


def test_keys_and_values_in_a_ring_weigh_all_their_elements() -> None:
    assert ring("fp32") == 2 * 16 * (8 + 8) * 4
    assert ring("bf16") == 2 * 16 * (8 + 8) * 2


@pytest.mark.parametrize(
    ("width", "kept", "item", "expected"), [(4, 0, 20, 10), (4, 8, 12, 10), (0, 0, 8, 8), (2, 0, 6, 6), (8, 0, 8, 2)]
)
def test_bytes_of_an_item_in_two_byte_floats(width: int, kept: int, item: int, expected: int) -> None:
    c = BoundCollective("permute", ("x",), 3, item, False, "sum", 1, width=width, fixed_bytes=kept)
    assert Settings(True, "bf16").payload_bytes(c) == 3 * expected


def test_an_inference_plan_has_no_collectives_of_a_backward_pass() -> None:
    graph = sample("gpt_tiny")
    found = 0
    for training in (True, False):
        pins = parse_pin("mesh=4") + parse_pin("* type=LayerNormalization d2=x")
        made = make_plan(graph, Request(4, A100, Settings(training), constraints=pins))
        plan = describe(made, bind={}, batch=None)
        inner = [c for op in plan.operators.values() for c in op.inner]
        assert any(not c.backward for c in inner)
        back = sum(c.backward for c in inner)
        found += back
        assert training or not back
    assert found
