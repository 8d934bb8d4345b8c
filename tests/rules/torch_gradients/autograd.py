"""Torch's automatic differentiation of a subject."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from planner.kernels.shards import Array
from tests.rules.prover import is_floating
from tests.rules.torch_gradients.golden import Record
from tests.rules.torch_gradients.subject import Subject
from tests.rules.torch_gradients.subjects import subjects

__all__ = ["differentiate", "records"]


def differentiate(subject: Subject) -> Record:
    """In double precision; the gradients of the results are drawn from the subject's name."""
    made = subject.case
    leaves = [_leaf(v, i not in subject.fixed) for i, v in enumerate(made.inputs)]
    returned = subject.meaning(*leaves)
    results = list(returned) if isinstance(returned, tuple | list) else [returned]
    results += [None] * (len(made.results) - len(results))
    rng = np.random.default_rng(zlib.crc32(made.name.encode()))
    drawn: list[Array | None] = [None] * len(results)
    for j in sorted(subject.seeded):
        drawn[j] = np.asarray(np.round(rng.standard_normal(tuple(results[j].shape)) * 64) / 64)
    seeds = [(y, torch.from_numpy(g)) for y, g in zip(results, drawn, strict=True) if g is not None]
    torch.autograd.backward([y.double() for y, _ in seeds], [g for _, g in seeds])
    return Record(
        made.name,
        made.op,
        tuple(sorted(subject.constants)),
        made.inputs,
        tuple(_like(y, v) for y, v in zip(results, made.results, strict=True)),
        tuple(None if g is None or v is None else g.astype(v.dtype) for g, v in zip(drawn, made.results, strict=True)),
        tuple(
            None if x is None or v is None or not x.requires_grad else _gradient(x, v)
            for x, v in zip(leaves, made.inputs, strict=True)
        ),
    )


def records() -> Iterator[Record]:
    """Of all subjects."""
    return map(differentiate, subjects())


def _leaf(value: Array | None, free: bool) -> Any:
    if value is None:
        return None
    if is_floating(value):
        return torch.from_numpy(np.array(value, dtype=np.float64)).requires_grad_(free)
    return torch.from_numpy(value.astype(bool if value.dtype.kind == "b" else np.int64))


def _gradient(x: Any, value: Array) -> Array:
    """Zero where torch says that nothing depends on the operand."""
    return np.zeros_like(value) if x.grad is None else np.asarray(x.grad.numpy()).astype(value.dtype)


def _like(y: Any, value: Array | None) -> Array | None:
    return None if y is None or value is None else np.asarray(y.detach().numpy()).astype(value.dtype)
