"""Small graphs of further families: what joins two sequences, windows, pyramids, towers, or the nodes of a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from onnx import TensorProto

from tests.mutation.written import Model

__all__ = ["FAMILIES"]


def _heads(m: Model, x: str, batch: int, length: int) -> str:
    """Four heads of four, from a width of sixteen."""
    return m.add("Transpose", m.add("Reshape", x, m.constant([batch, length, 4, 4])), perm=[0, 2, 1, 3])


def _attended(m: Model, reads: str, looks: str, sizes: tuple[int, int, int], added: str = "") -> str:
    """What `reads` takes from where it `looks`; batch and both lengths are given, and what is added to the scores."""
    batch, own, other = sizes
    q = _heads(m, m.add("MatMul", reads, m.weight(16, 16)), batch, own)
    k = _heads(m, m.add("MatMul", looks, m.weight(16, 16)), batch, other)
    v = _heads(m, m.add("MatMul", looks, m.weight(16, 16)), batch, other)
    scores = m.add("Mul", m.add("MatMul", q, m.add("Transpose", k, perm=[0, 1, 3, 2])), m.constant(0.5, np.float32))
    if added:
        scores = m.add("Add", scores, added)
    mixed = m.add("Transpose", m.add("MatMul", m.add("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
    return m.add("MatMul", m.add("Reshape", mixed, m.constant([batch, own, 16])), m.weight(16, 16))


def _normed(m: Model, x: str) -> str:
    return m.add("LayerNormalization", x, m.weight(16), m.weight(16))


def _fed_forward(m: Model, x: str) -> str:
    inner = m.add("Relu", m.add("Add", m.add("MatMul", x, m.weight(16, 32)), m.weight(32)))
    return m.add("MatMul", inner, m.weight(32, 16))


def _translator() -> bytes:
    """An encoder, and a decoder that looks at it."""
    m = Model()
    e = m.add("Add", "source", _attended(m, _normed(m, "source"), _normed(m, "source"), (4, 8, 8)))
    e = m.add("Add", e, _fed_forward(m, _normed(m, e)))
    later = m.constant(np.triu(np.full((4, 4), -1e9), 1), np.float32)
    d = m.add("Add", "target", _attended(m, _normed(m, "target"), _normed(m, "target"), (4, 4, 4), later))
    d = m.add("Add", d, _attended(m, _normed(m, d), e, (4, 4, 8)))
    y = m.add("MatMul", m.add("Add", d, _fed_forward(m, _normed(m, d))), m.weight(16, 32))
    return m.bytes({"source": [4, 8, 16], "target": [4, 4, 16]}, y)


def _rolled(m: Model, x: str, axis: int, by: int) -> str:
    """The first `by` indices come last."""
    ends = (m.constant([by]), m.constant([1 << 30]), m.constant([0]), m.constant([axis]))
    behind = m.add("Slice", x, ends[0], ends[1], ends[3])
    before = m.add("Slice", x, ends[2], ends[0], ends[3])
    return m.add("Concat", behind, before, axis=axis)


def _shifted_windows() -> bytes:
    """Attention within windows of an image that was rolled, with a bias by distance, as in Swin."""
    m = Model()
    x = _rolled(m, _rolled(m, "x", 1, 2), 2, 2)
    parts = m.add("Transpose", m.add("Reshape", x, m.constant([4, 2, 4, 2, 4, 16])), perm=[0, 1, 3, 2, 4, 5])
    w = m.add("Reshape", parts, m.constant([16, 16, 16]))
    at = np.stack(np.meshgrid(np.arange(4), np.arange(4), indexing="ij")).reshape(2, 16)
    apart = at[:, :, None] - at[:, None, :] + 3
    table = m.add("Gather", m.weight(49, 4), m.constant((apart[0] * 7 + apart[1]).reshape(-1)))
    bias = m.add("Transpose", m.add("Reshape", table, m.constant([16, 16, 4])), perm=[2, 0, 1])
    bias = m.add("Unsqueeze", bias, m.constant([0]))
    y = m.add("Add", w, _attended(m, _normed(m, w), _normed(m, w), (16, 16, 16), bias))
    y = m.add("Transpose", m.add("Reshape", y, m.constant([4, 2, 2, 4, 4, 16])), perm=[0, 1, 3, 2, 4, 5])
    y = m.add("Reshape", y, m.constant([4, 8, 8, 16]))
    merged = m.add("Concat", *(_every_other(m, y, k) for k in ((0, 0), (1, 0), (0, 1), (1, 1))), axis=3)
    return m.bytes({"x": [4, 8, 8, 16]}, m.add("MatMul", merged, m.weight(64, 32)))


def _every_other(m: Model, x: str, begin: tuple[int, int]) -> str:
    return m.add("Slice", x, m.constant(begin), m.constant([8, 8]), m.constant([1, 2]), m.constant([2, 2]))


def _detector() -> bytes:
    """A pyramid of two levels, boxes and scores of every place, and the best of them."""
    m = Model()
    fine = m.add("Conv", "x", m.weight(8, 4, 3, 3), pads=[1, 1, 1, 1], strides=[2, 2])
    fine = m.add("LeakyRelu", m.add("BatchNormalization", fine, *(m.weight(8) for _ in range(4))), alpha=0.1)
    coarse = m.add("Relu", m.add("Conv", fine, m.weight(16, 8, 3, 3), m.weight(16), pads=[1, 1, 1, 1], strides=[2, 2]))
    top = m.add("Conv", coarse, m.weight(8, 16, 1, 1))
    up = m.add("Resize", top, "", m.constant([1.0, 1.0, 2.0, 2.0], np.float32), mode="nearest")
    levels = [(m.add("Add", up, m.add("Conv", fine, m.weight(8, 8, 1, 1))), 64), (top, 16)]
    scores, boxes = m.weight(4, 8, 3, 3), m.weight(4, 8, 3, 3)
    found: dict[str, list[str]] = {scores: [], boxes: []}
    for level, places in levels:
        for head, flat in found.items():
            r = m.add("Reshape", m.add("Conv", level, head, pads=[1, 1, 1, 1]), m.constant([4, 4, places]))
            flat.append(m.add("Transpose", r, perm=[0, 2, 1]))
    chances = m.add("Sigmoid", m.add("Concat", *found[scores], axis=1))
    frames = m.add("Exp", m.add("Tanh", m.add("Concat", *found[boxes], axis=1)))
    m.add("TopK", m.add("ReduceMax", chances, m.constant([2]), keepdims=0), m.constant([8]), results=2, axis=1)
    best = m.nodes[-1].output[1]
    where = m.add("Expand", m.add("Unsqueeze", best, m.constant([2])), m.constant([4, 8, 4]))
    return m.bytes({"x": [4, 4, 16, 16]}, chances, m.add("GatherElements", frames, where, axis=1))


def _denoiser() -> bytes:
    """A small U-net that is told how far it is."""
    m = Model()

    def block(x: str, width: int, given: int, time: str) -> str:
        h = m.add("GroupNormalization", x, m.weight(given), m.weight(given), num_groups=4)
        h = m.add("Conv", m.add("Mul", h, m.add("Sigmoid", h)), m.weight(width, given, 3, 3), pads=[1, 1, 1, 1])
        shift = m.add("Unsqueeze", m.add("Gemm", time, m.weight(8, width), m.weight(width)), m.constant([2, 3]))
        return m.add("Add", h, shift)

    angles = m.add("Mul", m.add("Unsqueeze", "time", m.constant([1])), m.constant([[1.0, 0.3, 0.1, 0.03]], np.float32))
    time = m.add("Concat", m.add("Sin", angles), m.add("Cos", angles), axis=1)
    first = block(m.add("Conv", "x", m.weight(8, 4, 3, 3), pads=[1, 1, 1, 1]), 8, 8, time)
    low = block(m.add("Conv", first, m.weight(16, 8, 3, 3), pads=[1, 1, 1, 1], strides=[2, 2]), 16, 16, time)
    flat = m.add("Transpose", m.add("Reshape", low, m.constant([4, 16, 16])), perm=[0, 2, 1])
    seen = m.add("Transpose", m.add("Add", flat, _attended(m, flat, flat, (4, 16, 16))), perm=[0, 2, 1])
    back = m.add("Reshape", seen, m.constant([4, 16, 4, 4]))
    up = m.add("Resize", back, "", m.constant([1.0, 1.0, 2.0, 2.0], np.float32), mode="nearest")
    both = block(m.add("Concat", first, up, axis=1), 8, 24, time)
    return m.bytes({"x": [4, 4, 8, 8], "time": [4]}, m.add("Conv", both, m.weight(4, 8, 1, 1)), opset=21)


def _eight_bits() -> bytes:
    """Convolutions of weights with a scale per channel, between activations that are rounded to eight bits."""
    m = Model()

    def rounded(x: str) -> str:
        scale, zero = m.constant(0.05, np.float32), m.constant(0, np.int8)
        return m.add("DequantizeLinear", m.add("QuantizeLinear", x, scale, zero), scale, zero)

    def weight(*shape: int) -> str:
        scale = m.constant(np.linspace(0.01, 0.03, shape[0]), np.float32)
        return m.add("DequantizeLinear", m.weight(*shape, dtype=np.int8), scale, axis=0)

    a = m.add("Relu", m.add("Conv", rounded("x"), weight(8, 4, 3, 3), m.weight(8), pads=[1, 1, 1, 1]))
    b = m.add("Add", rounded(a), rounded(m.add("Conv", rounded(a), weight(8, 8, 3, 3), pads=[1, 1, 1, 1])))
    c = m.add("Flatten", m.add("GlobalAveragePool", b))
    y = m.add("Gemm", rounded(c), weight(16, 8), m.weight(16), transB=1)
    return m.bytes({"x": [4, 4, 8, 8]}, y)


def _both_ways() -> bytes:
    """Recurrent layers that read forward, backward and both ways."""
    m = Model()
    x = m.add("Transpose", "x", perm=[1, 0, 2])
    two = m.add("LSTM", x, m.weight(2, 32, 16), m.weight(2, 32, 8), m.weight(2, 64), hidden_size=8,
                direction="bidirectional")  # fmt: skip
    joined = m.add("Reshape", m.add("Transpose", two, perm=[0, 2, 1, 3]), m.constant([4, 8, 16]))
    back = m.add("GRU", joined, m.weight(1, 24, 16), m.weight(1, 24, 8), m.weight(1, 48), hidden_size=8,
                 direction="reverse")  # fmt: skip
    plain = m.add("RNN", m.add("Squeeze", back, m.constant([1])), m.weight(1, 8, 8), m.weight(1, 8, 8), hidden_size=8)
    y = m.add("MatMul", m.add("Squeeze", plain, m.constant([1])), m.weight(8, 4))
    return m.bytes({"x": [8, 4, 16]}, y)


def _state_space() -> bytes:
    """A selective state space, its steps written out, as in Mamba."""
    m = Model()
    both = m.add("Split", m.add("MatMul", "x", m.weight(16, 32)), results=2, axis=2, num_outputs=2)
    gate = f"{both}_1"
    line = m.add("Transpose", both, perm=[0, 2, 1])
    line = m.add("Conv", line, m.weight(16, 1, 3), m.weight(16), group=16, pads=[2, 0])
    u = m.add("Transpose", m.add("Mul", line, m.add("Sigmoid", line)), perm=[0, 2, 1])
    step = m.add("Softplus", m.add("Add", m.add("MatMul", u, m.weight(16, 16)), m.weight(16)))
    kept = m.add("Exp", m.add("Neg", m.add("Mul", m.add("Unsqueeze", step, m.constant([3])), m.weight(16, 4))))
    into = m.add("Unsqueeze", m.add("MatMul", u, m.weight(16, 4)), m.constant([2]))
    added = m.add("Mul", m.add("Unsqueeze", m.add("Mul", step, u), m.constant([3])), into)
    out = m.add("MatMul", u, m.weight(16, 4))
    state, results = "", list[str]()
    for t in range(4):
        a, b, c = (m.add("Gather", n, m.constant(t), axis=1) for n in (kept, added, out))
        state = m.add("Add", m.add("Mul", a, state), b) if state else b
        read = m.add("Squeeze", m.add("MatMul", state, m.add("Unsqueeze", c, m.constant([2]))), m.constant([2]))
        results.append(m.add("Unsqueeze", read, m.constant([1])))
    y = m.add("Mul", m.add("Concat", *results, axis=1), m.add("Mul", gate, m.add("Sigmoid", gate)))
    return m.bytes({"x": [4, 4, 16]}, m.add("MatMul", y, m.weight(16, 16)))


def _two_towers() -> bytes:
    """Every image of a batch against every text, as in CLIP."""
    m = Model()

    def unit(x: str, width: int) -> str:
        h = m.add("MatMul", m.add("Tanh", m.add("MatMul", x, m.weight(width, 32))), m.weight(32, 16))
        length = m.add("ReduceL2", h, m.constant([1]), keepdims=1)
        return m.add("Div", h, length)

    image, text = unit("image", 16), unit("text", 8)
    pairs = m.add("Mul", m.add("MatMul", image, m.add("Transpose", text, perm=[1, 0])), m.weight())
    own = m.constant(np.eye(8), np.float32)
    losses = []
    for axis in (0, 1):
        chosen = m.add("Mul", m.add("LogSoftmax", pairs, axis=axis), own)
        losses.append(m.add("Neg", m.add("ReduceSum", chosen, keepdims=0)))
    return m.bytes({"image": [8, 16], "text": [8, 8]}, m.add("Add", *losses))


def _recommender() -> bytes:
    """Tables that are looked up, and products of all pairs of what was found, as in DLRM."""
    m = Model()
    dense = m.add("Relu", m.add("Gemm", "dense", m.weight(8, 16), m.weight(16)))
    rows = [m.add("Unsqueeze", dense, m.constant([1]))]
    for k in range(3):
        ids = m.add("Gather", "ids", m.constant(k), axis=1)
        rows.append(m.add("Unsqueeze", m.add("Gather", m.weight(32, 16), ids), m.constant([1])))
    found = m.add("Concat", *rows, axis=1)
    pairs = m.add("MatMul", found, m.add("Transpose", found, perm=[0, 2, 1]))
    flat = m.add("Concat", dense, m.add("Flatten", pairs), axis=1)
    y = m.add("Gemm", m.add("Relu", m.add("Gemm", flat, m.weight(32, 16), m.weight(16))), m.weight(16, 1))
    return m.bytes({"dense": [16, 8], "ids": [16, 3]}, m.add("Sigmoid", y), indices="ids")


def _messages() -> bytes:
    """Nodes that send to their neighbours, and what arrives is added up."""
    m = Model()
    edges = np.random.default_rng(0).integers(0, 16, (2, 32))
    x = "x"
    for _ in range(2):
        sent = m.add("Relu", m.add("MatMul", m.add("Gather", x, m.constant(edges[0])), m.weight(16, 16)))
        empty = m.constant(np.zeros((16, 16)), np.float32)
        come = m.add("ScatterND", empty, m.constant(edges[1][:, None]), sent, reduction="add")
        x = m.add("Add", m.add("MatMul", x, m.weight(16, 16)), m.add("MatMul", come, m.weight(16, 16)))
    return m.bytes({"x": [16, 16]}, m.add("ReduceMean", m.add("Tanh", x), m.constant([0])))


def _half() -> bytes:
    """Products in half precision between sums in single precision."""
    m = Model()
    a = m.add("Cast", _normed(m, "x"), to=TensorProto.FLOAT16)
    b = m.add("MatMul", a, m.add("Cast", m.weight(16, 32), to=TensorProto.FLOAT16))
    c = m.add("Gelu", m.add("Cast", b, to=TensorProto.FLOAT))
    d = m.add(
        "MatMul", m.add("Cast", c, to=TensorProto.FLOAT16), m.add("Cast", m.weight(32, 16), to=TensorProto.FLOAT16)
    )
    return m.bytes({"x": [8, 8, 16]}, m.add("Add", "x", m.add("Cast", d, to=TensorProto.FLOAT)))


FAMILIES: Final[dict[str, Callable[[], bytes]]] = {
    "both_ways": _both_ways,
    "denoiser": _denoiser,
    "detector": _detector,
    "eight_bits": _eight_bits,
    "half": _half,
    "messages": _messages,
    "recommender": _recommender,
    "shifted_windows": _shifted_windows,
    "state_space": _state_space,
    "translator": _translator,
    "two_towers": _two_towers,
}
