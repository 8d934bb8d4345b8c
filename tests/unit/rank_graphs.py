"""Runs the graphs of `--target onnx-ranks` by what the files say and nothing else: ONNX Runtime executes the stretches
between collectives on every rank in step, numpy does what docs/onnx-collectives.md says of the collectives."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper

__all__ = ["DOMAIN", "collectives", "execute", "run_ranks", "run_whole"]

DOMAIN = "planner.collective"
Arrays = dict[str, np.ndarray]


def session(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run_whole(path: Path, values: Mapping[str, np.ndarray]) -> Arrays:
    """Outputs of a model whose weights lie elsewhere, or in it; `values` are those of all of its sources."""
    model = onnx.load(str(path), load_external_data=False)
    outside = [t for t in model.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL]
    for t in outside:
        model.graph.input.append(helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)))
        model.graph.initializer.remove(t)
    whole = session(model)
    names = [o.name for o in whole.get_outputs()]
    fed = {i.name: values[i.name] for i in whole.get_inputs()}
    return dict(zip(names, whole.run(names, fed), strict=True))


def collectives(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [n for n in model.graph.node if n.domain == DOMAIN]


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    found = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    return {k: v.decode() if isinstance(v, bytes) else v for k, v in found.items()}


class Rank:
    """One file, cut at its collectives."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        graph = self.model.graph
        self.types = {v.name: v for v in (*graph.input, *graph.output, *graph.value_info)}
        self.weights = {t.name: t for t in graph.initializer}
        self.env: Arrays = {}
        stretches: list[list[onnx.NodeProto]] = [[]]
        for node in graph.node:
            if node.domain == DOMAIN:
                stretches.append([])
            else:
                stretches[-1].append(node)
        self.stretches = stretches
        self.read_at = [{t for n in s for t in n.input} for s in stretches]

    def advance(self, at: int) -> None:
        nodes = self.stretches[at]
        if not nodes:
            return
        made = [o for n in nodes for o in n.output if o]
        later = {t for reads in self.read_at[at + 1 :] for t in reads}
        later |= {t for n in collectives(self.model)[at:] for t in n.input} | {o.name for o in self.model.graph.output}
        outputs = [o for o in made if o in later]
        reads = {t for n in nodes for t in n.input if t} - set(made)
        fed = sorted(t for t in reads if t not in self.weights)
        graph = helper.make_graph(
            nodes, "stretch", [self.types[t] for t in fed], [self.types[t] for t in outputs],
            [self.weights[t] for t in sorted(reads & self.weights.keys())],
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=self.model.opset_import, ir_version=self.model.ir_version)
        found = session(model).run(outputs, {t: self.env[t] for t in fed})
        for name, value in zip(outputs, found, strict=True):
            shape = (
                self.types[name].type.tensor_type.shape if self.types[name].type.tensor_type.HasField("shape") else None
            )
            if shape is not None:
                assert list(value.shape) == [d.dim_value for d in shape.dim], name
            self.env[name] = value

    def read(self, name: str) -> np.ndarray:
        return onnx.numpy_helper.to_array(self.weights[name]) if name in self.weights else self.env[name]


def combine(values: Sequence[np.ndarray], op: str) -> np.ndarray:
    function = {"sum": np.add, "max": np.maximum, "min": np.minimum}[op]
    out = values[0]
    for v in values[1:]:
        out = function(out, v)
    return out


def meet(nodes: Sequence[onnx.NodeProto], ranks: Sequence[Rank]) -> None:
    """One collective of all ranks."""
    kinds = {n.op_type for n in nodes}
    assert len(kinds) == 1, f"ranks meet at {kinds}"
    (kind,) = kinds
    told = [attributes(n) for n in nodes]
    values = [r.read(n.input[0]) for r, n in zip(ranks, nodes, strict=True)]
    for me, (rank, node, a) in enumerate(zip(ranks, nodes, told, strict=True)):
        if kind == "Permute":
            assert me in told[a["source"]].get("targets", []), "a rank reads from one that does not send to it"
            rank.env[node.output[0]] = values[a["source"]]
            continue
        group = a["ranks"]
        assert me in group
        assert len(set(group)) == len(group)
        same = [{k: v for k, v in told[r].items() if k not in ("send_sizes", "receive_sizes")} for r in group]
        assert all(s == same[0] for s in same), "members of a group disagree"
        rank.env[node.output[0]] = received(kind, a, me, [values[r] for r in group], [told[r] for r in group],
                                            [nodes[r] for r in group], [ranks[r] for r in group])  # fmt: skip


