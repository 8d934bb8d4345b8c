"""The rules as a table, alphabetical by operator: shapes, attributes and the expansion in text (see `describe`).

Operands are written as shapes; `-` is an absent operand, `i…` an integer operand, `=…` a constant whose value
the rule reads.  Dimensions written `_` are never split.
"""

# ruff: noqa: E501  expansions are lines to be read beside each other

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from planner.ir import Graph, Op, Role, Tensor
from planner.rules import rule_for
from planner.rules.notation import describe

TABLE: list[tuple[str, str, str, dict[str, Any], str]] = [
    # operator, operands, results, attributes, expansion
    ("Add", "2x8x6 6", "2x8x6", {}, "d0=2 d1=8 d2=6: d0 d1 d2, d2 -> d0 d1 d2 | linear 0 1 | d 0 1"),
    ("Add", "2x8x6 2x1x1", "2x8x6", {}, "d0=2 d1=8 d2=6: d0 d1 d2, d0 _ _ -> d0 d1 d2 | linear 0 1 | d 0 1"),
    ("ArgMax", "4x6", "i4", {"axis": 1, "keepdims": 0}, "d0=4 d1=6: d0 d1 -> d0 | d1 inner"),
    (
        "Attention",
        "2x8x16x32 2x2x16x32 2x2x16x32",
        "2x8x16x32",
        {"is_causal": 1, "opset": 23},
        "b=2 h=2 g=4 s=16 e!=32 t=16 f!=32: b (h g) s e, b h t e, b h t f -> b (h g) s f | t inner | linear 2 | d 0 1 2",
    ),
    (
        "Attention",
        "2x16x256 2x16x64 2x16x64 16x16",
        "2x16x256",
        {"q_num_heads": 8, "kv_num_heads": 2, "opset": 23},
        "b=2 s=16 h=2 g=4 e!=32 t=16 f!=32: b s (h g e), b t (h e), b t (h f), s _ -> b s (h g f) | t inner | linear 2 "
        "| d 0 1 2 3",
    ),
    (
        "Attention",
        "2x8x1x32 2x2x1x32 2x2x1x32 - 2x2x15x32 2x2x15x32",
        "2x8x1x32 2x2x16x32 2x2x16x32",
        {"is_causal": 1, "opset": 23},
        "b=2 h=2 g=4 e!=32 f!=32 p!=15: b (h g) _ e, b h _ e, b h _ f, -, b h p e, b h p f -> "
        "b (h g) _ f, b h _ e, b h _ f | g inner | d 0 1 2 4 5",
    ),
    (
        "AveragePool",
        "2x6x8x8",
        "2x6x4x4",
        {"kernel_shape": (2, 2), "strides": (2, 2)},
        "n=2 c=6 y0=4 u0!=2 y1=4 u1!=2: n c (y0 u0) (y1 u1) -> n c y0 y1 | linear 0 | d 0",
    ),
    (
        "BatchNormalization",
        "8x64x14x14 64 64 64 64",
        "8x64x14x14",
        {},
        "n=8 c=64 x0=14 x1=14: n c x0 x1, c, c, c, c -> n c x0 x1 | linear 0 2 3 | d 0 1 2 3 4",
    ),
    (
        "BatchNormalization",
        "8x64x14x14 64 64 64 64",
        "8x64x14x14 64 64",
        {"training_mode": 1},
        "n=8 c=64 x0=14 x1=14: n c x0 x1, c, c, c, c -> n c x0 x1, c, c | n inner, x0 inner, x1 inner | d 0 1 2",
    ),
    ("Cast", "4x6", "4x6", {"to": 1}, "d0=4 d1=6: d0 d1 -> d0 d1 | linear 0 | d 0"),
    ("Cast", "4x6", "i4x6", {"to": 7}, "d0=4 d1=6: d0 d1 -> d0 d1"),
    (
        "Concat",
        "4x6 4x2",
        "4x8",
        {"axis": 1},
        "d0=4 s1=2 u1_0!=3 u1_2!=4: d0 (s1 u1_0), d0 s1 -> d0 (s1 u1_2) | linear 0 1 | d 0 1",
    ),
    (
        "Conv",
        "8x64x14x14 128x64x3x3 128",
        "8x128x14x14",
        {"pads": (1, 1, 1, 1)},
        "n=8 i=64 y0=14 y1=14 o=128: n i y0 y1, o i _ _, +o -> n o y0 y1 | i sum | linear 0 2; 1 2 | d 0 1 2",
    ),
    (
        "Conv",
        "8x64x14x14 64x1x3x3",
        "8x64x14x14",
        {"pads": (1, 1, 1, 1), "group": 64},
        "n=8 g=64 y0=14 y1=14: n g y0 y1, g _ _ _ -> n g y0 y1 | linear 0; 1 | d 0 1",
    ),
    (
        "Conv",
        "8x3x224x224 768x3x16x16 768",
        "8x768x14x14",
        {"strides": (16, 16)},
        "n=8 i=3 y0=14 u0!=16 y1=14 u1!=16 o=768: n i (y0 u0) (y1 u1), o i _ _, +o -> n o y0 y1 | i sum | linear 0 2; 1 2 | d 0 1 2",
    ),
    (
        "ConvTranspose",
        "2x4x5x5 4x6x3x3 6",
        "2x6x11x11",
        {"strides": (2, 2)},
        "n=2 i=4 v0!=5 v1!=5 o=6 u0!=11 u1!=11: n i v0 v1, i o _ _, +o -> n o u0 u1 | i sum | linear 0 2; 1 2 | d 0 1 2",
    ),
    ("CumSum", "4x6 =1", "4x6", {}, "d0=4 d1=6: d0 d1, - -> d0 d1 | linear 0 | d 0"),
    ("Det", "6x3x3", "6", {}, "b0=6: b0 _ _ -> b0 | d 0"),
    ("Div", "4x6 4x1", "4x6", {}, "d0=4 d1=6: d0 d1, d0 _ -> d0 d1 | linear 0 | d 0 1"),
    ("Dropout", "4x6", "4x6", {}, "d0=4 d1=6: d0 d1 -> d0 d1 | linear 0 | d 0"),
    ("Dropout", "4x6 . .", "4x6 4x6", {}, "d0=4 d1=6: d0 d1, -, - -> d0 d1, d0 d1 | d 0"),
    ("DynamicQuantizeLinear", "4x6", "i4x6 . i.", {}, "d0=4 d1=6: d0 d1 -> d0 d1, scalar, scalar | d0 inner, d1 inner"),
    (
        "Einsum",
        "2x6x4 2x4x8",
        "2x6x8",
        {"equation": "bij,bjk->bik"},
        "b=2 i=6 j=4 k=8: b i j, b j k -> b i k | j sum | linear 0; 1 | d 0 1",
    ),
    ("Equal", "4x6 4x6", "4x6", {}, "d0=4 d1=6: d0 d1, d0 d1 -> d0 d1"),
    ("Expand", "6x1 =4,6,12", "4x6x12", {}, "d1=6 d2=12 d0=4: d1 _, - -> d0 d1 d2 | linear 0 | d 0"),
    ("Flatten", "8x64x2", "8x128", {"axis": 1}, "r0=8 r1=64 r2=2: r0 r1 r2 -> r0 (r1 r2) | linear 0 | d 0"),
    (
        "Gather",
        "50257x768 i4x128",
        "4x128x768",
        {},
        "v=50257 r0=768 i0=4 i1=128: v r0, i0 i1 -> i0 i1 r0 | v sum | linear 0 | d 0",
    ),
    ("Gather", "4x12x6 i.", "4x6", {"axis": 1}, "l0=4 v=12 r0=6: l0 v r0, scalar -> l0 r0 | v sum | linear 0 | d 0"),
    ("GatherElements", "4x6 i4x12", "4x12", {"axis": 1}, "d0=4 v=6 i=12: d0 v, d0 i -> d0 i | v sum | linear 0 | d 0"),
    (
        "GatherND",
        "4x6x12 i4x6x1",
        "4x6x12",
        {"batch_dims": 1},
        "b0=4 v0=6 r0=12 i0=6: b0 v0 r0, b0 i0 _ -> b0 i0 r0 | v0 sum | linear 0 | d 0",
    ),
    ("Gelu", "4x6", "4x6", {}, "d0=4 d1=6: d0 d1 -> d0 d1 | d 0"),
    (
        "Gemm",
        "8x512 1000x512 1000",
        "8x1000",
        {"transB": 1},
        "m=8 k=512 n=1000: m k, n k, +n -> m n | k sum | linear 0 2; 1 2 | d 0 1 2",
    ),
    ("Gemm", "512x8 512x16", "8x16", {"transA": 1}, "k=512 m=8 n=16: k m, k n -> m n | k sum | linear 0; 1 | d 0 1"),
    (
        "GlobalAveragePool",
        "8x64x7x7",
        "8x64x1x1",
        {},
        "n=8 c=64 x0=7 x1=7: n c x0 x1 -> n c _ _ | x0 mean, x1 mean | linear 0 | d 0",
    ),
    ("GlobalMaxPool", "8x64x7x7", "8x64x1x1", {}, "n=8 c=64 x0=7 x1=7: n c x0 x1 -> n c _ _ | x0 max, x1 max | d 0"),
    ("Identity", "4x6", "4x6", {}, "d0=4 d1=6: d0 d1 -> d0 d1 | linear 0 | d 0"),
    ("LRN", "2x6x4x4", "2x6x4x4", {"size": 5}, "n=2 c=6 x0=4 x1=4: n c x0 x1 -> n c x0 x1 | d 0"),
    (
        "LSTM",
        "5x6x4 1x20x4 1x20x5",
        "5x1x6x5 1x6x5",
        {"hidden_size": 5},
        "t!=5 b=6 i!=4 h!=5: t b i, _ _ _, _ _ _ -> t _ b h, _ b h | d 0 1 2",
    ),
    (
        "LSTM",
        "5x6x4 2x20x4 2x20x5",
        "5x2x6x5 2x6x5",
        {"hidden_size": 5, "direction": "bidirectional"},
        "t!=5 b=6 i!=4 d=2 h!=5: t b i, d _ _, d _ _ -> t d b h, d b h | d 0 1 2",
    ),
    (
        "LayerNormalization",
        "2x16x32 32 32",
        "2x16x32 2x16x1 2x16x1",
        {},
        "d0=2 d1=16 d2=32: d0 d1 d2, d2, d2 -> d0 d1 d2, d0 d1 _, d0 d1 _ | d2 inner | d 0 1 2",
    ),
    (
        "LinearAttention",
        "2x64x256 2x64x128 2x64x64 2x4x32x16 2x64x4 2x64x4",
        "2x64x128 2x4x32x16",
        {"q_num_heads": 8, "kv_num_heads": 4, "opset": 27},
        "b=2 t=64 h=4 g=2 e!=32 f=16: b t (h g e), b t (h e), b t (h f), b h e f, b t h, b t h -> b t (h g f), b "
        "h e f | t inner, g inner | linear 2 3 | d 0 1 2 3 4 5",
    ),
    (
        "MatMul",
        "2x12x16x64 2x12x64x16",
        "2x12x16x16",
        {},
        "b0=2 b1=12 m=16 k=64 n=16: b0 b1 m k, b0 b1 k n -> b0 b1 m n | k sum | linear 0; 1 | d 0 1",
    ),
    (
        "MatMul",
        "4x128x768 768x3072",
        "4x128x3072",
        {},
        "b0=4 m=128 k=768 n=3072: b0 m k, k n -> b0 m n | k sum | linear 0; 1 | d 0 1",
    ),
    ("MatMul", "64 64x8", "8", {}, "k=64 n=8: k, k n -> n | k sum | linear 0; 1 | d 0 1"),
    ("Max", "4x6 6", "4x6", {}, "d0=4 d1=6: d0 d1, d1 -> d0 d1 | d 0 1"),
    (
        "MaxPool",
        "8x64x12x12",
        "8x64x6x6",
        {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)},
        "n=8 c=64 y0=6 u0!=2 y1=6 u1!=2: n c (y0 u0) (y1 u1) -> n c y0 y1 | d 0",
    ),
    ("Mul", "4x6 .", "4x6", {}, "d0=4 d1=6: d0 d1, scalar -> d0 d1 | linear 0; 1 | d 0 1"),
    ("Neg", "4x6", "4x6", {}, "d0=4 d1=6: d0 d1 -> d0 d1 | linear 0 | d 0"),
    ("OneHot", "i4x6 =8 2", "4x6x8", {}, "d0=4 d1=6 v=8: d0 d1, -, _ -> d0 d1 v | linear 2"),
    ("Pad", "4x6 =0,1,0,1", "4x8", {}, "d0=4 s1=2 u1_0!=3 u1_1!=4: d0 (s1 u1_0), - -> d0 (s1 u1_1) | linear 0 | d 0"),
    ("Pow", "4x6 .", "4x6", {}, "d0=4 d1=6: d0 d1, scalar -> d0 d1 | d 0 1"),
    ("RMSNormalization", "2x16x32 32", "2x16x32", {"opset": 23}, "d0=2 d1=16 d2=32: d0 d1 d2, d2 -> d0 d1 d2 | d 0 1"),
    ("Range", "i. i. i.", "i6", {}, "d=6: -, -, - -> d"),
    ("ReduceL2", "4x6 =1", "4x1", {}, "d0=4 d1=6: d0 d1, - -> d0 _ | d1 inner | d 0"),
    ("ReduceMax", "4x6 =1", "4", {"keepdims": 0}, "d0=4 d1=6: d0 d1, - -> d0 | d1 max | d 0"),
    ("ReduceMean", "4x6", "4x1", {"axes": (1,), "opset": 13}, "d0=4 d1=6: d0 d1 -> d0 _ | d1 mean | linear 0 | d 0"),
    ("ReduceMean", "2x16x32 =-1", "2x16x1", {}, "d0=2 d1=16 d2=32: d0 d1 d2, - -> d0 d1 _ | d2 mean | linear 0 | d 0"),
    ("ReduceSum", "4x6 =0", "6", {"keepdims": 0}, "d0=4 d1=6: d0 d1, - -> d1 | d0 sum | linear 0 | d 0"),
    ("Relu", "4x6", "4x6", {}, "d0=4 d1=6: d0 d1 -> d0 d1 | d 0"),
    (
        "Reshape",
        "4x128x768 =4,128,12,64",
        "4x128x12x64",
        {},
        "r0=4 r1=128 r2=12 r3=64: r0 r1 (r2 r3), - -> r0 r1 r2 r3 | linear 0 | d 0",
    ),
    ("Reshape", "4x128x768 =512,768", "512x768", {}, "r0=4 r1=128 r2=768: r0 r1 r2, - -> (r0 r1) r2 | linear 0 | d 0"),
    ("Reshape", "6x4 =4,6", "4x6", {}, "r0=2 r1!=3 r2!=4 r3!=2 r4!=6: (r0 r1) r2, - -> (r0 r3) r4 | linear 0 | d 0"),
    (
        "Resize",
        "2x6x4x4 - =1,1,2,2",
        "2x6x8x8",
        {},
        "d0=2 d1=6 y0=4 y1=4 v0!=2 v1!=2: d0 d1 y0 y1, -, - -> d0 d1 (y0 v0) (y1 v1) | linear 0 | d 0",
    ),
    (
        "RotaryEmbedding",
        "2x16x256 128x16 128x16 i2x16",
        "2x16x256",
        {"num_heads": 8, "opset": 23},
        "b=2 s=16 h=8 e!=32: b s (h e), _ _, _ _, b s -> b s (h e) | linear 0 | d 0",
    ),
    (
        "ScatterElements",
        "4x12 i4x6 4x6",
        "4x12",
        {"axis": 1},
        "d0=4 v=12 i!=6: d0 v, d0 i, d0 i -> d0 v | linear 0 2 | d 0 2",
    ),
    (
        "ScatterND",
        "12x6 i4x1 4x6",
        "12x6",
        {"reduction": "add"},
        "v0=12 r0=6 i0=4: +v0 r0, i0 _, i0 r0 -> v0 r0 | i0 sum | linear 0 2 | d 0 2",
    ),
    (
        "Slice",
        "4x6x12 =0 =3 =1",
        "4x3x12",
        {},
        "d0=4 s1=3 u1_0!=2 d2=12: d0 (s1 u1_0) d2, -, -, - -> d0 s1 d2 | linear 0 | d 0",
    ),
    ("Softmax", "2x12x16x16", "2x12x16x16", {}, "d0=2 d1=12 d2=16 d3=16: d0 d1 d2 d3 -> d0 d1 d2 d3 | d 0"),
    ("Softmax", "4x6x12", "4x6x12", {"opset": 11, "axis": 1}, "d0=4 d1=6 d2=12: d0 d1 d2 -> d0 d1 d2 | d 0"),
    (
        "SoftmaxCrossEntropyLoss",
        "512x1000 i512",
        ". 512x1000",
        {},
        "n=512 c=1000: n c, n -> scalar, n c | n inner, c inner | d 0",
    ),
    (
        "SoftmaxCrossEntropyLoss",
        "8x10x4 i8x4",
        ".",
        {"reduction": "sum"},
        "n=8 c=10 d0=4: n c d0, n d0 -> scalar | n sum, c inner, d0 sum | d 0",
    ),
    ("Split", "4x6", "4x2 4x4", {"axis": 1}, "d0=4: d0 _ -> d0 _, d0 _ | linear 0 | d 0"),
    ("Squeeze", "4x1x6 =1", "4x6", {}, "r0=4 r1=6: r0 _ r1, - -> r0 r1 | linear 0 | d 0"),
    (
        "Squeeze",
        "4x1x6",
        "4x6",
        {},
        "r0=4 r1=6: r0 _ r1 -> r0 r1 | linear 0 | d 0",
    ),
    ("Sub", "4x6 4x6", "4x6", {}, "d0=4 d1=6: d0 d1, d0 d1 -> d0 d1 | linear 0 1 | d 0 1"),
    (
        "SwiGLU",
        "2x16x256 2x16x256",
        "2x16x256",
        {"opset": 28},
        "d0=2 d1=16 d2=256: d0 d1 d2, d0 d1 d2 -> d0 d1 d2 | linear 1 | d 0 1",
    ),
    ("Tanh", "4x6", "4x6", {}, "d0=4 d1=6: d0 d1 -> d0 d1 | d 0"),
    ("Tile", "4x6 =1,2", "4x12", {}, "d0=4 d1=6 k1=2: d0 d1, - -> d0 (k1 d1) | linear 0 | d 0"),
    ("TopK", "4x12 =3", "4x3 i4x3", {}, "d0=4 v=12: d0 v, - -> d0 _, d0 _ | v inner | d 0"),
    (
        "Transpose",
        "2x16x12x64",
        "2x12x16x64",
        {"perm": (0, 2, 1, 3)},
        "d0=2 d1=16 d2=12 d3=64: d0 d1 d2 d3 -> d0 d2 d1 d3 | linear 0 | d 0",
    ),
    ("Unsqueeze", "4x6 =0", "1x4x6", {}, "r0=4 r1=6: r0 r1, - -> _ r0 r1 | linear 0 | d 0"),
    ("Where", "i4x6 4x1 6", "4x6", {}, "d0=4 d1=6: d0 d1, d0 _, d1 -> d0 d1 | linear 1 2 | d 1 2"),
    (
        "ai.onnx.preview::FlexAttention",
        "2x8x16x32 2x2x64x32 2x2x64x16",
        "2x8x16x16",
        {"opset": 1},
        "b=2 h=2 g=4 s=16 e!=32 t=64 f!=16: b (h g) s e, b h t e, b h t f -> b (h g) s f | t inner | linear 2 | "
        "d 0 1 2",
    ),
    (
        "com.microsoft::Attention",
        "2x16x64 64x192 192",
        "2x16x64",
        {"num_heads": 4},
        "b=2 h=4 f!=16: b _ _, _ _, _ -> b _ (h f) | d 0 1 2",
    ),
    (
        "com.microsoft::ConvGrad",
        "8x16x5x5 8x4x5x5 16x4x3x3",
        "8x4x5x5 16x4x3x3 16",
        {"pads": (1, 1, 1, 1)},
        "n=8 o=16 y0=5 y1=5 i=4: n o y0 y1, n i y0 y1, o i _ _ -> n i y0 y1, o i _ _, o | n sum, o sum, y0 sum, y1 sum, i inner | linear 0",
    ),
    (
        "com.microsoft::EmbedLayerNormalization",
        "i2x16 - 100x64 32x64 - 64 64",
        "2x16x64",
        {},
        "b=2 s=16 h!=64: b s, -, _ h, _ h, -, h, h -> b s h | d 2 3 5 6",
    ),
    (
        "com.microsoft::FusedMatMul",
        "2x8x16 64x16",
        "2x8x64",
        {"transB": 1},
        "b0=2 m=8 k=16 n=64: b0 m k, n k -> b0 m n | k sum | linear 0; 1 | d 0 1",
    ),
    (
        "com.microsoft::GatherGrad",
        "=12,6 i4x2 4x2x6",
        "12x6",
        {"axis": 0},
        "i0=4 i1=2 r0=6 v=12: -, i0 i1, i0 i1 r0 -> v r0 | i0 sum, i1 sum | linear 2",
    ),
    (
        "com.microsoft::GroupQueryAttention",
        "2x16x256 2x16x64 2x16x64 2x2x64x32 2x2x64x32 i2 i.",
        "2x16x256 2x2x80x32 2x2x80x32",
        {"num_heads": 8, "kv_num_heads": 2},
        "b=2 h=2 g=4 e!=32 f!=32: b _ (h g e), b _ (h e), b _ (h f), b h _ _, b h _ _, b, scalar -> b _ (h g e), "
        "b h _ _, b h _ _ | g inner | d 0 1 2 3 4",
    ),
    (
        "com.microsoft::LayerNormalizationGrad",
        "4x6x8 4x6x8 8 4x6x1 4x6x1",
        "4x6x8 8 8",
        {"axis": -1},
        "d0=4 d1=6 d2=8: d0 d1 d2, d0 d1 d2, d2, d0 d1 _, d0 d1 _ -> d0 d1 d2, d2, d2 | d0 sum, d1 sum | linear 0",
    ),
    (
        "com.microsoft::MultiHeadAttention",
        "2x16x64 2x32x64 2x32x64 192 i2x32",
        "2x16x64",
        {"num_heads": 4},
        "b=2 s=16 h=4 e!=16 t=32 f!=16: b s (h e), b t (h e), b t (h f), _, b _ -> b s (h f) | t inner | d 0 1 2 3",
    ),
    (
        "com.microsoft::RotaryEmbedding",
        "2x16x256 i1 128x16 128x16",
        "2x16x256",
        {},
        "b=2 s=16 h=8 e!=32: b s (h e), _, _ _, _ _ -> b s (h e) | linear 0 | d 0",
    ),
    (
        "com.microsoft::SoftmaxCrossEntropyLossGrad",
        ". 12x6 i12",
        "12x6",
        {},
        "n=12 c=6: scalar, n c, n -> n c | linear 0",
    ),
    (
        "planner::DeformConv3D",
        "8x16x4x12x12 32x16x3x3x3 8x81x4x12x12 32 8x27x4x12x12",
        "8x32x4x12x12",
        {"pads": (1, 1, 1, 1, 1, 1)},
        "n=8 i=16 o=32 y0=4 y1=12 y2=12: n i _ _ _, o i _ _ _, n _ y0 y1 y2, +o, n _ y0 y1 y2 -> n o y0 y1 y2 | i sum | "
        "linear 0 3; 1 3; 3 4 | d 0 1 2 3 4",
    ),
    (
        "planner::ExpertMatMul",
        "128x64 8x256x64 i128x1 8x256",
        "128x256",
        {"transB": 1},
        "t0=128 k=64 e=8 n=256: t0 k, e n k, t0 _, +e n -> t0 n | k sum, e sum | linear 0 3; 1 3 | d 0 1 3",
    ),
    (
        "planner::SegmentSum",
        "512x64 i512",
        "32x64",
        {"num_segments": 32},
        "n=512 d0=64 s=32: n d0, n -> s d0 | n sum | linear 0 | d 0",
    ),
    (
        "planner::SwiGLUMatMul",
        "2x16x64 64x256 64x256",
        "2x16x256",
        {},
        "t0=2 t1=16 k=64 n=256: t0 t1 k, k n, k n -> t0 t1 n | k inner | linear 2 | d 0 1 2",
    ),
]


