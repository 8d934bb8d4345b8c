"""LSTM, GRU and RNN: the layers step by step, and backpropagation through time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array, string
from planner.kernels.gradients import Call, NoVjpError, register

__all__ = ["parameters_read", "recurrent_forward"]

Operands = Sequence["Array | None"]
Scalar = Callable[[Array], Array]

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
# Default alpha and beta of the activations that read them.
_PARAMETERS: dict[str, tuple[float, ...]] = {
    "affine": (1.0, 0.0),
    "elu": (1.0,),
    "hardsigmoid": (0.2, 0.5),
    "leakyrelu": (0.01,),
    "scaledtanh": (1.0, 1.0),
    "thresholdedrelu": (1.0,),
}


def _logistic(x: Array) -> Array:
    return np.asarray(0.5 * (np.tanh(0.5 * x) + 1))


# Value and derivative of (x, alpha, beta).
_FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "affine": (lambda x, a, b: a * x + b, lambda x, a, b: np.full_like(x, a)),
    "elu": (
        lambda x, a, b: np.where(x >= 0, x, a * np.expm1(np.minimum(x, 0))),
        lambda x, a, b: np.where(x >= 0, 1, a * np.exp(np.minimum(x, 0))),
    ),
    "hardsigmoid": (
        lambda x, a, b: np.clip(a * x + b, 0, 1),
        lambda x, a, b: np.where((a * x + b > 0) & (a * x + b < 1), a, 0),
    ),
    "leakyrelu": (lambda x, a, b: np.where(x >= 0, x, a * x), lambda x, a, b: np.where(x >= 0, 1, a)),
    "relu": (lambda x, a, b: np.maximum(x, 0), lambda x, a, b: x > 0),
    "scaledtanh": (lambda x, a, b: a * np.tanh(b * x), lambda x, a, b: a * b * (1 - np.tanh(b * x) ** 2)),
    "sigmoid": (lambda x, a, b: _logistic(x), lambda x, a, b: _logistic(x) * (1 - _logistic(x))),
    "softplus": (lambda x, a, b: np.logaddexp(0, x), lambda x, a, b: _logistic(x)),
    "softsign": (lambda x, a, b: x / (1 + np.abs(x)), lambda x, a, b: 1 / (1 + np.abs(x)) ** 2),
    "tanh": (lambda x, a, b: np.tanh(x), lambda x, a, b: 1 - np.tanh(x) ** 2),
    "thresholdedrelu": (lambda x, a, b: np.where(x > a, x, 0), lambda x, a, b: x > a),
}


@dataclass(frozen=True, slots=True)
class _Activation:
    value: Scalar
    slope: Scalar


@dataclass(frozen=True, slots=True)
class _Layer:
    """One direction: weights, biases (of X W' and of H R'), peepholes, activations and options."""

    kind: str
    w: Array
    r: Array
    wb: Array
    rb: Array
    p: Array
    act: tuple[_Activation, ...]
    linear_before_reset: bool
    input_forget: bool


@dataclass(frozen=True, slots=True)
class _Back:
    """Gradients of one step: of X W' + Wb, of R, Rb and P, and of the state before."""

    z: Array
    r: Array
    rb: Array
    p: Array
    h: Array
    c: Array


Backward = Callable[[Array, Array], _Back]


def _lstm(layer: _Layer, z: Array, h: Array, c: Array) -> tuple[Array, Array, Backward]:
    """Gates i, o, f, c; peepholes look at the cell before (i, f) and after (o)."""
    f, g, out = layer.act
    pi, po, pf = np.split(layer.p, 3)
    zi, zo, zf, zg = np.split(z + h @ layer.r.T + layer.rb, 4, axis=1)
    zi, zf = zi + pi * c, zf + pf * c
    i, candidate = f.value(zi), g.value(zg)
    forget = 1 - i if layer.input_forget else f.value(zf)
    cell = forget * c + i * candidate
    zo = zo + po * cell
    o = f.value(zo)

    def backward(dh: Array, dc: Array) -> _Back:
        dzo = dh * out.value(cell) * f.slope(zo)
        dc = dc + dh * o * out.slope(cell) + dzo * po
        di, df = dc * candidate, dc * c
        dzf = np.zeros_like(df) if layer.input_forget else df * f.slope(zf)
        dzi = (di - df if layer.input_forget else di) * f.slope(zi)
        dz = np.concatenate([dzi, dzo, dzf, dc * i * g.slope(zg)], axis=1)
        dp = np.concatenate([(dzi * c).sum(0), (dzo * cell).sum(0), (dzf * c).sum(0)])
        return _Back(dz, dz.T @ h, dz.sum(0), dp, dz @ layer.r, dc * forget + dzi * pi + dzf * pf)

    return o * out.value(cell), cell, backward