def received(
    kind: str,
    a: dict[str, Any],
    me: int,
    values: Sequence[np.ndarray],
    told: Sequence[dict[str, Any]],
    nodes: Sequence[onnx.NodeProto],
    members: Sequence[Rank],
) -> np.ndarray:
    at, n = a["ranks"].index(me), len(values)
    if kind == "AllReduce":
        return combine(values, a["op"])
    if kind == "AllGather":
        return np.concatenate(values, axis=a["axis"])
    if kind == "ReduceScatter":
        return np.split(combine(values, a["op"]), n, axis=a["axis"])[at]
    if kind == "AllToAll":
        return np.concatenate([np.split(v, n, axis=a["split_axis"])[at] for v in values], axis=a["concat_axis"])
    assert kind == "AllToAllV"
    sizes = [
        t["send_sizes"] if "send_sizes" in t else list(m.read(x.input[1]))
        for t, x, m in zip(told, nodes, members, strict=True)
    ]
    mine = a["receive_sizes"] if "receive_sizes" in a else list(members[at].read(nodes[at].input[2]))
    assert [int(s[at]) for s in sizes] == [int(m) for m in mine], "what is sent is not what is expected"
    parts = []
    for v, s in zip(values, sizes, strict=True):
        assert sum(s) == v.shape[a["axis"]]
        parts.append(np.split(v, np.cumsum(s)[:-1], axis=a["axis"])[at])
    return np.concatenate(parts, axis=a["axis"])


def run_ranks(folder: Path, values: Mapping[str, np.ndarray]) -> Arrays:
    """Whole outputs, put together as ranks.json says, from whole values of what the files take."""
    index = json.loads((folder / "ranks.json").read_text(encoding="utf-8"))
    return execute(index, [onnx.load(str(folder / e["file"])) for e in index["ranks"]], values)


def execute(index: dict[str, Any], models: Sequence[onnx.ModelProto], values: Mapping[str, np.ndarray]) -> Arrays:
    """As `run_ranks`, of files in memory."""
    ranks = [Rank(m) for m in models]
    for rank, entry in zip(ranks, index["ranks"], strict=True):
        assert {i.name for i in rank.model.graph.input} == entry["inputs"].keys()
        assert {o.name for o in rank.model.graph.output} == entry["outputs"].keys()
        for name, told in entry["inputs"].items():
            assert not told["layout"]["partial"]
            rank.env[name] = np.ascontiguousarray(values[told["tensor"]][region(told)]).reshape(
                values[told["tensor"]][region(told)].shape
            )
        for name, told in entry["initializers"].items():
            if told["tensor"] in values:
                np.testing.assert_array_equal(rank.read(name), values[told["tensor"]][region(told)])
    sequences = [collectives(r.model) for r in ranks]
    assert len({len(s) for s in sequences}) == 1, "ranks have different numbers of collectives"
    for k in range(len(sequences[0]) + 1):
        for r in ranks:
            r.advance(k)
        if k < len(sequences[0]):
            meet([s[k] for s in sequences], ranks)
    return assembled(index, ranks)


def region(told: dict[str, Any]) -> tuple[slice, ...]:
    return tuple(slice(a, b) for a, b in told["region"])


def assembled(index: dict[str, Any], ranks: Sequence[Rank]) -> Arrays:
    axes = index["mesh"]
    places = list(itertools.product(*(range(a["size"]) for a in axes)))
    out: Arrays = {}
    for name, told in index["ranks"][0]["outputs"].items():
        tensor, pending = told["tensor"], told["layout"]["partial"]
        pieces: dict[tuple[Any, ...], list[np.ndarray]] = {}
        for rank, entry in zip(ranks, index["ranks"], strict=True):
            here = entry["outputs"][name]
            own = [c for c, a in zip(places[entry["rank"]], axes, strict=True) if a["name"] not in pending]
            key = (str(here["region"]), *own)
            pieces.setdefault(key, []).append(rank.read(name))
        where = {str(e["outputs"][name]["region"]): region(e["outputs"][name]) for e in index["ranks"]}
        dtype = next(iter(pieces.values()))[0].dtype
        whole = np.empty(index["tensors"][tensor]["shape"], dtype)
        seen: Arrays = {}
        for key, terms in pieces.items():
            value = combine(terms, next(iter(pending.values()), "sum")) if pending else terms[0]
            assert pending or len(terms) == 1
            first = seen.setdefault(key[0], value)
            np.testing.assert_allclose(value, first, rtol=1e-4, atol=1e-5)
            whole[where[key[0]]] = value
        out[tensor] = whole
    return out
