"""LSTM, GRU and RNN: torch's own layers with ONNX's order of gates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.func import functional_call

from tests.rules.torch_gradients.subject import Subject, f, subject

__all__ = ["recurrent"]

# Where torch's gates stand among ONNX's: iofc → ifgo, zrh → rzn.
_GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
_BATCH, _LENGTH, _INPUTS, _HIDDEN = 6, 3, 4, 4


def recurrent() -> Iterator[Subject]:
    for type_, gates in _GATES.items():
        wide = len(gates) * _HIDDEN
        extra = {"linear_before_reset": 1} if type_ == "GRU" else {}
        for directions, name in ((1, "forward"), (2, "bidirectional")):
            weights = [f(directions, wide, _INPUTS) / 2, f(directions, wide, _HIDDEN) / 2, f(directions, 2 * wide)]
            start = [f(directions, _BATCH, _HIDDEN)] * (2 if type_ == "LSTM" else 1)
            yield subject(
                type_,
                [f(_LENGTH, _BATCH, _INPUTS), *weights, None, *start],
                _layer(type_),
                hidden_size=_HIDDEN,
                direction=name,
                results=3 if type_ == "LSTM" else 2,
                **extra,
            )
    weights = [f(1, 12, _INPUTS) / 2, f(1, 12, _HIDDEN) / 2, f(1, 24)]
    yield subject("GRU", [f(_LENGTH, _BATCH, _INPUTS), *weights], _gated, hidden_size=_HIDDEN)


def _layer(type_: str) -> Any:
    order = _GATES[type_]

    def gates(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x.chunk(len(order))[g] for g in order])

    def run(x: Any, w: Any, r: Any, b: Any, _: None, *start: Any) -> Any:
        parameters = {}
        for d, suffix in zip(range(len(w)), ("", "_reverse"), strict=False):
            outer, inner = b[d].chunk(2)
            for kind, value in (("weight_ih", w[d]), ("weight_hh", r[d]), ("bias_ih", outer), ("bias_hh", inner)):
                parameters[f"{kind}_l0{suffix}"] = gates(value)
        layer = getattr(torch.nn, type_)(_INPUTS, _HIDDEN, bidirectional=len(w) == 2).double()
        y, last = functional_call(layer, parameters, (x, start if type_ == "LSTM" else start[0]))
        y = y.unflatten(-1, (len(w), _HIDDEN)).transpose(1, 2)
        return (y, *last) if type_ == "LSTM" else (y, last)

    return run


def _gated(x: Any, w: Any, r: Any, b: Any) -> Any:
    """ONNX's default resets before the recurrent product, which no layer of torch does."""
    (wz, wr, wh), (rz, rr, rh) = w[0].chunk(3), r[0].chunk(3)
    bz, br, bh, cz, cr, ch = b[0].chunk(6)
    h = torch.zeros(_BATCH, _HIDDEN, dtype=x.dtype)
    steps = []
    for step in x:
        update = torch.sigmoid(step @ wz.T + h @ rz.T + bz + cz)
        reset = torch.sigmoid(step @ wr.T + h @ rr.T + br + cr)
        candidate = torch.tanh(step @ wh.T + (reset * h) @ rh.T + bh + ch)
        h = (1 - update) * candidate + update * h
        steps.append(h[None])
    return torch.stack(steps)
