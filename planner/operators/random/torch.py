"""Random numbers by the place of an element in the whole tensor, the same as the kernels that prove plans draw.

SplitMix64 of the index (`planner.kernels.draws`), in 64-bit integers that wrap around.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from planner.operators.elementwise.torch import element_type
from planner.runtime.registry import Call, operator

__all__: list[str] = []

_MODES = 12  # operator set since which ratio and mode are operands


def _signed(n: int) -> int:
    """An unsigned number of 64 bits as the signed one with the same bits."""
    n &= (1 << 64) - 1
    return n - (1 << 64) if n >> 63 else n


def _right(z: Tensor, bits: int) -> Tensor:
    """Shifted with zeros coming in from the left."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _index(c: Call) -> Tensor:
    """Row-major places in the whole first result of the elements here, whose dimensions have one factor each."""
    rule = c.place.rule
    assert rule is not None
    factors = [d[0] if d else "" for d in rule.results[0] or ()]
    device = c.inside.context.device
    index = torch.zeros((), dtype=torch.int64, device=device)
    for f in factors:
        whole = rule.factors.get(f, 1)
        first, count = c.place.offset.get(f, 0), whole // c.place.shards.get(f, 1)
        index = (index * whole)[..., None] + torch.arange(first, first + count, device=device)
    return index


def _uniform(c: Call, index: Tensor, stream: int = 0) -> Tensor:
    """In [0, 1), in double precision."""
    seed = c.op.attributes.get("seed", "")
    digest = hashlib.blake2b(f"{c.op.name}|{seed}|{stream}".encode(), digest_size=8).digest()
    z = (index + 1) * _signed(0x9E3779B97F4A7C15) + _signed(int.from_bytes(digest, "little"))
    if c.inside.context.draw is not None:  # another stream for each micro-batch of a training
        z = z + c.inside.context.draw * _signed(0xD1342543DE82EF95)
    z = (z ^ _right(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _right(z, 27)) * _signed(0x94D049BB133111EB)
    z = z ^ _right(z, 31)
    return _right(z, 11).double() * 2.0**-53


def _type(c: Call, default: torch.dtype) -> torch.dtype | None:
    stated = c.attr("dtype")
    return default if stated is None else element_type(int(stated))


@operator("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", aware=True)
def _random(c: Call) -> Tensor | None:
    like = c.maybe(0)
    to = _type(c, torch.float32 if like is None else like.dtype)
    if to is None:
        return None
    index = _index(c)
    if "Normal" in c.op.type:
        radius = torch.sqrt(-2 * torch.log(1 - _uniform(c, index)))
        drawn = radius * torch.cos(2 * math.pi * _uniform(c, index, 1))
        return (drawn * c.attr("scale", 1.0) + c.attr("mean", 0.0)).to(to)
    low, high = c.attr("low", 0.0), c.attr("high", 1.0)
    return (_uniform(c, index) * (high - low) + low).to(to)


@operator("Bernoulli", aware=True)
def _bernoulli(c: Call) -> Tensor | None:
    to = _type(c, c.x.dtype)
    return None if to is None else (_uniform(c, _index(c)) < c.x.double()).to(to)


@operator("Multinomial", aware=True)
def _multinomial(c: Call) -> Tensor | None:
    """Inverse of the cumulative distribution."""
    to = _type(c, torch.int32)
    if to is None:
        return None
    logits = c.x.double()
    bounds = torch.cumsum(torch.exp(logits - logits.amax(1, keepdim=True)), 1)
    at = _uniform(c, _index(c)) * bounds[:, -1:]
    found = (at[:, :, None] >= bounds[:, None, :]).sum(2)
    return found.clamp(max=logits.shape[1] - 1).to(to)


def _ratio(c: Call, first: int = 1) -> Any:
    """The probability with which elements are dropped, 0 where none are: a number, or a tensor where ratio or mode are
    computed at run time."""
    if c.op.opset < _MODES and "::" not in c.op.type:
        drops = c.op.opset < 7 and not c.attr("is_test", 0)
        return float(c.attr("ratio", 0.5)) if drops else 0.0
    training, ratio = c.number(first + 1), c.number(first)
    ratio = 0.5 if ratio is None else ratio
    if isinstance(training, Tensor):
        return torch.where(training.bool(), ratio, 0.0)
    return ratio if training else 0.0


def _dropped(c: Call, x: Tensor, ratio: Any) -> tuple[Tensor, Tensor]:
    """What is left of x, larger in return, and which elements that are."""
    mask = _uniform(c, _index(c)) >= ratio
    if isinstance(ratio, Tensor):
        kept = torch.where(ratio < 1, 1 - ratio, 1).to(x.dtype)
        return torch.where(mask, x / kept, 0), mask
    return torch.where(mask, x / (1 - ratio or 1), 0), mask


@operator("Dropout", aware=True)
def _dropout(c: Call) -> Sequence[Tensor]:
    ratio = _ratio(c)
    if not isinstance(ratio, Tensor) and not ratio:
        y, mask = c.x, torch.ones_like(c.x, dtype=torch.bool)
    else:
        y, mask = _dropped(c, c.x, ratio)
    return [y, mask.to(c.x.dtype) if c.op.opset < _MODES else mask] if c.yields(1) else [y]


@operator("com.microsoft::BiasDropout", aware=True)
def _bias_dropout(c: Call) -> Sequence[Tensor]:
    """Dropout of X + bias, plus a residual."""
    residual = c.maybe(2)
    y, mask = _dropped(c, c.x + c.operand(1), _ratio(c, 3))
    return [y if residual is None else y + residual, mask][: len(c.op.outputs)]
