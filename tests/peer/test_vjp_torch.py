"""Whole small networks: loss and every parameter gradient equal torch autograd's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from planner.ir import Graph, Op, Role, Tensor
from planner.verify.reference import gradients, run_ops

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peer

functional = torch.nn.functional


class Builder:
    """Operators appended one by one; shapes are read off an execution, since verification does not infer them."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.values: dict[str, np.ndarray] = {}
        self.roles: dict[str, Role] = {}

    def feed(self, name: str, value: np.ndarray, role: Role = Role.PARAMETER) -> str:
        self.values[name] = value
        self.roles[name] = role
        return name

    def constant(self, *values: int) -> str:
        return self.feed(f"c{len(self.values)}", np.array(values, dtype=np.int64), Role.CONSTANT)

    def add(self, kind: str, *inputs: str, opset: int = 23, outputs: int = 1, **attributes: Any) -> str:
        names = tuple(f"t{len(self.ops)}_{i}" for i in range(outputs))
        self.ops.append(Op(names[0], kind, inputs, names, attributes, opset))
        return names[0]

    def finish(self, loss: str) -> tuple[Graph, dict[str, np.ndarray]]:
        """The graph with its executed activations."""
        names = {t for op in self.ops for t in (*op.inputs, *op.outputs) if t}
        loose = {n: Tensor(n, None, "float32", self.roles.get(n, Role.ACTIVATION)) for n in names}
        activations = run_ops(Graph(tuple(self.ops), loose, (), (loss,)), self.values)
        tensors = {
            n: Tensor(n, activations[n].shape, activations[n].dtype.name, t.role) for n, t in loose.items()
        }  # fmt: skip
        return Graph(tuple(self.ops), tensors, (), (loss,), "net", loss), activations


def compare(build: Builder, loss: str, expected: Any, parameters: dict[str, Any]) -> None:
    graph, activations = build.finish(loss)
    np.testing.assert_allclose(activations[loss], expected.detach().numpy(), rtol=1e-5)
    expected.backward()
    found = gradients(graph, build.values, activations, list(parameters))
    assert set(found) == set(parameters)
    for name, parameter in parameters.items():
        truth = parameter.grad.numpy()
        np.testing.assert_allclose(found[name], truth, rtol=1e-3, atol=1e-5 * float(np.abs(truth).max()), err_msg=name)


def weights(build: Builder, rng: np.random.Generator, **shapes: tuple[int, ...]) -> dict[str, Any]:
    out = {}
    for name, shape in shapes.items():
        scale = np.prod(shape[1:]) ** -0.5 if len(shape) > 1 else 0.3
        value = (rng.standard_normal(shape) * scale).astype(np.float32)
        build.feed(name, value)
        out[name] = torch.tensor(value, requires_grad=True)
    return out


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_perceptron(approximate: str) -> None:
    rng, b = np.random.default_rng(0), Builder()
    p = weights(b, rng, w1=(16, 8), b1=(16,), w2=(16, 5), scale=(16,), shift=(16,))
    x, labels = rng.standard_normal((12, 8)).astype(np.float32), rng.integers(0, 5, 12)
    h = b.add("Gemm", b.feed("x", x, Role.INPUT), "w1", "b1", transB=1)
    h = b.add("LayerNormalization", b.add("Gelu", h, approximate=approximate), "scale", "shift", epsilon=1e-5)
    loss = b.add("SoftmaxCrossEntropyLoss", b.add("MatMul", h, "w2"), b.feed("labels", labels, Role.INPUT))
    t = functional.gelu(functional.linear(torch.tensor(x), p["w1"], p["b1"]), approximate=approximate)
    t = functional.layer_norm(t, (16,), p["scale"], p["shift"])
    compare(b, loss, functional.cross_entropy(t @ p["w2"], torch.tensor(labels)), p)


@pytest.mark.parametrize("fused", [False, True])
def test_causal_attention_with_embedding_and_tied_head(fused: bool) -> None:
    rng, b = np.random.default_rng(1), Builder()
    batch, length, heads, width, vocabulary = 2, 6, 4, 8, 11
    p = weights(b, rng, table=(vocabulary, 32), q=(32, 32), k=(32, 32), v=(32, 32), norm=(32,))
    ids = rng.integers(0, vocabulary, (batch, length))
    labels = np.where(rng.random((batch * length,)) < 0.2, -100, rng.integers(0, vocabulary, batch * length))
    e = b.add("Gather", "table", b.feed("ids", ids, Role.INPUT))
    e = b.add("RMSNormalization", e, "norm", epsilon=1e-6)

    def split_heads(x: str) -> str:
        return b.add("Transpose", b.add("Reshape", x, b.constant(0, 0, heads, width)), perm=(0, 2, 1, 3))

    query, key, value = (split_heads(b.add("MatMul", e, w)) for w in "qkv")
    if fused:
        y = b.add("Attention", query, key, value, is_causal=1)
    else:
        scores = b.add("MatMul", query, b.add("Transpose", key, perm=(0, 1, 3, 2)))
        scores = b.add("Mul", scores, b.feed("scale", np.float32(width**-0.5), Role.CONSTANT))
        allowed = b.feed("allowed", np.tril(np.ones((length, length), dtype=bool)), Role.CONSTANT)
        low = b.feed("low", np.float32(-3e38), Role.CONSTANT)
        y = b.add("MatMul", b.add("Softmax", b.add("Where", allowed, scores, low), axis=-1), value)
    y = b.add("Add", e, b.add("Reshape", b.add("Transpose", y, perm=(0, 2, 1, 3)), b.constant(0, 0, -1)))
    logits = b.add("MatMul", y, b.add("Transpose", "table"))
    logits = b.add("Reshape", logits, b.constant(-1, vocabulary))
    loss = b.add("SoftmaxCrossEntropyLoss", logits, b.feed("labels", labels, Role.INPUT), ignore_index=-100)

    t = functional.rms_norm(p["table"][torch.tensor(ids)], (32,), p["norm"], eps=1e-6)
    parts = [(t @ p[w]).reshape(batch, length, heads, width).transpose(1, 2) for w in "qkv"]
    y_t = functional.scaled_dot_product_attention(*parts, is_causal=True)
    t = t + y_t.transpose(1, 2).reshape(batch, length, -1)
    compare(b, loss, functional.cross_entropy((t @ p["table"].T).reshape(-1, vocabulary), torch.tensor(labels)), p)


