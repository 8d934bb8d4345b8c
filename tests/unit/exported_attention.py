"""Attention as exporters write it, in several operators."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["HEADS", "exported"]

HEADS, SEQUENCE, DEPTH, VOCABULARY, BLOCKS = 4, 16, 8, 32, 2


def exported(batch: int, groups: int, *, merged: bool = False, biased: bool = False) -> bytes:
    """Blocks of attention as exporters write them, where `groups` heads of keys and values are repeated, and a loss.

    `merged`: whether samples and heads are one dimension while keys are transposed, as torch's exporter has it;
    `biased`: whether a bias of positions, trained, is added to scores beside a mask of every sample, as of T5.
    """
    dice, width, each = np.random.default_rng(5), HEADS * DEPTH, HEADS // groups
    nodes: list[onnx.NodeProto] = []
    held: list[onnx.TensorProto] = []

    def constant(name: str, *values: int) -> str:
        held.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def weight(name: str, *shape: int) -> str:
        held.append(numpy_helper.from_array(dice.normal(0, 0.2, shape).astype(np.float32), name))
        return name

    def node(kind: str, *inputs: str, name: str, **attributes: object) -> str:
        nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    x = node("Gather", weight("table", VOCABULARY, width), "tokens", name="embedded")
    bias = ""
    if biased:
        apart = np.arange(SEQUENCE)[:, None] - np.arange(SEQUENCE) + SEQUENCE
        mask = np.broadcast_to(apart >= SEQUENCE, (batch, 1, SEQUENCE, SEQUENCE)).copy()
        held += [numpy_helper.from_array(apart, "distances"), numpy_helper.from_array(mask, "mask")]
        held.append(numpy_helper.from_array(np.array(-1e4, np.float32), "none"))
        # As in larger models, what is looked up is no constant of the file.
        most = node("ReduceMax", "tokens", name="most", keepdims=0)
        nothing = node("Sub", most, most, name="nothing")
        places = node("Add", "distances", nothing, name="places")
        looked_up = node("Gather", weight("biases", 2 * SEQUENCE, HEADS), places, name="looked_up")
        turned = node("Transpose", looked_up, name="turned", perm=[2, 0, 1])
        own = node("Unsqueeze", turned, constant("bias.axes", 0), name="bias")
        bias = node("Identity", node("Where", "mask", own, "none", name="masked"), name="clone")
    for n in range(BLOCKS):
        b = f"block{n}."
        heads = {"q": HEADS, "k": groups, "v": groups}
        parts = {}
        for part, count in heads.items():
            flat = node("MatMul", x, weight(f"{b}w{part}", width, count * DEPTH), name=f"{b}{part}")
            apart = constant(f"{b}{part}.shape", batch, SEQUENCE, count, DEPTH)
            split = node("Reshape", flat, apart, name=f"{b}{part}.heads")
            parts[part] = node("Transpose", split, name=f"{b}{part}.turned", perm=[0, 2, 1, 3])
        for part in ("k", "v"):
            own = node("Unsqueeze", parts[part], constant(f"{b}{part}.axes", 2), name=f"{b}{part}.own")
            wide = constant(f"{b}{part}.wide", batch, groups, each, SEQUENCE, DEPTH)
            repeated = node("Expand", own, wide, name=f"{b}{part}.repeated")
            all_heads = constant(f"{b}{part}.all", batch, HEADS, SEQUENCE, DEPTH)
            parts[part] = node("Reshape", repeated, all_heads, name=f"{b}{part}.all_heads")
        if merged:
            flat = constant(f"{b}keys.flat", -1, SEQUENCE, DEPTH)
            flat = node("Reshape", parts["k"], flat, name=f"{b}keys.merged")
            turned = node("Transpose", flat, name=f"{b}keys.turned", perm=[0, 2, 1])
            keys = node("Reshape", turned, constant(f"{b}keys.all", batch, HEADS, DEPTH, SEQUENCE), name=f"{b}keys")
        else:
            keys = node("Transpose", parts["k"], name=f"{b}keys", perm=[0, 1, 3, 2])
        scores = node("MatMul", parts["q"], keys, name=f"{b}scores")
        if biased:
            scores = node("Add", scores, bias, name=f"{b}biased")
        weights = node("Softmax", scores, name=f"{b}weights", axis=-1)
        context = node("MatMul", weights, parts["v"], name=f"{b}context")
        turned = node("Transpose", context, name=f"{b}turned", perm=[0, 2, 1, 3])
        joined = node("Reshape", turned, constant(f"{b}joined.shape", batch, SEQUENCE, width), name=f"{b}joined")
        projected = node("MatMul", joined, weight(f"{b}wo", width, width), name=f"{b}projected")
        x = node("Add", x, projected, name=f"{b}sum")
    logits = node("MatMul", x, weight("head", width, VOCABULARY), name="logits")
    scores = node("Transpose", logits, name="classes", perm=[0, 2, 1])
    node("SoftmaxCrossEntropyLoss", scores, "labels", name="loss")
    inputs = [helper.make_tensor_value_info(n, TensorProto.INT64, (batch, SEQUENCE)) for n in ("tokens", "labels")]
    loss = [helper.make_tensor_value_info("loss", TensorProto.FLOAT, ())]
    graph = helper.make_graph(nodes, "exported", inputs, loss, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
