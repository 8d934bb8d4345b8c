"""Small operators of one family: attention."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx

from tests.rules.cases.values import f, n
from tests.rules.prover import Case, case

__all__ = ["attention"]

_MICROSOFT = "com.microsoft::"


def _seen(*shape: int) -> np.ndarray:
    """A boolean mask that leaves every query a key, but for the first of each block."""
    mask = f(*shape) < 0.4
    mask[..., -1, :] = False
    return mask


def _floats(*shape: int) -> np.ndarray:
    """Biases, some of them −∞."""
    bias = f(*shape)
    return np.where(bias > 1, np.float32(-np.inf), bias)


def _attention(opset: int) -> Iterator[Case]:
    t = "Attention"
    yield case(t, [f(2, 4, 6, 8), f(2, 4, 6, 8), f(2, 4, 6, 8)], opset=opset)
    yield case(t, [f(2, 4, 6, 8), f(2, 4, 6, 8), f(2, 4, 6, 8)], opset=opset, is_causal=1)
    yield case(t, [f(2, 12, 4, 8), f(2, 6, 6, 8), f(2, 6, 6, 4)], opset=opset)
    yield case(t, [f(2, 12, 12, 8), f(2, 3, 12, 8), f(2, 3, 12, 4)], opset=opset, is_causal=1, softcap=2.0)
    yield case(t, [f(2, 6, 4, 8), f(2, 2, 6, 8), f(2, 2, 6, 8), f(2, 1, 4, 6)], opset=opset)
    yield case(t, [f(2, 4, 4, 8), f(2, 4, 6, 8), f(2, 4, 6, 8), f(4, 6)], opset=opset, scale=0.3)
    yield case(t, [f(2, 4, 48), f(2, 6, 16), f(2, 6, 16), f(6, 4, 6)], opset=opset, q_num_heads=6, kv_num_heads=2)
    yield case(t, [f(2, 6, 48), f(2, 6, 16), f(2, 6, 8)], opset=opset, q_num_heads=6, kv_num_heads=2, is_causal=1)
    yield case(t, [f(2, 4, 6, 8), f(2, 2, 12, 8), f(2, 2, 12, 8), _seen(2, 4, 6, 12)], opset=opset)
    yield case(t, [f(2, 4, 6, 8), f(2, 2, 6, 8), f(2, 2, 6, 8), _seen(6, 6)], opset=opset, is_causal=1)
    yield case(t, [f(2, 4, 6, 8), f(2, 2, 6, 8), f(2, 2, 6, 8), _floats(1, 4, 1, 6)], opset=opset, is_causal=1)
    yield case(t, [f(2, 4, 6, 8), f(2, 2, 6, 8), f(2, 2, 6, 8), _floats(4, 6, 6)], opset=opset, softcap=1.5)
    past = [f(2, 2, 4, 8), f(2, 2, 3, 8), f(2, 2, 3, 8), None, f(2, 2, 2, 8), f(2, 2, 2, 8)]
    yield case(t, past, opset=opset, results=3)
    past = [f(2, 4, 6, 8), f(2, 2, 6, 8), f(2, 2, 6, 4), _floats(2, 1, 6, 12), f(2, 2, 6, 8), f(2, 2, 6, 4)]
    yield case(t, past, opset=opset, results=3, is_causal=1)
    yield case(t, past, opset=opset, is_causal=1)
    yield case(t, [f(2, 6, 32), f(2, 6, 16), f(2, 6, 8), None, f(2, 2, 4, 8), f(2, 2, 4, 4)], opset=opset,
               results=3, is_causal=1, q_num_heads=4, kv_num_heads=2)  # fmt: skip
    yield case(t, [f(2, 4, 6, 8), f(2, 2, 6, 8), f(2, 2, 6, 8)], opset=opset, results=3, is_causal=1)
    yield case(t, [f(2, 4, 6, 8), f(2, 2, 6, 8), f(2, 2, 6, 8), f(12)[:6]], opset=opset)
    yield case(t, [f(2, 4, 6, 8), f(2, 2, 6, 8), f(2, 2, 6, 8), _seen(6, 1)], opset=opset, is_causal=1)
    # One new token, and a cache that is not handed on.
    yield case(t, [f(2, 4, 1, 8), f(2, 2, 1, 8), f(2, 2, 1, 8), None, f(2, 2, 12, 8), f(2, 2, 12, 8)], opset=opset)
    half = [f(2, 4, 6, 8), f(2, 2, 12, 8), f(2, 2, 12, 8)]
    yield case(t, [x.astype(np.float16) for x in half], opset=opset, softmax_precision=1)
    yield case(t, [x.astype(np.float16) for x in half], opset=opset, is_causal=1)
    for mode in range(4):
        yield case(t, [f(2, 4, 6, 8), f(2, 2, 6, 8), f(2, 2, 6, 8), _seen(6, 6)], opset=opset, is_causal=1,
                   qk_matmul_output_mode=mode, results=[True, False, False, True])  # fmt: skip


def attention() -> Iterator[Case]:
    yield from _attention(23)
    t = "Attention"
    valid = np.array([4, 9], dtype=np.int64)
    cache = [f(2, 4, 6, 8), f(2, 2, 12, 8), f(2, 2, 12, 8)]
    yield case(t, [*cache, None, None, None, valid], opset=24)
    yield case(t, [*cache, None, None, None, valid], opset=24, is_causal=1)
    yield case(t, [*cache, f(2, 1, 6, 10), None, None, valid], opset=24)
    yield case(t, [*cache, f(2, 1, 6, 8)], opset=24, is_causal=1)
    yield case(t, [*cache, _seen(6, 8)], opset=24)
    yield case(t, cache, opset=25, left_window_size=2, right_window_size=1)
    yield case(t, cache, opset=25, left_window_size=3, is_causal=1)
    yield case(t, [*cache, _seen(6, 12), None, None, valid], opset=25, left_window_size=3, right_window_size=2)
    yield from _flexible()
    yield from _linear()
    yield from _rotary()
    yield from _multi_head()
    yield from _grouped_query()
    yield from _projected()
    yield from _decoder()
    yield from _embeddings()
    yield case("SwiGLU", [f(2, 6, 12), f(2, 6, 12)], opset=28)
    yield case("SwiGLU", [f(4, 12), f(4, 12)], opset=28, alpha=1.7)


def _i(*values: object) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def _flexible() -> Iterator[Case]:
    t = "ai.onnx.preview::FlexAttention"
    yield case(t, [f(2, 8, 6, 8), f(2, 4, 12, 8), f(2, 4, 12, 4)], opset=1)
    yield case(t, [f(2, 4, 6, 8), f(2, 4, 6, 8), f(2, 4, 6, 8)], opset=1, scale=0.3)
    capped = [("Div", "scores", "cap", "a"), ("Tanh", "a", "b"), ("Mul", "b", "cap", "out")]
    yield case(t, [f(2, 8, 6, 8), f(2, 4, 6, 8), f(2, 4, 6, 8)], opset=1, score_mod=_body(capped, 2.0))
    scaled = _body([("Mul", "scores", "cap", "out")], 0.5)
    yield case(t, [f(2, 4, 6, 8), f(2, 4, 6, 8), f(2, 4, 6, 8)], opset=1, prob_mod=scaled)
    # A row more of each query: what the body says of one place depends on another.
    summed = _body([("CumSum", "scores", "axis", "out")], 0.5)
    yield case(t, [f(2, 4, 6, 8), f(2, 4, 6, 8), f(2, 4, 6, 8)], opset=1, score_mod=summed)


def _body(nodes: list[tuple[str, ...]], cap: float) -> bytes:
    """A graph from `scores` to `out`."""
    ends = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in ("scores", "out")]
    made = [onnx.helper.make_node(type_, names[:-1], names[-1:]) for type_, *names in nodes]
    constants = [("cap", np.array(cap, dtype=np.float32)), ("axis", np.array(1, dtype=np.int64))]
    held = [onnx.numpy_helper.from_array(v, k) for k, v in constants]
    return onnx.helper.make_graph(made, "body", ends[:1], ends[1:], held).SerializeToString()


def _linear() -> Iterator[Case]:
    def linear(rule: str, *inputs: np.ndarray | None, q: int = 4, kv: int = 4, **attributes: object) -> Case:
        return case("LinearAttention", list(inputs), opset=27, results=2, update_rule=rule, q_num_heads=q,
                    kv_num_heads=kv, **attributes)  # fmt: skip

    def unit(*shape: int) -> np.ndarray:
        return f(*shape) / np.float32(3)

    x, decay, rate = (unit(2, 6, 32), unit(2, 6, 32), f(2, 6, 24)), -np.abs(f(2, 6, 32)), np.abs(unit(2, 6, 4))
    state = f(2, 4, 8, 6)
    yield linear("linear", *x)
    yield linear("linear", *x, state, scale=0.3)
    yield linear("gated", *x, None, decay)
    yield linear("gated", *x, state, decay[..., :4])
    yield linear("delta", *x, None, None, rate)
    yield linear("delta", *x, state, None, rate[..., :1])
    yield linear("gated_delta", *x, None, decay, rate)
    yield linear("gated_delta", *x, state, decay[..., :4], rate)
    grouped = unit(2, 6, 48), unit(2, 6, 16), unit(2, 6, 12)
    yield linear("gated_delta", *grouped, f(2, 2, 8, 6), decay[..., :16], rate[..., :2], q=6, kv=2)
    yield linear("gated", *grouped, None, decay[..., :2], q=6, kv=2)
    yield linear("linear", unit(2, 6, 48), unit(2, 6, 8), unit(2, 6, 6), q=6, kv=1)
    yield linear("delta", *(v[:, :1] for v in x), state, None, rate[:, :1])
    every = {"q_num_heads": 4, "kv_num_heads": 4, "results": 2, "opset": 1}
    t = f"{_MICROSOFT}LinearAttention"
    yield case(t, [*x, state, decay, rate], **every)
    yield case(t, [*x, None, decay[..., :4]], update_rule="gated", **every)


def _embeddings() -> Iterator[Case]:
    def embed(*inputs: np.ndarray | None, **options: object) -> Case:
        return case(f"{_MICROSOFT}EmbedLayerNormalization", list(inputs), opset=1, **options)

    ids, tables = n(8, 2, 6).astype(np.int32), (f(8, 12), f(6, 12))
    parts, both = n(2, 2, 6).astype(np.int32), (f(12), f(12))
    mask = _i([1] * 6, [1] * 4 + [0] * 2)
    yield embed(ids, parts, *tables, f(2, 12), *both, mask, results=3)
    yield embed(ids, None, *tables, None, *both, results=2, epsilon=1e-5)
    yield embed(ids, parts, *tables, f(2, 12), *both, None, n(6, 2, 6).astype(np.int32), results=2)
    yield embed(ids, parts, *tables, f(2, 12), *both, mask, n(6, 1, 6).astype(np.int32), results=2)


def _rotary() -> Iterator[Case]:
    t = "RotaryEmbedding"
    at, table = n(12, 2, 6), (f(12, 4), f(12, 4))
    yield case(t, [f(2, 4, 6, 8), *table, at], opset=23)
    yield case(t, [f(2, 4, 6, 8), *table, at], opset=23, interleaved=1)
    yield case(t, [f(2, 4, 6, 12), *table, at], opset=23, rotary_embedding_dim=8)
    yield case(t, [f(2, 6, 32), f(2, 6, 4), f(2, 6, 4)], opset=23, num_heads=4)
    yield case(t, [f(2, 6, 48), f(2, 6, 2), f(2, 6, 2)], opset=23, num_heads=6, rotary_embedding_dim=4, interleaved=1)
    t = _MICROSOFT + t
    first = np.array([3], dtype=np.int64)
    yield case(t, [f(2, 6, 32), at, *table], opset=1)
    yield case(t, [f(2, 6, 32), first, *table], opset=1, interleaved=1)
    yield case(t, [f(2, 6, 48), at, f(12, 2), f(12, 2)], opset=1, num_heads=6, rotary_embedding_dim=4)
    yield case(t, [f(2, 4, 6, 8), at, *table], opset=1, scale=0.5)
    yield case(t, [f(2, 4, 6, 8), first, *table], opset=1)
    yield case(t, [f(2, 4, 6, 8), at, f(12, 2), f(12, 2)], opset=1, num_heads=4, rotary_embedding_dim=4, interleaved=1)
    yield case(t, [f(2, 6, 32), n(12, 2, 6), *table], opset=1, is_packed_batching=1)


def _multi_head() -> Iterator[Case]:
    t = f"{_MICROSOFT}MultiHeadAttention"

    def mha(*inputs: np.ndarray | None, results: int | list[bool] = 1, **attributes: object) -> Case:
        return case(t, list(inputs), opset=1, num_heads=4, results=results, **attributes)

    q, k, v = f(2, 6, 32), f(2, 4, 32), f(2, 4, 16)
    same, long = f(2, 4, 32), (f(2, 12, 32), f(2, 12, 32))
    padding = _i([1, 1, 0, 0], [1, 1, 1, 1])
    yield mha(q, k, v)
    yield mha(q, k, v, f(80))
    yield mha(q, k, v, None, padding, scale=0.3)
    yield mha(q, k, v, None, _i(2, 4))
    yield mha(q, k, v, None, _i(2, 4, 0, 2, 4, 0, 4, 8))
    yield mha(q, k, v, None, (f(2, 6, 4) < 0.8).astype(np.int32))
    yield mha(q, k, v, None, None, f(1, 4, 6, 4))
    yield mha(q, k, v, f(80), padding, f(2, 1, 6, 4))
    yield mha(q, q + 1, f(2, 6, 16), unidirectional=1)
    yield mha(q, *long, f(96), None, f(1, 1, 6, 12))
    yield mha(q, k, same, None, None, None, f(2, 4, 2, 8), f(2, 4, 2, 8), results=3)
    yield mha(q, k, same, f(96), _i([1] * 6, [1] * 5 + [0]), None, f(2, 4, 2, 8), f(2, 4, 2, 8), results=3)
    yield mha(q, k, same, None, None, f(1, 4, 6, 6), f(2, 4, 2, 8), f(2, 4, 2, 8), results=3)
    yield mha(q, k, same, results=3)
    yield mha(q, f(2, 4, 6, 8), f(2, 4, 6, 8))
    yield mha(q, f(2, 4, 6, 8), f(2, 4, 6, 8), f(96))
    yield mha(f(2, 6, 4, 3, 8))
    yield mha(f(2, 6, 4, 3, 8), None, None, f(96), _i([1] * 6, [1] * 3 + [0] * 3))
    yield mha(q, f(2, 4, 4, 2, 8), None)
    yield mha(q, k, same, results=[True, False, False, True])
    yield mha(q[:, :1], k[:, :1], same[:, :1], None, None, None, f(2, 4, 8, 8), f(2, 4, 8, 8), _i(3), results=3)


def _grouped_query() -> Iterator[Case]:
    def gqa(*inputs: np.ndarray | None, **attributes: object) -> Case:
        t = f"{_MICROSOFT}GroupQueryAttention"
        return case(t, list(inputs), opset=1, results=3, **{"num_heads": 8, "kv_num_heads": 2, **attributes})

    q, k, v = f(2, 6, 64), f(2, 6, 16), f(2, 6, 16)
    lengths, total = _i(5, 3), np.array(6, dtype=np.int32)
    angles = f(12, 8)
    turned = np.cos(angles), np.sin(angles)
    cache = f(2, 2, 6, 8), f(2, 2, 6, 8)
    yield gqa(q, k, v, None, None, lengths, total)
    yield gqa(q, k, v, None, None, lengths, total, causal=0)
    yield gqa(q[:, :1], k[:, :1], v[:, :1], *cache, lengths, total, scale=0.3)
    yield gqa(f(2, 6, 96), None, None, None, None, _i(5, 5), total, softcap=2.0)
    yield gqa(q, k, v, None, None, _i(5, 5), total, None, None, None, f(1, 8, 6, 6), f(8), local_window_size=3)
    yield gqa(f(2, 6, 72), f(2, 6, 24), f(2, 6, 24), None, None, lengths, total, num_heads=9, kv_num_heads=3)
    wide = f(2, 6, 128), f(2, 6, 32), f(2, 6, 32)
    yield gqa(*wide, None, None, lengths, total, *turned, do_rotary=1)
    at = np.arange(6) + np.array([[2], [4]])
    yield gqa(*wide, None, None, lengths, total, *turned, at, do_rotary=1, rotary_interleaved=1)
    caches = f(2, 2, 6, 16), f(2, 2, 6, 16)
    token = [x[:, :1] for x in wide]
    yield gqa(*token, *caches, lengths, total, *turned, _i([5], [3]).astype(np.int64), do_rotary=1)
    yield gqa(f(2, 1, 192), None, None, *caches, lengths, total, *turned, do_rotary=1)


def _projected() -> Iterator[Case]:
    def attention(*inputs: np.ndarray | None, results: int = 1, heads: int = 4, **attributes: object) -> Case:
        t = f"{_MICROSOFT}Attention"
        return case(t, list(inputs), opset=1, results=results, num_heads=heads, **attributes)

    x, w, bias = f(2, 6, 12), f(12, 96), f(96)
    yield attention(x, w, bias)
    yield attention(x, w)
    yield attention(x, f(12, 80), f(80), qkv_hidden_sizes=(32, 32, 16))
    yield attention(x, w, bias, results=2, unidirectional=1)
    yield attention(x, w, bias, _i([1, 1, 1, 1, 0, 0], [1] * 6))
    yield attention(x, w, bias, (f(2, 6, 6) < 0.8).astype(np.int32))
    yield attention(x, w, bias, _i(3, 6))
    yield attention(x, w, bias, _i(3, 6, 0, 1))
    yield attention(x, w, bias, None, f(2, 2, 4, 3, 8), results=2)
    yield attention(x, w, bias, None, None, f(1, 4, 6, 6))
    yield attention(x, f(12, 144), f(144), heads=6, scale=0.3)

    def quantized(*inputs: np.ndarray | None, results: int = 1, **attributes: object) -> Case:
        t = f"{_MICROSOFT}QAttention"
        return case(t, list(inputs), opset=1, results=results, num_heads=4, **attributes)

    q, qw = n(255, 2, 6, 12).astype(np.uint8), (n(128, 12, 96) - 64).astype(np.int8)  # as in qlinear
    one, two, three, none = np.float32(0.01), np.float32(0.02), np.uint8(3), np.int8(0)
    yield quantized(q, qw, bias, one, two, None, three, none)
    yield quantized(q, qw, bias, one, np.abs(bias) * one, _i(3, 6), three, np.zeros(96, np.int8), unidirectional=1)
    yield quantized(q, qw, bias, one, two, None, three, none, f(2, 2, 4, 3, 8), results=2)


def _decoder() -> Iterator[Case]:
    def decoder(*inputs: np.ndarray | None, results: int = 1, **attributes: object) -> Case:
        t = f"{_MICROSOFT}DecoderMaskedMultiHeadAttention"
        return case(t, list(inputs), opset=1, results=results, num_heads=4, **attributes)

    one = f(2, 1, 32)
    cache = f(2, 4, 8, 8), f(2, 4, 8, 8), _i(3)
    yield decoder(one, one + 1, one - 1, None, None, *cache, results=3, past_present_share_buffer=1)
    yield decoder(one, f(2, 4, 5, 8), f(2, 4, 5, 8))