def _gru(layer: _Layer, z: Array, h: Array, c: Array) -> tuple[Array, Array, Backward]:
    """Gates z (update), r (reset), h (candidate)."""
    f, g = layer.act
    hidden = h.shape[1]
    gates, r_h, rb_h = layer.r[: 2 * hidden], layer.r[2 * hidden :], layer.rb[2 * hidden :]
    zz, zr = np.split(z[:, : 2 * hidden] + h @ gates.T + layer.rb[: 2 * hidden], 2, axis=1)
    update, reset = f.value(zz), f.value(zr)
    recurrent = h @ r_h.T + rb_h if layer.linear_before_reset else (reset * h) @ r_h.T + rb_h
    zn = z[:, 2 * hidden :] + (reset * recurrent if layer.linear_before_reset else recurrent)
    new = g.value(zn)

    def backward(dh: Array, dc: Array) -> _Back:
        dzz = dh * (h - new) * f.slope(zz)
        dzn = dh * (1 - update) * g.slope(zn)
        if layer.linear_before_reset:
            drec, d_reset = dzn * reset, dzn * recurrent
            dr_h, dh_prev = drec.T @ h, drec @ r_h
        else:
            drec, through = dzn, dzn @ r_h
            d_reset, dr_h, dh_prev = through * h, dzn.T @ (reset * h), through * reset
        dgates = np.concatenate([dzz, d_reset * f.slope(zr)], axis=1)
        return _Back(
            np.concatenate([dgates, dzn], axis=1),
            np.concatenate([dgates.T @ h, dr_h]),
            np.concatenate([dgates.sum(0), drec.sum(0)]),
            np.zeros_like(layer.p),
            dh * update + dh_prev + dgates @ gates,
            np.zeros_like(c),
        )

    return (1 - update) * new + update * h, c, backward


def _rnn(layer: _Layer, z: Array, h: Array, c: Array) -> tuple[Array, Array, Backward]:
    (f,) = layer.act
    z = z + h @ layer.r.T + layer.rb

    def backward(dh: Array, dc: Array) -> _Back:
        dz = dh * f.slope(z)
        return _Back(dz, dz.T @ h, dz.sum(0), np.zeros_like(layer.p), dz @ layer.r, np.zeros_like(c))

    return f.value(z), c, backward


_CELLS = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}


@dataclass(frozen=True, slots=True)
class _Run:
    """One direction executed: all states, the last ones, and per step what its backward needs."""

    layer: _Layer
    y: Array
    h: Array
    c: Array
    tape: tuple[tuple[Array, Array, Backward], ...]  # times read, samples that still run, backward


def _run(layer: _Layer, x: Array, h: Array, c: Array, lengths: Array, *, reverse: bool) -> _Run:
    """A sample whose sequence has ended keeps its state; reversed ones start at their own last element."""
    steps, batch = x.shape[:2]
    y = np.zeros((steps, batch, h.shape[1]), dtype=x.dtype)
    samples = np.arange(batch)
    tape = []
    for s in range(steps):
        runs = (s < lengths)[:, None]
        times = np.where(runs[:, 0], lengths - 1 - s if reverse else s, s)
        new_h, new_c, backward = _CELLS[layer.kind](layer, x[times, samples] @ layer.w.T + layer.wb, h, c)
        h, c = np.where(runs, new_h, h), np.where(runs, new_c, c)
        y[times, samples] = np.where(runs, h, 0)
        tape.append((times, runs, backward))
    return _Run(layer, y, h, c, tuple(tape))


def _run_back(run: _Run, x: Array, dy: Array, dh: Array, dc: Array) -> dict[str, Array]:
    layer, samples = run.layer, np.arange(x.shape[1])
    found = {"x": np.zeros_like(x), "w": np.zeros_like(layer.w), "r": np.zeros_like(layer.r)}
    found |= {"wb": np.zeros_like(layer.wb), "rb": np.zeros_like(layer.rb), "p": np.zeros_like(layer.p)}
    for times, runs, backward in reversed(run.tape):
        step = backward(np.where(runs, dh + dy[times, samples], 0), np.where(runs, dc, 0))
        found["x"][times, samples] += step.z @ layer.w
        found["w"] += step.z.T @ x[times, samples]
        found["wb"] += step.z.sum(0)
        found["r"] += step.r
        found["rb"] += step.rb
        found["p"] += step.p
        dh, dc = np.where(runs, step.h, dh), np.where(runs, step.c, dc)
    return {**found, "h": dh, "c": dc}


