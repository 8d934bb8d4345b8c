"""Graphs of every family, small enough that a proof of one takes a fraction of a second."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from onnx import TensorProto, helper

from planner.builder import build
from planner.frontends import import_bytes
from planner.ir import Graph
from tests.mutation import families
from tests.mutation.written import Model
from tests.unit.fused_models import FUSED, fused_model

__all__ = ["GRAPHS", "model_of"]

_SIZES: Final = {"hidden": 16, "heads": 4, "vocab": 32, "seq": 8, "batch": 8, "layers": 1}
_BUILT: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "mlp": ("mlp", {"layers": 2, "features": 16, "hidden": 32, "classes": 8, "batch": 8}),
    "gpt": ("gpt", _SIZES),
    "gpt_two_layers": ("gpt", {**_SIZES, "layers": 2}),
    "gpt_untied": ("gpt", {**_SIZES, "untied": True, "embedding_norm": True}),
    "bert": ("bert", _SIZES),
    "llama": ("llama", {**_SIZES, "ffn": 32, "kv_heads": 2}),
    "llama_normed": ("llama", {**_SIZES, "ffn": 32, "kv_heads": 4, "qk_norm": True, "qkv_bias": True, "tied": True}),
    "moe": ("moe", {**_SIZES, "ffn": 16, "kv_heads": 2, "experts": 4, "top_k": 2}),
    "vit": ("vit", {"layers": 1, "hidden": 16, "heads": 4, "image": 16, "patch": 4, "classes": 8, "batch": 4}),
    "resnet": ("resnet", {"layers": 18, "hidden": 4, "image": 32, "classes": 8, "batch": 4}),
    "deepseek": (
        "deepseek",
        {
            **_SIZES, "layers": 2, "ffn": 32, "q_lora": 8, "kv_lora": 8, "qk_nope": 4, "qk_rope": 4, "v_dim": 4,
            "experts": 4, "expert_ffn": 8, "top_k": 2, "shared_experts": 1,
        },
    ),
}  # fmt: skip


def model_of(name: str) -> bytes:
    """The ONNX file of one of the graphs."""
    if name in _BUILT:
        architecture, sizes = _BUILT[name]
        return build(architecture, sizes).SerializeToString()
    return fused_model(name) if name in FUSED else _SMALL[name]()


def _imported(name: str) -> Graph:
    return import_bytes(model_of(name), name=name)


def _windows() -> bytes:
    """Convolutions of every make, pools and a normalisation of channels."""
    m = Model()
    a = m.add("Relu", m.add("Conv", "x", m.weight(8, 4, 3, 3), m.weight(8), pads=[1, 1, 1, 1]))
    b = m.add("Conv", a, m.weight(8, 1, 5, 5), group=8, pads=[2, 2, 2, 2])
    b = m.add("Clip", b, m.constant(-2.0, np.float32), m.constant(2.0, np.float32))
    p = m.add("MaxPool", b, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])
    q = m.add("AveragePool", p, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    s = m.add("Conv", q, m.weight(16, 8, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1], dilations=[1, 1])
    y = m.add("Conv", m.add("GlobalAveragePool", s), m.weight(8, 16, 1, 1))
    return m.bytes({"x": [4, 4, 16, 16]}, y)


def _mobile() -> bytes:
    """Inverted residuals with squeeze and excitation, as in MobileNet."""
    m = Model()
    x = m.add("Conv", "x", m.weight(8, 4, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1])
    for _ in range(2):
        h = m.add("HardSwish", m.add("Conv", x, m.weight(16, 8, 1, 1), m.weight(16)))
        h = m.add("HardSwish", m.add("Conv", h, m.weight(16, 1, 3, 3), group=16, pads=[1, 1, 1, 1]))
        g = m.add("HardSigmoid", m.add("Conv", m.add("GlobalAveragePool", h), m.weight(16, 16, 1, 1)))
        x = m.add("Add", x, m.add("Conv", m.add("Mul", h, g), m.weight(8, 16, 1, 1)))
    return m.bytes({"x": [4, 4, 16, 16]}, x)


def _shuffled() -> bytes:
    """Channels split, shuffled and concatenated, as in ShuffleNet."""
    m = Model()
    r = m.add("Reshape", "x", m.constant([4, 2, 4, 8, 8]))
    t = m.add("Reshape", m.add("Transpose", r, perm=[0, 2, 1, 3, 4]), m.constant([4, 8, 8, 8]))
    left = m.add("Split", t, m.constant([4, 4]), results=2, axis=1)
    c = m.add("Relu", m.add("Conv", f"{left}_1", m.weight(4, 4, 3, 3), pads=[1, 1, 1, 1]))
    j = m.add("Concat", left, c, axis=1)
    y = m.add("Conv", j, m.weight(8, 4, 1, 1), group=2)
    return m.bytes({"x": [4, 8, 8, 8]}, y)


def _norms() -> bytes:
    """Normalisations of every make."""
    m = Model()
    a = m.add("LayerNormalization", "x", m.weight(16), m.weight(16))
    b = m.add("MatMul", a, m.weight(16, 16))
    i = m.add("InstanceNormalization", m.add("Transpose", b, perm=[0, 2, 1]), m.weight(16), m.weight(16))
    g = m.add("GroupNormalization", i, m.weight(16), m.weight(16), num_groups=4)
    p = m.add("LpNormalization", g, axis=1)
    s = m.add("LogSoftmax", m.add("MatMul", p, m.weight(8, 8)), axis=1)
    y = m.add("ReduceMean", m.add("Mul", s, s), m.constant([2]))
    return m.bytes({"x": [8, 8, 16]}, y, opset=21)


def _reductions() -> bytes:
    """Sums, means and extremes, kept and dropped dimensions, and running sums."""
    m = Model()
    a = m.add("MatMul", "x", m.weight(16, 8))
    mean = m.add("ReduceMean", a, m.constant([1]), keepdims=1)
    most = m.add("ReduceMax", a, m.constant([0]), keepdims=1)
    total = m.add("ReduceSum", m.add("Tanh", a), m.constant([2]), keepdims=1)
    ran = m.add("CumSum", a, m.constant(1))
    y = m.add("Sum", m.add("Mul", ran, mean), m.add("Mul", most, total), a)
    z = m.add("ReduceL2", y, m.constant([1]), keepdims=0)
    return m.bytes({"x": [8, 8, 16]}, y, z)


def _quantised() -> bytes:
    """Eight-bit weights, and products of eight-bit activations."""
    m = Model()
    w = m.add("DequantizeLinear", m.weight(16, 32, dtype=np.int8), m.constant(0.02, np.float32))
    a = m.add("MatMul", "x", w)
    m.nodes.append(helper.make_node("DynamicQuantizeLinear", [a], ["q", "qs", "qz"]))
    p = m.add("MatMulInteger", "q", m.weight(32, 16, dtype=np.int8), "qz")
    f = m.add("Mul", m.add("Cast", p, to=TensorProto.FLOAT), "qs")
    y = m.add("Add", m.add("Mul", f, m.constant(0.01, np.float32)), m.weight(16))
    return m.bytes({"x": [8, 8, 16]}, y)


def _recurrent() -> bytes:
    m = Model()
    x = m.add("Transpose", "x", perm=[1, 0, 2])
    h = m.add("LSTM", x, m.weight(1, 32, 16), m.weight(1, 32, 8), m.weight(1, 64), hidden_size=8)
    s = m.add("Squeeze", h, m.constant([1]))
    g = m.add("GRU", s, m.weight(1, 24, 8), m.weight(1, 24, 8), hidden_size=8, linear_before_reset=1)
    y = m.add("MatMul", m.add("Squeeze", g, m.constant([1])), m.weight(8, 4))
    return m.bytes({"x": [8, 4, 16]}, y)


def _moved() -> bytes:
    """Slices, pads, tiles, gathers and a scaled image."""
    m = Model()
    a = m.add("Conv", "x", m.weight(8, 4, 1, 1))
    s = m.add("Slice", a, m.constant([0]), m.constant([8]), m.constant([1]), m.constant([2]))
    d = m.add("Pad", s, m.constant([0, 0, 1, 1, 0, 0, 1, 1]), mode="constant")
    r = m.add("Resize", a, "", m.constant([1.0, 1.0, 2.0, 2.0], np.float32), mode="linear")
    g = m.add("Gather", a, m.constant([3, 1, 0, 2, 5, 7, 6, 4]), axis=1)
    e = m.add("Expand", m.add("ReduceMax", g, m.constant([2]), keepdims=1), m.constant([4, 8, 8, 8]))
    p = m.add("DepthToSpace", m.add("Mul", e, a), blocksize=2)
    t = m.add("ConvTranspose", a, m.weight(8, 4, 2, 2), strides=[2, 2])
    return m.bytes({"x": [4, 4, 8, 8]}, d, r, p, t)


def _gates() -> bytes:
    """Elementwise functions, of one and of two arguments, and choices between them."""
    m = Model()
    a = m.add("Gemm", "x", m.weight(32, 16), m.weight(32), transB=1)
    for kind in ("Gelu", "Sigmoid", "Softplus", "Elu", "Erf", "LeakyRelu"):
        a = m.add("Add", a, m.add(kind, m.add("MatMul", a, m.weight(32, 32))))
    b = m.add("Div", a, m.add("Exp", m.add("Tanh", a)))
    c = m.add(
        "Where", m.add("Greater", a, b), m.add("Sqrt", m.add("Abs", a)), m.add("Pow", b, m.constant(2.0, np.float32))
    )
    y = m.add("Sub", c, m.add("PRelu", m.add("Max", a, b), m.weight(32)))
    return m.bytes({"x": [16, 16]}, y)


def _attention() -> bytes:
    """The fused operator of opset 23, and the products that it stands for."""
    m = Model()
    q, k, v = (m.add("MatMul", "x", m.weight(16, 16)) for _ in range(3))
    a = m.add("Attention", q, k, v, q_num_heads=4, kv_num_heads=4, is_causal=1)
    e = m.add("Einsum", a, m.weight(16, 16), equation="bsh,hk->bsk")
    y = m.add("RMSNormalization", m.add("Add", e, "x"), m.weight(16), axis=-1)
    return m.bytes({"x": [8, 8, 16]}, y, opset=23)


_SMALL: Final[dict[str, Callable[[], bytes]]] = {
    **families.FAMILIES,
    "attention": _attention,
    "gates": _gates,
    "mobile": _mobile,
    "moved": _moved,
    "norms": _norms,
    "quantised": _quantised,
    "recurrent": _recurrent,
    "reductions": _reductions,
    "shuffled": _shuffled,
    "windows": _windows,
}

_SAMPLES: Final = Path(__file__).parents[2] / "sample_graphs"


def _sample(path: Path) -> Graph:
    return import_bytes(path.read_bytes(), name=path.stem)


GRAPHS: Final[dict[str, Callable[[], Graph]]] = {
    **{name: partial(_imported, name) for name in (*_BUILT, *_SMALL, *FUSED)},
    **{path.stem: partial(_sample, path) for path in sorted(_SAMPLES.glob("*tiny.onnx"))},
}