def expansion(type: str, operands: str, results: str, attributes: dict[str, Any]) -> str:
    """Expansion of a rule; the operator set is 21 unless `opset` is among the attributes."""
    tensors: dict[str, Tensor] = {}

    def tensor(word: str, name: str) -> str:
        if word == "-":
            return ""
        if word.startswith("="):
            value = np.array([int(v) for v in word[1:].split(",") if v], dtype=np.int64)
            tensors[name] = Tensor(name, value.shape, "int64", Role.CONSTANT, value)
        else:
            shape = tuple(int(s) for s in word.lstrip("i").split("x") if s != ".")
            tensors[name] = Tensor(name, shape, "int64" if word.startswith("i") else "float32", Role.INPUT)
        return name

    inputs = tuple(tensor(w, f"x{i}") for i, w in enumerate(operands.split()))
    outputs = tuple(tensor(w, f"y{j}") for j, w in enumerate(results.split()))
    kept = {k: v for k, v in attributes.items() if k != "opset"}
    op = Op(next(filter(None, outputs)), type, inputs, outputs, kept, attributes.get("opset", 21))
    rule = rule_for(op, Graph((op,), tensors, inputs, outputs))
    assert rule is not None
    return rule.text if rule.text.startswith("whole:") else describe(rule)


@pytest.mark.parametrize(("type", "operands", "results", "attributes", "expected"), TABLE, ids=lambda v: str(v)[:40])
def test_expansion(type: str, operands: str, results: str, attributes: dict[str, Any], expected: str) -> None:
    assert expansion(type, operands, results, attributes) == expected


def test_the_table_is_alphabetical() -> None:
    types = [row[0] for row in TABLE]
    assert types == sorted(types)
