"""Pools."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch.nn import functional

from tests.rules.torch_gradients.subject import Subject, apart, f, named, p, subject

__all__ = ["pools"]


def pools() -> Iterator[Subject]:
    square = {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}
    largest = named(functional.max_pool2d, kernel_size=3, stride=2, padding=1)
    yield subject("MaxPool", [apart(2, 4, 12, 12)], largest, **square)
    halves = named(functional.max_pool2d, kernel_size=2)
    yield subject("MaxPool", [apart(2, 4, 8, 6)], halves, kernel_shape=(2, 2), strides=(2, 2))
    average = named(functional.avg_pool2d, kernel_size=3, stride=2, padding=1)
    yield subject("AveragePool", [f(2, 4, 12, 6)], average, **square, count_include_pad=1)
    counted = named(functional.avg_pool2d, kernel_size=3, stride=2, padding=1, count_include_pad=False)
    yield subject("AveragePool", [f(2, 4, 12, 6)], counted, **square)
    yield subject(
        "AveragePool", [f(2, 4, 12)], named(functional.avg_pool1d, kernel_size=2), kernel_shape=(2,), strides=(2,)
    )
    yield subject(
        "LpPool",
        [p(2, 4, 8, 6)],
        named(functional.lp_pool2d, norm_type=3, kernel_size=2),
        kernel_shape=(2, 2),
        strides=(2, 2),
        p=3,
    )
    yield subject("GlobalAveragePool", [f(2, 4, 6, 4)], lambda x: functional.adaptive_avg_pool2d(x, 1))
    yield subject("GlobalMaxPool", [apart(2, 4, 6, 4)], lambda x: functional.adaptive_max_pool2d(x, 1))
    yield subject("GlobalLpPool", [f(2, 4, 6, 4)], lambda x: torch.linalg.vector_norm(x, 2, (2, 3), keepdim=True))
    yield subject("GlobalLpPool", [p(2, 4, 6)], lambda x: torch.linalg.vector_norm(x, 3, 2, keepdim=True), p=3)
    yield from _unpooled()
    yield subject(
        "LRN",
        [f(2, 12, 4, 2)],
        lambda x: functional.local_response_norm(x, 5, alpha=0.5, beta=0.75, k=1.5),
        size=5,
        alpha=0.5,
        beta=0.75,
        bias=1.5,
    )


def _unpooled() -> Iterator[Subject]:
    """ONNX counts places in the whole operand, torch within an image."""
    places = functional.max_pool2d(torch.from_numpy(apart(2, 4, 8, 6)), 2, return_indices=True)[1]
    images = 48 * np.arange(8).reshape(2, 4, 1, 1)

    def meaning(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return functional.max_unpool2d(x, places, 2)

    yield subject("MaxUnpool", [f(2, 4, 4, 3), places.numpy() + images], meaning, kernel_shape=(2, 2), strides=(2, 2))
