"""Reductions, running sums and products, and the best of many."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tests.rules.torch_gradients.subject import Subject, apart, f, i, p, subject

__all__ = ["reductions"]

_TYPES = {
    "ReduceL1": lambda x, axes: torch.linalg.vector_norm(x, 1, axes),
    "ReduceL2": lambda x, axes: torch.linalg.vector_norm(x, 2, axes),
    "ReduceLogSum": lambda x, axes: x.sum(axes).log(),
    "ReduceLogSumExp": torch.logsumexp,
    "ReduceMax": torch.amax,
    "ReduceMean": torch.mean,
    "ReduceMin": torch.amin,
    "ReduceSum": torch.sum,
    "ReduceSumSquare": lambda x, axes: (x * x).sum(axes),
}


def reductions() -> Iterator[Subject]:
    for type_, meaning in _TYPES.items():
        draw = p if type_ == "ReduceLogSum" else apart
        for axes in ((1,), (0, 2)):
            over = _over(meaning, axes)
            yield subject(type_, [draw(4, 6, 2), i(*axes)], over, constants=(1,), keepdims=0)
        shape = tuple(1 if d == 1 else n for d, n in enumerate((4, 6)))
        yield subject(type_, [draw(4, 6)], _kept(meaning, shape), opset=11, axes=(1,))
    yield subject("ReduceProd", [p(4, 6, 2), i(1)], lambda x, _: x.prod(1), constants=(1,), keepdims=0)
    for exclusive in (0, 1):
        for reverse in (0, 1):
            options: dict[str, Any] = {"exclusive": exclusive, "reverse": reverse, "constants": (1,)}
            yield subject("CumSum", [f(4, 12), i(1)[0]], _running(torch.cumsum, 0, exclusive, reverse), **options)
            options["opset"] = 26
            yield subject("CumProd", [p(4, 6), i(1)[0]], _running(torch.cumprod, 1, exclusive, reverse), **options)
    yield subject("TopK", [apart(4, 12), i(3)], lambda x, k: tuple(x.topk(3)), constants=(1,), results=2)

    def best(x: Any, k: Any) -> Any:
        return tuple(x.topk(2, dim=0, largest=False))

    yield subject("TopK", [apart(12, 4), i(2)], best, constants=(1,), results=2, axis=0, largest=0)


def _over(meaning: Any, axes: tuple[int, ...]) -> Any:
    return lambda x, _: meaning(x, axes)


def _kept(meaning: Any, shape: tuple[int, ...]) -> Any:
    return lambda x: meaning(x, (1,)).reshape(shape)


def _running(meaning: Any, neutral: int, exclusive: int, reverse: int) -> Any:
    """`exclusive`: of the elements before, the first of which has none."""

    def run(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        x = x.flip(1) if reverse else x
        y = meaning(x, 1)
        if exclusive:
            y = torch.cat([torch.full_like(y[:, :1], neutral), y[:, :-1]], 1)
        return y.flip(1) if reverse else y

    return run
