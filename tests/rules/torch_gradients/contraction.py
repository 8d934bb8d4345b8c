"""Products of matrices, convolutions, and what is computed of square matrices."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn import functional

from tests.rules.torch_gradients.subject import Subject, f, named, subject

__all__ = ["contractions"]


def contractions() -> Iterator[Subject]:
    for a, b in (
        ((4, 6), (6, 12)),
        ((2, 4, 6), (6, 4)),
        ((2, 4, 6), (2, 6, 4)),
        ((6,), (6, 4)),
        ((2, 1, 4, 6), (3, 6, 2)),
    ):
        yield subject("MatMul", [f(*a), f(*b)], torch.matmul)
    yield subject("Gemm", [f(4, 6), f(6, 12), f(12)], lambda a, b, c: torch.addmm(c, a, b))
    yield subject(
        "Gemm",
        [f(6, 4), f(12, 6), f(4, 1)],
        lambda a, b, c: 0.75 * a.T @ b.T + 1.25 * c,
        transA=1,
        transB=1,
        alpha=0.75,
        beta=1.25,
    )
    for equation, shapes in (
        ("bij,bjk->bik", ((2, 4, 6), (2, 6, 4))),
        ("bhsd,bhtd->bhst", ((2, 2, 4, 6), (2, 2, 6, 6))),
        ("gse,gsm->egm", ((2, 4, 6), (2, 4, 6))),
        ("...ij->...i", ((2, 4, 6),)),
        ("ij,jk,kl->il", ((4, 6), (6, 4), (4, 2))),
    ):
        yield subject("Einsum", [f(*s) for s in shapes], _einsum(equation), equation=equation)
    yield from _fused()
    yield from _convolutions()


def _einsum(equation: str) -> object:
    return lambda *operands: torch.einsum(equation, *operands)


def _fused() -> Iterator[Subject]:
    yield subject(
        "com.microsoft::FusedMatMul",
        [f(2, 4, 6), f(2, 12, 6)],
        lambda a, b: 0.5 * a @ b.mT,
        opset=1,
        transB=1,
        alpha=0.5,
    )
    yield subject("com.microsoft::TransposeMatMul", [f(2, 6, 4), f(2, 6, 12)], lambda a, b: a.mT @ b, opset=1, transA=1)
    square = f(2, 6, 4, 4) + 3 * torch.eye(4).numpy()
    yield subject("Det", [square], torch.linalg.det)
    yield subject("com.microsoft::Inverse", [square], torch.linalg.inv, opset=1)


def _convolutions() -> Iterator[Subject]:
    conv = functional.conv2d
    yield subject("Conv", [f(2, 4, 6, 6), f(6, 4, 3, 3), f(6)], named(conv, padding=1), pads=(1, 1, 1, 1))
    yield subject("Conv", [f(2, 4, 12, 6), f(6, 4, 2, 1)], named(conv, stride=(2, 1)), strides=(2, 1))
    yield subject("Conv", [f(2, 4, 6, 6), f(4, 1, 3, 3)], named(conv, padding=1, groups=4), pads=(1,) * 4, group=4)
    yield subject(
        "Conv",
        [f(2, 4, 12, 6), f(4, 2, 3, 3)],
        named(conv, padding=(2, 1), dilation=(2, 1), groups=2),
        pads=(2, 1, 2, 1),
        dilations=(2, 1),
        group=2,
    )
    yield subject("Conv", [f(2, 4, 12), f(6, 4, 3)], named(functional.conv1d, padding=1), pads=(1, 1))
    yield subject("Conv", [f(1, 2, 4, 4, 4), f(2, 2, 2, 2, 2)], named(functional.conv3d, stride=2), strides=(2, 2, 2))
    transposed = functional.conv_transpose2d
    yield subject("ConvTranspose", [f(2, 4, 4, 6), f(4, 6, 2, 2), f(6)], named(transposed, stride=2), strides=(2, 2))
    yield subject(
        "ConvTranspose",
        [f(2, 4, 4, 6), f(4, 3, 3, 3)],
        named(transposed, stride=2, padding=1, output_padding=1, groups=2),
        strides=(2, 2),
        pads=(1, 1, 1, 1),
        output_padding=(1, 1),
        group=2,
    )