def _activations(op: Op, directions: int) -> list[tuple[_Activation, ...]]:
    """Per direction.  Alphas and betas are listed for the activations that read them, in order."""
    names = [string(n).lower() for n in op.attributes.get("activations") or _DEFAULTS[op.type] * directions]
    alphas, betas = (iter(op.attributes.get(a) or ()) for a in ("activation_alpha", "activation_beta"))
    made = []
    for name in names:
        defaults = _PARAMETERS.get(name, ())
        a = next(alphas, defaults[0]) if defaults else 0.0
        b = next(betas, defaults[1]) if len(defaults) > 1 else 0.0
        value, slope = _FUNCTIONS[name]
        made.append(_Activation(partial(value, a=a, b=b), partial(slope, a=a, b=b)))
    each = len(names) // directions
    return [tuple(made[d * each : (d + 1) * each]) for d in range(directions)]


def parameters_read(activations: Sequence[Any]) -> tuple[int, int]:
    """How many alphas and betas these activations read."""
    counts = [len(_PARAMETERS.get(string(n).lower(), ())) for n in activations]
    return sum(n > 0 for n in counts), sum(n > 1 for n in counts)


def _given(inputs: Operands, i: int) -> Array | None:
    return inputs[i] if i < len(inputs) else None


def _runs(op: Op, inputs: Operands) -> tuple[Array, list[_Run]]:
    """X with time first, and one run per direction."""
    first = bool(op.attributes.get("layout", 0))
    x, w, r = (np.asarray(inputs[i]) for i in range(3))
    x = x.transpose(1, 0, 2) if first else x
    directions, hidden, batch = w.shape[0], r.shape[2], x.shape[1]
    side = string(op.attributes.get("direction"), "forward")
    bias, given, peepholes = _given(inputs, 3), _given(inputs, 4), _given(inputs, 7) if op.type == "LSTM" else None
    lengths = np.full(batch, x.shape[0]) if given is None else given.astype(np.int64)

    def state(i: int, d: int) -> Array:
        value = _given(inputs, i)
        if value is None:
            return np.zeros((batch, hidden), dtype=x.dtype)
        return value[:, d] if first else value[d]

    runs = []
    gates = _GATES[op.type] * hidden
    for d, act in enumerate(_activations(op, directions)):
        b = np.zeros(2 * gates, dtype=x.dtype) if bias is None else bias[d]
        p = np.zeros(3 * hidden, dtype=x.dtype) if peepholes is None else peepholes[d]
        options = bool(op.attributes.get("linear_before_reset", 0)), bool(op.attributes.get("input_forget", 0))
        layer = _Layer(op.type, w[d], r[d], b[:gates], b[gates:], p, act, *options)
        c = state(6, d) if op.type == "LSTM" else np.zeros((batch, hidden), dtype=x.dtype)
        runs.append(_run(layer, x, state(5, d), c, lengths, reverse=side == "reverse" or d == 1))
    return x, runs


def recurrent_forward(op: Op, inputs: Operands) -> list[Array]:
    """Y, Y_h and Y_c."""
    first = bool(op.attributes.get("layout", 0))
    _, runs = _runs(op, inputs)
    y = np.stack([r.y for r in runs], axis=1)  # t d b h
    states = [np.stack([r.h for r in runs]), np.stack([r.c for r in runs])]
    return [y.transpose(2, 0, 1, 3), *(s.transpose(1, 0, 2) for s in states)] if first else [y, *states]


@register("LSTM", "GRU", "RNN")
def _recurrent(c: Call) -> list[Array | None]:
    if c.attr("clip"):
        raise NoVjpError(f"operator {c.op.name}: a clipped {c.op.type} has no vector-Jacobian product")
    first = bool(c.attr("layout", 0))
    x, runs = _runs(c.op, c.inputs)

    def gradient(j: int, shape: tuple[int, ...]) -> Array:
        g = c.gradients[j] if j < len(c.gradients) else None
        return np.zeros(shape, dtype=x.dtype) if g is None else g

    steps, batch, hidden, directions = *x.shape[:2], runs[0].h.shape[1], len(runs)
    whole = (batch, steps, directions, hidden) if first else (steps, directions, batch, hidden)
    state = (batch, directions, hidden) if first else (directions, batch, hidden)
    dy, dh, dc = gradient(0, whole), gradient(1, state), gradient(2, state)
    if first:
        dy, dh, dc = dy.transpose(1, 2, 0, 3), dh.transpose(1, 0, 2), dc.transpose(1, 0, 2)
    back = [_run_back(r, x, dy[:, d], dh[d], dc[d]) for d, r in enumerate(runs)]
    dx = np.add.reduce([b["x"] for b in back])
    states = [np.stack([b[k] for b in back], axis=1 if first else 0) for k in "hc"]
    weights = [np.stack([b[k] for b in back]) for k in "wr"]
    bias = np.stack([np.concatenate([b["wb"], b["rb"]]) for b in back])
    peepholes = np.stack([b["p"] for b in back])
    found = [dx.transpose(1, 0, 2) if first else dx, *weights, bias, None, *states, peepholes]
    return [g if i < len(c.inputs) and c.inputs[i] is not None else None for i, g in enumerate(found)]
