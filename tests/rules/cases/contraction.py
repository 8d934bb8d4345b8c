"""Small operators of one family: contraction."""

from __future__ import annotations

from collections.abc import Iterator

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
    for ta, tb in ((0, 0), (1, 0), (0, 1), (1, 1)):
        left, right = (6, 4)[:: -1 if ta else 1], (4, 12)[:: -1 if tb else 1]
        yield case("Gemm", [f(*left), f(*right), f(12)], transA=ta, transB=tb, alpha=0.5, beta=2.0)
        yield case("com.microsoft::FusedMatMul", [f(2, *left), f(2, *right)], transA=ta, transB=tb, alpha=0.5, opset=1)
    for c in ((6, 12), (6, 1), (1, 12), (1,), ()):
        yield case("Gemm", [f(6, 4), f(4, 12), f(*c)])
    yield case("Gemm", [f(6, 4), f(4, 12)])
    for equation, shapes in (
        ("bij,bjk->bik", ((2, 6, 4), (2, 4, 6))),
        ("ij,kj->ik", ((6, 4), (12, 4))),
        ("ij->ji", ((6, 4),)),
        ("...ij,...jk->...ik", ((2, 6, 4), (2, 4, 6))),
        ("bhqd,bhkd->bhqk", ((2, 2, 6, 4), (2, 2, 6, 4))),
        ("ii->i", ((6, 6),)),
        ("ij,jk", ((6, 4), (4, 6))),
        ("ij->", ((6, 4),)),
    ):
        yield case("Einsum", [f(*s) for s in shapes], equation=equation)
