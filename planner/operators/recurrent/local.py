"""Recurrent layers whose products are quantised as they run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array, string
from planner.kernels.local import in_double
from planner.operators.elementwise.local import logistic
from planner.operators.quantized.local import dynamically_quantised, integer_product

__all__: list[str] = []

Operands = Sequence["Array | None"]
Results = Sequence["Array | None"]

_PLAIN = ("Sigmoid", "Tanh", "Tanh")


def _product(x: Array, weight: Array, scale: Array, zero: Array | None) -> Array:
    """x W with x quantised over all of its elements."""
    integers, x_scale, x_zero = dynamically_quantised(x)
    return integer_product(integers, weight, x_zero, zero) * (x_scale * scale)


def _quantised_lstm(op: Op, inputs: Operands) -> Results | None:
    """Both operands of every step are quantised whole: the sequence once, the state at each step.

    Gates are input, output, forget and cell; neither peepholes nor sequences of unequal lengths nor clipping.
    """
    x, w, r, bias, lengths, h0, c0, peepholes, w_scale, w_zero, r_scale, r_zero = (*inputs, *[None] * 12)[:12]
    named = tuple(string(a) for a in op.attributes.get("activations") or ())
    direction = string(op.attributes.get("direction"), "forward")
    if x is None or w is None or r is None or w_scale is None or r_scale is None:
        return None
    if (
        lengths is not None
        or peepholes is not None
        or op.attributes.get("clip")
        or named not in ((), _PLAIN, _PLAIN * 2)
    ):
        return None
    steps, batch = x.shape[:2]
    hidden, ways = r.shape[1], len(r)
    outputs = np.empty((steps, ways, batch, hidden))
    states, cells = np.empty((ways, batch, hidden)), np.empty((ways, batch, hidden))
    for way in range(ways):
        backward = direction == "reverse" or way == 1
        order = range(steps)[::-1] if backward else range(steps)
        zeros = [None if z is None else z[way] for z in (w_zero, r_zero)]
        z = _product(x.reshape(steps * batch, -1), w[way], w_scale[way], zeros[0]).reshape(steps, batch, -1)
        if bias is not None:
            z = z + bias[way, : 4 * hidden] + bias[way, 4 * hidden :]
        h = np.zeros((batch, hidden)) if h0 is None else h0[way]
        c = np.zeros((batch, hidden)) if c0 is None else c0[way]
        for t in order:
            gates = z[t] + _product(h, r[way], r_scale[way], zeros[1])
            i, o, f, g = np.split(gates, 4, axis=1)
            c = logistic(f) * c + logistic(i) * np.tanh(g)
            h = logistic(o) * np.tanh(c)
            outputs[t, way] = h
        states[way], cells[way] = h, c
    return [outputs, states, cells]


in_double(
    {
        "com.microsoft::DynamicQuantizeLSTM": _quantised_lstm,
    }
)
