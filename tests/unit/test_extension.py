"""Operators of a user's own domain: a package with entry points teaches the planner their rule, kernel and gradient."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from planner.kernels.gradients import differentiable_types, register

PACKAGE = {
    "example_rules.py": '''
from planner.rules.extend import Operator, Rule, rule, sharded

@rule("example::ScaledMatMul")
def scaled_matmul(o: Operator) -> Rule:
    """(x · w) · s, with one scale per column."""
    return sharded(o, "b... m k, k n, n -> b... m n", kind="matmul", linear=[(0,), (1,), (2,)],
                   differentiable=(0, 1, 2), saved=(0, 1, 2), flops=2.0 * o.shape(0)[-1] * o.result()[-1])
''',
    "example_kernels.py": """
from planner.kernels import local_kernel
from planner.kernels.gradients import register, unbroadcast

@local_kernel("example::ScaledMatMul")
def scaled_matmul(op, inputs):
    x, w, s = inputs
    return [(x @ w) * s]

@register("example::ScaledMatMul")
def scaled_matmul_vjp(c):
    x, w, s = c.inputs
    y = x @ w
    g = c.dy * s
    return [g @ w.T, x.reshape(-1, x.shape[-1]).T @ g.reshape(-1, g.shape[-1]), unbroadcast(c.dy * y, s.shape)]
""",
    "example-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: example\nVersion: 1.0\n",
    "example-1.0.dist-info/entry_points.txt": (
        "[planner.rules]\nexample = example_rules\n\n[planner.kernels]\nexample = example_kernels\n"
    ),
}

RULES = Path(__file__).resolve().parents[2] / "docs" / "rules.md"
METADATA = "example-1.0.dist-info/METADATA"


def one_module() -> dict[str, str]:
    """The package that the documentation shows."""
    section = RULES.read_text(encoding="utf-8").partition("## Operators of your own")[2]
    (entry,) = re.findall(r"```toml\n(.*?)```", section, re.DOTALL)
    (source,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    points = re.sub(r'\[project\.entry-points\."(.*?)"\]', r"[\1]", entry).replace('"', "")
    return {
        "example_operators.py": source,
        METADATA: PACKAGE[METADATA],
        "example-1.0.dist-info/entry_points.txt": points,
    }


def install(folder: Path, files: dict[str, str]) -> dict[str, str]:
    """The environment of a process that finds the package."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    paths = [str(folder), str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p)}


def model(folder: Path, *, stated: bool = True) -> Path:
    """The mean of ReLU(ScaledMatMul(x, w, s)); `stated`: the file has the shape of the product."""
    rng = np.random.default_rng(0)
    weights = [
        onnx.numpy_helper.from_array(rng.standard_normal((64, 128)).astype(np.float32), "w"),
        onnx.numpy_helper.from_array(rng.standard_normal(128).astype(np.float32), "s"),
    ]
    nodes = [
        helper.make_node("ScaledMatMul", ["x", "w", "s"], ["h"], domain="example"),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("ReduceMean", ["r"], ["loss"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "scaled",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [16, 64])],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
        weights,
        value_info=[helper.make_tensor_value_info("h", TensorProto.FLOAT, [16, 128])] if stated else [],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("example", 1)]
    path = folder / "scaled.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def planner(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "planner", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("apart", [True, False], ids=["rules and kernels", "one module"])
def test_a_registered_operator_is_sharded_and_verified(tmp_path: Path, *, apart: bool) -> None:
    """Rules and kernels by two entry points, or all by one, as the documentation shows."""
    environment = install(tmp_path / "site", PACKAGE if apart else one_module())
    path = model(tmp_path, stated=apart)
    options = ["--devices", "4", "--mode", "training", "--out", str(tmp_path / "out"), "--json"]
    searched = planner(environment, "search", str(path), *options)
    assert searched.returncode == 0, searched.stderr
    assert json.loads(searched.stdout)["operators_replicated_for_want_of_a_rule"] == []
    verified = planner(environment, "verify", json.loads(searched.stdout)["plan"], str(path), "--json")
    assert verified.returncode == 0, verified.stderr
    assert json.loads(verified.stdout)["checked"] == ["forward", "gradients"]


def test_the_documented_function_for_torch_is_registered(tmp_path: Path) -> None:
    """Registering it imports no torch."""
    environment = install(tmp_path / "site", one_module())
    code = (
        "import sys; from planner.plugins import load_operators; load_operators('rule'); "
        "assert 'torch' not in sys.modules; import example_operators as e; from planner.runtime import registry; "
        "print(registry._FUNCTIONS[e.TYPE].function is e.on_torch)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "True", done.stderr


def test_a_gradient_registered_twice_is_refused() -> None:
    differentiable_types()
    with pytest.raises(ValueError, match="MatMul has two vector-Jacobian products"):
        register("MatMul")(lambda c: [])


def test_without_the_package_the_operator_is_named_as_replicated(tmp_path: Path) -> None:
    environment = install(tmp_path / "site", {})
    found = planner(environment, "inspect", str(model(tmp_path)), "--json")
    assert json.loads(found.stdout)["operators_without_rule"] == ["example::ScaledMatMul"]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise RuntimeError('out of order')", "RuntimeError: out of order"),
        ("from planner.rules.extend import opaque\nopaque('mine', ['MatMul'])", "operator MatMul has two rules"),
    ],
)
def test_a_broken_package_is_named(tmp_path: Path, source: str, said: str) -> None:
    environment = install(tmp_path / "site", {**PACKAGE, "example_rules.py": source})
    found = planner(environment, "inspect", str(model(tmp_path)))
    assert found.returncode == 2
    assert said in found.stderr
    assert "entry point example = 'example_rules' of example 1.0 in the group planner.rules" in found.stderr


def test_a_loss_or_a_draw_registered_twice_is_refused() -> None:
    from planner.frontends.facts.chance import draws, is_drawn
    from planner.frontends.facts.loss import is_loss_of_scores, losses

    assert is_drawn("RandomNormal")
    assert is_loss_of_scores("SoftmaxCrossEntropyLoss")
    with pytest.raises(ValueError, match="RandomNormal draws twice; keep one"):
        draws("RandomNormal")
    with pytest.raises(ValueError, match="SoftmaxCrossEntropyLoss is a loss twice; keep one"):
        losses("SoftmaxCrossEntropyLoss")
    assert is_loss_of_scores("SoftmaxCrossEntropyLoss")
