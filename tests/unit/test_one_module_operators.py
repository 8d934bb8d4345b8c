"""Operators of which everything stands in one module of `planner.operators`: they mean what others say they mean, carry
other sizes, and take part in plans; a search that reads their rules loads no runtime."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import planner
from planner.cli.main import main
from planner.frontends import import_bytes
from planner.frontends.resized.rebind import batch_axes, rebind
from planner.ir import DeviceMesh, Op, Role
from planner.kernels import run_local
from planner.kernels.gradients import vjp
from planner.verify.data import random_tensors
from planner.verify.uses import Use, uses
from tests.rules.prover import case, prove
from tests.unit.one_module_models import MODELS

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(3)

# What one mesh of four splits.
SPLITS = {
    "planner::DeformConv3D": ("n=4", "o=4", "i=4", "y0=4", "y1=2 o=2"),
    "planner::SwiGLUMatMul": ("k=4", "n=4", "t0=4", "k=2 n=2"),
    "planner::SegmentSum": ("s=4", "n=4", "d0=4", "s=2 n=2"),
}


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def run(kind: str, inputs: list[Array | None], opset: int = 1, **attributes: Any) -> tuple[Op, Array]:
    names = tuple("" if x is None else f"x{i}" for i, x in enumerate(inputs))
    op = Op("y", kind, names, ("y",), attributes, opset)
    (y,) = run_local(op, inputs)
    assert y is not None
    return op, y


def test_loading_the_rules_loads_no_runtime() -> None:
    code = (
        "import sys; from planner.plugins import load_operators; loaded = load_operators('rule'); "
        "assert 'planner.operators.deform_conv_3d' in loaded; "
        "print([n for n in ('onnxruntime', 'onnx.reference', 'torch') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# Deformable convolution

IMAGES = [
    {},
    {"pads": (1, 0, 1, 2), "strides": (2, 1)},
    {"dilations": (1, 2), "group": 2},
    {"group": 2, "offset_group": 2, "pads": (1, 1, 1, 1)},
    {"offset_group": 4},
]


def image(options: dict[str, Any]) -> list[Array | None]:
    """Operands of ONNX's DeformConv over two dimensions."""
    pads, strides = options.get("pads", (0,) * 4), options.get("strides", (1, 1))
    kernel, space, parts = (2, 3), (5, 6), options.get("offset_group", 1)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, options.get("dilations", (1, 1)), strict=True)]
    out = tuple((space[d] + pads[d] + pads[d + 2] - reach[d]) // strides[d] + 1 for d in (0, 1))
    weight = normal(6, 4 // options.get("group", 1), *kernel)
    return [normal(2, 4, *space), weight, 2 * normal(2, parts * 12, *out), normal(6), normal(2, parts * 6, *out)]


def as_slice(operands: list[Array | None], options: dict[str, Any]) -> tuple[list[Array], dict[str, Any]]:
    """The image as a volume of one slice, whose elements are not displaced along its depth."""
    x, weight, offset, bias, mask = (np.asarray(v) for v in operands)
    moved = offset.reshape(len(offset), -1, 2, *offset.shape[2:])
    moved = np.concatenate([np.zeros_like(moved[:, :, :1]), moved], axis=2).reshape(len(offset), -1, *offset.shape[2:])
    pads = options.get("pads", (0,) * 4)
    wide = {"pads": (0, *pads[:2], 0, *pads[2:])}
    wide |= {k: (1, *options[k]) for k in ("strides", "dilations") if k in options}
    volume = [x[:, :, None], weight[:, :, None], moved[:, :, None], bias, mask[:, :, None]]
    return volume, {**options, **wide}


@pytest.mark.parametrize("options", IMAGES, ids=str)
def test_a_volume_of_one_slice_is_the_image_of_onnx(options: dict[str, Any]) -> None:
    """Forward as ONNX's reference or runtime has it; gradients as those of ONNX's operator."""
    operands = image(options)
    flat, expected = run("DeformConv", operands, 22, **options)
    volume, wide = as_slice(operands, options)
    op, found = run("planner::DeformConv3D", list(volume), **wide)
    np.testing.assert_allclose(found[:, :, 0], expected, rtol=1e-4, atol=1e-5)
    dy = normal(*expected.shape)
    truth = vjp(flat, operands, [expected], [dy], [True] * 5)
    gradients = vjp(op, volume, [found], [dy[:, :, None]], [True] * 5)
    for i, (g, t) in enumerate(zip(gradients, truth, strict=True)):
        assert g is not None
        assert t is not None
        if i == 2:
            g = g.reshape(len(t), -1, 3, *t.shape[2:])[:, :, 1:].reshape(t.shape)
        np.testing.assert_allclose(g.reshape(t.shape), t, rtol=1e-4, atol=1e-4, err_msg=f"operand {i}")


def test_onnx_own_over_three_dimensions_is_executed() -> None:
    operands: list[Array | None] = [normal(2, 4, 3, 4, 5), normal(6, 2, 2, 2, 2), normal(2, 48, 2, 3, 4), normal(6)]
    attributes = {"group": 2, "offset_group": 2}
    with_onnx, y = run("DeformConv", operands, 22, **attributes)
    own, same = run("planner::DeformConv3D", operands, **attributes)
    np.testing.assert_array_equal(y, same)
    dy = normal(*y.shape)
    pairs = zip(*(vjp(op, operands, [y], [dy], [True] * 4) for op in (with_onnx, own)), strict=True)
    for i, (a, b) in enumerate(pairs):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4, err_msg=f"operand {i}")


def test_places_far_outside_read_zero() -> None:
    x, weight = normal(1, 1, 2, 2, 2), normal(1, 1, 1, 1, 1)
    offset = np.full((1, 3, 2, 2, 2), 1e30, dtype=np.float32)
    _, y = run("planner::DeformConv3D", [x, weight, offset])
    assert not y.any()


# Segment sums


def test_segment_sums_are_products_with_a_table_of_who_belongs_where() -> None:
    data, segments = normal(9, 2, 3), np.array([0, 3, 3, -1, 2, 5, 0, 9, 3])
    op, found = run("planner::SegmentSum", [data, segments], num_segments=5)
    belongs = (segments == np.arange(5)[:, None]).astype(np.float32)
    np.testing.assert_allclose(found, np.einsum("sn,nij->sij", belongs, data), rtol=1e-6)
    dy = normal(5, 2, 3)
    (gradient, _) = vjp(op, [data, segments], [found], [dy], [True, False])
    np.testing.assert_allclose(gradient, np.einsum("sn,sij->nij", belongs, dy), rtol=1e-6)


# Products and SwiGLU


def test_both_products_gated_are_those_that_onnx_gates() -> None:
    x, gate, up = normal(2, 3, 8), normal(8, 6), normal(8, 6)
    _, found = run("planner::SwiGLUMatMul", [x, gate, up])
    _, expected = run("SwiGLU", [x @ gate, x @ up], 28)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


# All of them


def half(*shape: int) -> Array:
    return (normal(*shape) / 2).astype(np.float16)


@pytest.mark.parametrize("kind", SPLITS)
def test_every_strategy_is_right_in_half_precision(kind: str) -> None:
    """What travels inside keeps the bytes that the rule declares."""
    subject = {
        "planner::DeformConv3D": lambda: case(
            kind, [half(2, 2, 2, 4, 2), half(2, 2, 1, 2, 1), half(2, 6, 2, 3, 2), half(2), half(2, 2, 2, 3, 2)], opset=1
        ),
        "planner::SwiGLUMatMul": lambda: case(kind, [half(2, 4, 8), half(8, 4), half(8, 4)], opset=1),
        "planner::SegmentSum": lambda: case(
            kind, [half(8, 2), RNG.integers(0, 4, 8)], opset=1, num_segments=4
        ),
    }[kind]()  # fmt: skip
    forward, backward, wrong = prove(subject, [DeviceMesh.of(2), DeviceMesh.of(2, 2)])
    assert min(forward, backward) > 5
    assert not wrong, "\n".join(map(str, wrong[:5]))


@pytest.mark.parametrize("kind", SPLITS)
def test_another_batch_is_carried_through(kind: str) -> None:
    graph = import_bytes(MODELS[kind]().SerializeToString())
    (op,) = (o for o in graph.ops if o.type == kind)
    before = graph.tensors[op.inputs[0]].shape
    assert before is not None
    larger = rebind(graph, batch_axes(graph, 2 * before[0]))
    for name in (n for n in op.inputs if graph.tensors[n].shape[:1] == before[:1] and n not in ("w", "b")):
        assert larger.tensors[name].shape == (2 * before[0], *graph.tensors[name].shape[1:]), name
    result = graph.tensors[op.outputs[0]].shape
    grown = result if kind == "planner::SegmentSum" else (2 * before[0], *result[1:])
    assert larger.tensors[op.outputs[0]].shape == grown


@pytest.mark.parametrize(
    ("kind", "weights"),
    [("planner::DeformConv3D", {1, 3}), ("planner::SwiGLUMatMul", {1, 2}), ("planner::SegmentSum", set())],
)
@pytest.mark.parametrize("fed", [False, True], ids=["held by the file", "fed"])
def test_its_weights_are_parameters(kind: str, weights: set[int], fed: bool) -> None:
    model = MODELS[kind]()
    if fed:
        model.graph.input.extend(
            onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in model.graph.initializer
        )
        del model.graph.initializer[:]
    graph = import_bytes(model.SerializeToString())
    (op,) = (o for o in graph.ops if o.type == kind)
    assert {i for i, t in enumerate(op.inputs) if graph.tensors[t].role is Role.PARAMETER} == weights


@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        ("planner::DeformConv3D", {"w": Use(fan_in=16, terms=(1, 2, 3, 4)), "b": Use(shift=True)}),
        ("planner::SwiGLUMatMul", {w: Use(fan_in=32, terms=(0,)) for w in ("w_gate", "w_up")}),
        ("planner::SegmentSum", {"segments": Use(below=(8,))}),
    ],
)
def test_its_values_are_drawn_as_it_reads_them(kind: str, asked: dict[str, Use]) -> None:
    graph = import_bytes(MODELS[kind]().SerializeToString())
    found = uses(graph)
    assert {name: found[name] for name in asked} == asked
    drawn = random_tensors(graph, 0)
    assert all(drawn[n].min() >= 0 and drawn[n].max() < u.below[0] for n, u in asked.items() if u.below)


@pytest.mark.parametrize(("kind", "split"), [(k, s) for k, all_ in SPLITS.items() for s in all_])
def test_a_plan_that_splits_it_is_found_and_verified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, split: str
) -> None:
    model = tmp_path / "model.onnx"
    onnx.save(MODELS[kind](), model)
    options = ["--devices", "4", "--mode", "training", "--out", str(tmp_path), "--json", "--no-cache"]
    assert main(["search", str(model), *options, "--pin", f"type={kind} {split}"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["operators_replicated_for_want_of_a_rule"] == []
    assert main(["verify", found["plan"], str(model), "--json"]) == 0
    verdict = json.loads(capsys.readouterr().out)
    assert verdict["ok"]
    assert verdict["checked"] == ["forward", "gradients"]


@pytest.mark.parametrize("kind", SPLITS)
def test_one_file_of_the_planner_names_it(kind: str) -> None:
    """No list elsewhere has to know of it; operators.json is written by the proof."""
    name = kind.removeprefix("planner::")
    package = Path(planner.__file__).parent
    named = [p for p in package.rglob("*.py") if name in p.read_text(encoding="utf-8")]
    assert [p.parent for p in named] == [package / "operators"]