@pytest.mark.parametrize("training", [False, True])
def test_residual_convolutions(training: bool) -> None:
    rng, b = np.random.default_rng(2), Builder()
    p = weights(b, rng, stem=(8, 3, 7, 7), wide=(8, 2, 3, 3), short=(8, 8, 1, 1), scale=(8,), shift=(8,), head=(4, 8))
    mean = rng.standard_normal(8).astype(np.float32)
    variance = (0.5 + rng.random(8)).astype(np.float32)
    x, labels = rng.standard_normal((4, 3, 33, 32)).astype(np.float32), rng.integers(0, 4, 4)
    h = b.add("Conv", b.feed("x", x, Role.INPUT), "stem", strides=(2, 2), pads=(3, 3, 3, 3))
    statistics = (b.feed("mean", mean, Role.CONSTANT), b.feed("variance", variance, Role.CONSTANT))
    kept = {"outputs": 3, "training_mode": 1} if training else {}
    h = b.add("BatchNormalization", h, "scale", "shift", *statistics, **kept)
    h = b.add("MaxPool", b.add("Relu", h), kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    branch = b.add("Conv", h, "wide", group=4, strides=(2, 2), pads=(2, 2, 2, 2), dilations=(2, 2))
    short = b.add("Conv", h, "short", strides=(2, 2))
    h = b.add("GlobalAveragePool", b.add("HardSwish", b.add("Add", branch, short)))
    logits = b.add("Gemm", b.add("Flatten", h), "head", transB=1)
    loss = b.add("SoftmaxCrossEntropyLoss", logits, b.feed("labels", labels, Role.INPUT))

    t = functional.conv2d(torch.tensor(x), p["stem"], stride=2, padding=3)
    t = functional.batch_norm(
        t, torch.tensor(mean.copy()), torch.tensor(variance.copy()), p["scale"], p["shift"], training
    )
    t = functional.max_pool2d(functional.relu(t), 3, 2, 1)
    t = functional.conv2d(t, p["wide"], stride=2, padding=2, dilation=2, groups=4) + functional.conv2d(
        t, p["short"], stride=2
    )
    t = functional.hardswish(t).mean((2, 3)) @ p["head"].T
    compare(b, loss, functional.cross_entropy(t, torch.tensor(labels)), p)


def test_transposed_convolution() -> None:
    rng, b = np.random.default_rng(3), Builder()
    p = weights(b, rng, down=(6, 3, 3, 3), up=(6, 2, 4, 4), bias=(4,))
    x = rng.standard_normal((2, 3, 9, 9)).astype(np.float32)
    h = b.add("Tanh", b.add("Conv", b.feed("x", x, Role.INPUT), "down", strides=(2, 2), pads=(1, 1, 1, 1)))
    h = b.add("ConvTranspose", h, "up", "bias", group=2, strides=(2, 2), pads=(1, 1, 1, 1), output_padding=(1, 1))
    loss = b.add("ReduceMean", b.add("Mul", h, h), keepdims=0)
    t = torch.tanh(functional.conv2d(torch.tensor(x), p["down"], stride=2, padding=1))
    t = functional.conv_transpose2d(t, p["up"], p["bias"], stride=2, padding=1, output_padding=1, groups=2)
    compare(b, loss, (t * t).mean(), p)


def test_mixture_of_experts() -> None:
    rng, b = np.random.default_rng(4), Builder()
    p = weights(b, rng, router=(8, 4), up=(4, 8, 16), down=(4, 16, 8))
    x = rng.standard_normal((10, 8)).astype(np.float32)
    source = b.feed("x", x, Role.INPUT)
    gates = b.add("Softmax", b.add("MatMul", source, "router"), axis=-1)
    best = b.add("TopK", gates, b.constant(2), outputs=2, axis=-1)
    indices = b.ops[-1].outputs[1]
    zeros = b.feed("zeros", np.zeros((10, 4), dtype=np.float32), Role.CONSTANT)
    sparse = b.add("ScatterElements", zeros, indices, best, axis=1)
    h = b.add("Einsum", source, "up", equation="td,edf->tef")
    h = b.add("Mul", h, b.add("Sigmoid", h))
    y = b.add("Einsum", h, "down", sparse, equation="tef,efd,te->td")
    loss = b.add("ReduceSum", b.add("Abs", y), keepdims=0)
    gates_t = torch.softmax(torch.tensor(x) @ p["router"], -1)
    top = gates_t.topk(2)
    sparse_t = torch.zeros(10, 4).scatter(1, top.indices, top.values)
    h_t = functional.silu(torch.einsum("td,edf->tef", torch.tensor(x), p["up"]))
    compare(b, loss, torch.einsum("tef,efd,te->td", h_t, p["down"], sparse_t).abs().sum(), p)
