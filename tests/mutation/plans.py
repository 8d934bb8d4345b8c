"""Small plans of every kind, as `planner search` writes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from onnx import helper, numpy_helper

from planner.builder import build
from planner.cli.main import main
from planner.frontends import load_model
from planner.ir import Graph
from planner.planning import PlanDocument, read_plan
from tests.unit.fused_models import fused_model

__all__ = ["CASES", "Case", "Made", "make"]

GPT: Final = {"hidden": 16, "heads": 2, "vocab": 32, "seq": 8, "batch": 8}


@dataclass(frozen=True, slots=True)
class Case:
    """`model` of a search with these `options`."""

    name: str
    model: Callable[[], onnx.ModelProto]
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Made:
    """A plan file, what is in it, and the graph that was planned."""

    path: Path
    plan: PlanDocument
    graph: Graph


def mlp() -> onnx.ModelProto:
    return build("mlp", {"layers": 2, "features": 16, "hidden": 32, "classes": 8, "batch": 8})


def gpt(layers: int = 2) -> onnx.ModelProto:
    return build("gpt", {"layers": layers, **GPT})


def one_block() -> onnx.ModelProto:
    return gpt(1)


def fused() -> onnx.ModelProto:
    """Queries, keys and values of one product."""
    return onnx.ModelProto.FromString(fused_model("split_product"))


def int8() -> onnx.ModelProto:
    """A layer of eight-bit weights, and one of its own: with a normalisation, and no loss."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.integers(-9, 9, (64, 64)).astype(np.int8), "w"),
        numpy_helper.from_array(np.array(0.02, np.float32), "scale"),
        numpy_helper.from_array(rng.standard_normal((64, 32)).astype(np.float32), "v"),
    ]
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "scale"], ["real"]),
        helper.make_node("MatMul", ["x", "real"], ["a"]),
        helper.make_node("Softmax", ["a"], ["b"], axis=-1),
        helper.make_node("MatMul", ["b", "v"], ["c"]),
        helper.make_node("Add", ["c", "c"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in (("x", [16, 64]), ("y", [16, 32]))]
    graph = helper.make_graph(nodes, "int8", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


SLOW: Final = ("--hardware", "alpha-beta")  # where everything heavy is split, and much is redistributed
CASES: Final = (
    Case("searched", mlp, ("--devices", "4", *SLOW)),
    Case("pinned", mlp, ("--devices", "4", "--pin", "layers.0.matmul n=x", "--pin", "layers.1.weight stored=[x,_]",
                         "--pin", "rest=data_parallel", "--mesh", "4", "--memory-limit", "1GiB")),
    Case("recomputed", gpt, ("--devices", "4", "--recompute", "blocks", *SLOW)),
    Case("pipeline", gpt, ("--devices", "4", "--stages", "2", "--micro-batches", "2", "--batch", "16", *SLOW)),
    Case("inference", gpt, ("--devices", "4", "--mode", "inference", "--pin", "*.ln_1.* d2=x",
                            "--pin", "*.c_fc.matmul n=x", "--precision", "fp32", "--target", "dtensor")),
    Case("configured", one_block, ("--devices", "4", "--strategy", "megatron:tp=2,dp=2", "--batch", "8")),
    Case("fused", fused, ("--devices", "2", "--pin", "w1 stored=[_,x:3]", "--pin", "w1 compute=[_,x:3]", *SLOW)),
    Case("int8", int8, ("--devices", "4", "--mode", "inference", "--pin", "mesh=2x2", "--pin", "b d1=x d0=y")),
)  # fmt: skip


def make(case: Case, folder: Path) -> Made:
    """Searches for it in `folder`."""
    model = folder / "given.onnx"
    model.write_bytes(case.model().SerializeToString())
    out = folder / "plan"
    assert main(["search", str(model), "--no-cache", "--out", str(out), *case.options]) == 0
    plan = read_plan(out / "plan.json")
    return Made(out / "plan.json", plan, load_model(out / "model.onnx", bind=plan.model.bind, batch=plan.model.batch))
