"""Small operators of one family: contraction."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from tests.rules.cases.values import f
from tests.rules.prover import Case, case

__all__ = ["contractions"]


def contractions() -> Iterator[Case]:
    for a, b in (
        ((6, 4), (4, 12)),
        ((2, 3, 6, 4), (4, 6)),
        ((2, 3, 6, 4), (2, 3, 4, 6)),
        ((3, 6, 4), (2, 1, 4, 6)),
        ((4,), (4, 6)),
        ((6, 4), (4,)),
        ((4,), (4,)),
        ((2, 6, 4), (4,)),
        ((4,), (2, 4, 6)),
        ((1, 4), (4, 6)),
    ):
        yield case("MatMul", [f(*a), f(*b)])
    yield case("MatMul", [f(6, 4).astype(np.float16), f(4, 12).astype(np.float16)])
    for ta, tb in itertools.product((0, 1), repeat=2):
        left, right = (6, 4)[:: -1 if ta else 1], (4, 12)[:: -1 if tb else 1]
        yield case("Gemm", [f(*left), f(*right), f(12)], transA=ta, transB=tb, alpha=0.5, beta=2.0)
        yield case(
            "com.microsoft::FusedGemm", [f(*left), f(*right), f(12)], transA=ta, transB=tb, opset=1, activation="Relu"
        )
        yield case("com.microsoft::FusedMatMul", [f(2, *left), f(2, *right)], transA=ta, transB=tb, alpha=0.5, opset=1)
        yield case("com.microsoft::TransposeMatMul", [f(2, *left), f(*right)], transA=ta, transB=tb, opset=1)
        apart = [f(left[0], 2, left[1]), f(right[0], 2, right[1])]
        yield case("com.microsoft::FusedMatMul", apart, transA=ta, transB=tb, transBatchA=1, transBatchB=1, opset=1)
        mixed = [f(left[0], 2, 3, left[1]), f(2, 3, *right)]
        yield case("com.microsoft::FusedMatMul", mixed, transA=ta, transB=tb, transBatchA=1, opset=1)
    for c in ((6, 12), (6, 1), (1, 12), (1,), (), (12,)):
        yield case("Gemm", [f(6, 4), f(4, 12), f(*c)])
    yield case("Gemm", [f(6, 4), f(4, 12)])
    yield case("com.microsoft::FusedMatMulActivation", [f(2, 6, 4), f(4, 12)], activation="Tanh", opset=1)
    yield case("com.microsoft::GemmFastGelu", [f(2, 6, 4), f(4, 12), f(12)], opset=1)
    yield from _sums()
    for metric in ("sqeuclidean", "euclidean"):
        yield case("com.microsoft::CDist", [f(6, 4), f(12, 4)], metric=metric, opset=1)
    for shape in ((6, 3, 3), (2, 6, 2, 2), (4, 4)):
        well = f(*shape) + 4 * np.eye(shape[-1], dtype=np.float32)
        yield case("Det", [well])
        yield case("com.microsoft::Inverse", [well], opset=1)
    for x in (f(2, 6, 4), f(6, 4), f(2, 3, 2, 4)):
        yield case("planner::SwiGLUMatMul", [x, f(4, 12), f(4, 12)], opset=1)


def _sums() -> Iterator[Case]:
    for equation, shapes in (
        ("bij,bjk->bik", ((2, 6, 4), (2, 4, 6))),
        ("ij,kj->ik", ((6, 4), (12, 4))),
        ("ij->ji", ((6, 4),)),
        ("...ij,...jk->...ik", ((2, 6, 4), (2, 4, 6))),
        ("...ij,jk->...ik", ((2, 3, 6, 4), (4, 6))),
        ("bhqd,bhkd->bhqk", ((2, 2, 6, 4), (2, 2, 6, 4))),
        ("bqhd,bkhd->bhqk", ((2, 6, 2, 4), (2, 6, 2, 4))),
        ("ii->i", ((6, 6),)),
        ("ii", ((6, 6),)),
        ("bii,bj->bj", ((4, 3, 3), (4, 6))),
        ("iij,j->ij", ((4, 4, 6), (6,))),
        ("ij,jk", ((6, 4), (4, 6))),
        ("ij->", ((6, 4),)),
        ("i,j->ij", ((6,), (4,))),
        ("ij,jk,kl->il", ((6, 4), (4, 6), (6, 2))),
        ("b i j , b j -> b i", ((2, 6, 4), (2, 4))),
        ("ij,ij->ij", ((6, 4), (1, 4))),
    ):
        yield case("Einsum", [f(*s) for s in shapes], equation=equation)
