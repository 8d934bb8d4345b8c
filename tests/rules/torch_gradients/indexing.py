"""Look-ups and updates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from tests.rules.torch_gradients.subject import Subject, apart, f, i, indices, subject

__all__ = ["indexing"]


def indexing() -> Iterator[Subject]:
    yield subject("Gather", [f(12, 6), indices(12, 4, 6)], lambda table, at: functional.embedding(at, table))
    yield subject("Gather", [f(4, 12, 2), indices(12, 6)], lambda x, at: x.index_select(1, at), axis=1)
    yield subject("Gather", [f(4, 12), i(-2)[0]], lambda x, at: x.select(1, 10), axis=1)

    def along(x: Any, at: Any) -> Any:
        return torch.gather(x, 1, at)

    yield subject("GatherElements", [f(4, 6), indices(6, 4, 12)], along, axis=1)
    yield subject("GatherND", [f(4, 6, 2), indices(4, 6, 2)], lambda x, at: x[at[:, 0], at[:, 1]])

    def batched(x: Any, at: Any) -> Any:
        return torch.stack([row[k[:, 0]] for row, k in zip(x, at, strict=True)])

    yield subject("GatherND", [f(4, 6, 2), indices(6, 4, 12, 1)], batched, batch_dims=1)
    yield from _elements()
    yield from _rows()
    yield from _caches()


def _elements() -> Iterator[Subject]:
    rng = np.random.default_rng(3)
    places = np.stack([rng.permutation(12)[:6] for _ in range(4)])

    def by_operand(x: Any, at: Any, u: Any) -> Any:
        return x.scatter(1, at, u)

    yield subject("ScatterElements", [f(4, 12), places, f(4, 6)], by_operand, axis=1)
    yield subject("Scatter", [f(4, 12), places, f(4, 6)], by_operand, axis=1, opset=10)
    for reduction, named_in_torch in (("add", "sum"), ("mul", "prod"), ("max", "amax"), ("min", "amin")):
        values = apart(72)
        operands = [values[:48].reshape(4, 12), indices(12, 4, 6), values[48:].reshape(4, 6)]
        yield subject("ScatterElements", operands, _reduced(named_in_torch), axis=1, reduction=reduction)


def _reduced(reduction: str) -> Any:
    return lambda x, at, u: x.scatter_reduce(1, at, u, reduction)


def _rows() -> Iterator[Subject]:
    once, repeated = i([5], [0], [11], [2]), i([5], [0], [5], [5])
    yield subject("ScatterND", [f(12, 6), once, f(4, 6)], lambda x, at, u: x.index_put((at[:, 0],), u))

    def added(x: Any, at: Any, u: Any) -> Any:
        return x.index_put((at[:, 0],), u, accumulate=True)

    yield subject("ScatterND", [f(12, 6), repeated, f(4, 6)], added, reduction="add")
    for reduction, named_in_torch in (("mul", "prod"), ("max", "amax"), ("min", "amin")):
        values = apart(96)
        operands = [values[:72].reshape(12, 6), repeated, values[72:].reshape(4, 6)]
        yield subject("ScatterND", operands, _reduced_rows(named_in_torch), reduction=reduction)


def _reduced_rows(reduction: str) -> Any:
    return lambda x, at, u: x.scatter_reduce(0, at.expand(-1, x.shape[1]), u, reduction)


def _caches() -> Iterator[Subject]:
    """Every sequence's update goes to its own place."""

    def write(x: torch.Tensor, update: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        rows = at[:, None] + torch.arange(update.shape[2])
        return x.index_put(
            (torch.arange(len(x))[:, None, None], torch.arange(x.shape[1])[None, :, None], rows[:, None]), update
        )

    yield subject("TensorScatter", [f(4, 2, 12, 4), f(4, 2, 3, 4), i(0, 4, 9, 7)], write, opset=24)
