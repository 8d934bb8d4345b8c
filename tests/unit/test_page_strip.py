"""What the page of the service takes out of a model in the browser is what the planner takes out, byte for byte."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from planner.frontends.file.strip import strip_model

pytestmark = pytest.mark.peer
ROOT = Path(__file__).parents[2]
NODE = shutil.which("node")
SCRIPT = """
import fs from "fs";
import { Malformed, holdsGraph, strip } from "./strip.mjs";
const found = [];
for (const name of process.argv.slice(2)) {
  const data = new Uint8Array(fs.readFileSync(name));
  let graph = false;
  try {
    graph = holdsGraph(data);
    if (graph) fs.writeFileSync(`${name}.out`, Buffer.concat(strip(data).map((piece) => Buffer.from(piece))));
  } catch (error) {
    if (!(error instanceof Malformed)) throw error;
  }
  found.push(graph);
}
console.log(JSON.stringify(found));
"""
N = 700


def model(*tensors: TensorProto) -> bytes:
    nodes = [helper.make_node("Identity", [t.name], [f"{t.name}.read"]) for t in tensors]
    outputs = [helper.make_tensor_value_info(n.output[0], TensorProto.FLOAT, None) for n in nodes]
    return helper.make_model(helper.make_graph(nodes, "g", [], outputs, list(tensors))).SerializeToString()


def vector(values: np.ndarray, name: str = "w") -> TensorProto:
    return numpy_helper.from_array(values, name)


def listed(kind: int, values: list[float], name: str = "w") -> TensorProto:
    """Its numbers in the field of their type, and not as raw bytes."""
    return helper.make_tensor(name, kind, [len(values)], values)


def short() -> TensorProto:
    """With fewer bytes than its dimensions say."""
    out = vector(np.ones(N, np.float32))
    out.raw_data = out.raw_data[:-4]
    return out


MODELS = {
    "ones": model(vector(np.ones(N, np.float32))),
    "others": model(vector(np.arange(N, dtype=np.float32))),
    "signed zeros": model(vector(np.where(np.arange(N) % 2, 0.0, -0.0).astype(np.float32))),
    "no numbers": model(vector(np.full(N, np.nan, np.float32))),
    "halves": model(vector(np.ones(N, np.float16)), vector(np.arange(N).astype(np.float16), "v")),
    "doubles": model(vector(np.ones(N)), vector(np.arange(N, dtype=np.float64), "v")),
    "listed": model(listed(TensorProto.FLOAT, [1.0] * N), listed(TensorProto.DOUBLE, [2.0] * N, "v")),
    "listed halves": model(listed(TensorProto.FLOAT16, [1.5] * N), listed(TensorProto.BFLOAT16, [0.5] * N, "v")),
    "column": model(vector(np.ones((N, 1, 1), np.float32)), vector(np.ones((N, 2), np.float32), "v")),
    "whole": model(vector(np.ones(N, np.int64)), vector(np.ones(N, np.bool_), "v")),
    "short": model(short()),
    "gpt": (ROOT / "sample_graphs" / "gpt_tiny.onnx").read_bytes(),
}
NONE = {
    "empty": b"",
    "text": b"hello, I am no model",
    "zeros": bytes(64),
    "no graph": onnx.ModelProto(ir_version=9).SerializeToString(),
    "no operator": helper.make_model(helper.make_graph([], "g", [], [])).SerializeToString(),
}


def test_the_browser_strips_as_the_planner_does_and_knows_what_is_no_model(tmp_path: Path) -> None:
    if NODE is None:
        pytest.skip("no Node.js here, which runs the page's script")
    (tmp_path / "strip.mjs").write_text((ROOT / "api" / "static" / "strip.js").read_text(encoding="utf-8"))
    (tmp_path / "run.mjs").write_text(SCRIPT)
    names = {name: str(tmp_path / f"{k}.onnx") for k, name in enumerate([*MODELS, *NONE])}
    for name, data in {**MODELS, **NONE}.items():
        Path(names[name]).write_bytes(data)
    command = [NODE, str(tmp_path / "run.mjs"), *names.values()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert dict(zip(names, json.loads(done.stdout), strict=True)) == {n: n in MODELS for n in names}
    differ = [n for n, data in MODELS.items() if Path(f"{names[n]}.out").read_bytes() != strip_model(data)]
    assert differ == []
