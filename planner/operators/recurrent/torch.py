"""Recurrent layers step by step: batch, and directions, of which a rank may run one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from planner.operators.recurrent.split import one_direction
from planner.runtime.registry import Call, operator

__all__: list[str] = []

Function = Callable[[Tensor], Tensor]

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}

# Functions with the defaults of the alpha and beta that they read.
_FUNCTIONS: dict[str, tuple[tuple[float, ...], Callable[..., Tensor]]] = {
    "affine": ((1.0, 0.0), lambda x, a, b: a * x + b),
    "elu": ((1.0,), functional.elu),
    "hardsigmoid": ((0.2, 0.5), lambda x, a, b: torch.clamp(a * x + b, 0, 1)),
    "leakyrelu": ((0.01,), functional.leaky_relu),
    "relu": ((), functional.relu),
    "scaledtanh": ((1.0, 1.0), lambda x, a, b: a * torch.tanh(b * x)),
    "sigmoid": ((), torch.sigmoid),
    "softplus": ((), functional.softplus),
    "softsign": ((), functional.softsign),
    "tanh": ((), torch.tanh),
    "thresholdedrelu": ((1.0,), lambda x, a: torch.where(x > a, x, 0)),
}


def _applied(function: Callable[..., Tensor], numbers: Sequence[float], x: Tensor) -> Tensor:
    return function(x, *numbers)


def _activations(c: Call, directions: int) -> list[tuple[Function, ...]] | None:
    """Per direction.  Alphas and betas are listed for the activations that read them, in order."""
    names = [(n.decode() if isinstance(n, bytes) else n).lower() for n in c.attr("activations") or ()]
    names = names or [n.lower() for n in _DEFAULTS[c.op.type] * directions]
    if any(n not in _FUNCTIONS for n in names):
        return None
    given = [iter(c.attr(a) or ()) for a in ("activation_alpha", "activation_beta")]
    made: list[Function] = []
    for name in names:
        defaults, function = _FUNCTIONS[name]
        numbers = [float(next(values, d)) for values, d in zip(given, defaults, strict=False)]
        made.append(partial(_applied, function, numbers))
    each = len(names) // directions
    return [tuple(made[d * each : (d + 1) * each]) for d in range(directions)]


@dataclass(frozen=True, slots=True)
class _Layer:
    """One direction: the weight and bias of the state, peepholes, activations and options."""

    r: Tensor
    rb: Tensor | None
    p: Tensor | None
    act: tuple[Function, ...]
    linear_before_reset: bool
    input_forget: bool

    def state(self, h: Tensor, rows: slice = slice(None)) -> Tensor:
        y = h @ self.r[rows].t()
        return y if self.rb is None else y + self.rb[rows]


def _lstm(layer: _Layer, z: Tensor, h: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Gates i, o, f, c; peepholes look at the cell before (i, f) and after (o)."""
    f, g, out = layer.act
    zi, zo, zf, zg = (z + layer.state(h)).chunk(4, 1)
    if layer.p is not None:
        pi, po, pf = layer.p.chunk(3)
        zi, zf = zi + pi * cell, zf + pf * cell
    i = f(zi)
    cell = (1 - i if layer.input_forget else f(zf)) * cell + i * g(zg)
    if layer.p is not None:
        zo = zo + po * cell
    return f(zo) * out(cell), cell


def _gru(layer: _Layer, z: Tensor, h: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Gates z (update), r (reset), h (candidate)."""
    f, g = layer.act
    hidden = h.shape[1]
    gates, last = slice(0, 2 * hidden), slice(2 * hidden, None)
    update, reset = f(z[:, gates] + layer.state(h, gates)).chunk(2, 1)
    if layer.linear_before_reset:
        new = g(z[:, last] + reset * layer.state(h, last))
    else:
        new = g(z[:, last] + layer.state(reset * h, last))
    return (1 - update) * new + update * h, cell


def _rnn(layer: _Layer, z: Tensor, h: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    return layer.act[0](z + layer.state(h)), cell


_CELLS = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}


@operator("GRU", "LSTM", "RNN", aware=True)
def _recurrent(c: Call) -> Sequence[Tensor] | None:
    """X, W, R, B, lengths, h, c, peepholes to all states and the last ones."""
    if c.place.splits("d"):
        c = replace(c, op=one_direction(c.op, c.place))
    if c.attr("clip"):
        return None
    first = bool(c.attr("layout", 0))
    x = c.x.transpose(0, 1) if first else c.x
    w, r, bias, lengths = c.operand(1), c.operand(2), c.maybe(3), c.maybe(4)
    peepholes = c.maybe(7) if c.op.type == "LSTM" else None
    directions, hidden = w.shape[0], r.shape[2]
    activations = _activations(c, directions)
    if activations is None:
        return None
    states, last, cells = [], [], []
    for d, act in enumerate(activations):
        gates = _GATES[c.op.type] * hidden
        wb = None if bias is None else bias[d, :gates]
        layer = _Layer(
            r[d],
            None if bias is None else bias[d, gates:],
            None if peepholes is None else peepholes[d],
            act,
            bool(c.attr("linear_before_reset", 0)),
            bool(c.attr("input_forget", 0)),
        )
        start = partial(_start, c, d, (x.shape[1], hidden), first)
        cell = start(6) if c.op.type == "LSTM" else x.new_zeros((x.shape[1], hidden))
        reverse = c.attr("direction", "forward") == "reverse" or d == 1
        y, h, cell = _steps(c.op.type, layer, functional.linear(x, w[d], wb), start(5), cell, lengths, reverse=reverse)
        states.append(y)
        last.append(h)
        cells.append(cell)
    along = 1 if first else 0
    y = torch.stack([s.transpose(0, 1) for s in states], 2) if first else torch.stack(states, 1)
    found = [y, torch.stack(last, along), torch.stack(cells, along)]
    return found[: len(c.op.outputs)]


def _start(c: Call, direction: int, shape: tuple[int, int], first: bool, index: int) -> Tensor:
    """The state at the begin."""
    value = c.maybe(index)
    if value is None:
        return c.x.new_zeros(shape)
    return value[:, direction] if first else value[direction]


def _steps(
    kind: str, layer: _Layer, z: Tensor, h: Tensor, cell: Tensor, lengths: Tensor | None, *, reverse: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """A sample whose sequence has ended keeps its state; reversed ones start at their own last element."""
    steps = z.shape[0]
    if lengths is not None:
        at = torch.arange(steps, device=z.device)[:, None]
        ends = lengths.long()[None]
        order = torch.where(at < ends, ends - 1 - at, at) if reverse else None
        if order is not None:
            z = torch.gather(z, 0, order[..., None].expand_as(z))
    found: list[Tensor] = []
    for s in range(steps)[:: -1 if reverse and lengths is None else 1]:
        new_h, new_cell = _CELLS[kind](layer, z[s], h, cell)
        if lengths is None:
            h, cell = new_h, new_cell
            found.append(h)
            continue
        runs = (s < lengths)[:, None]
        h, cell = torch.where(runs, new_h, h), torch.where(runs, new_cell, cell)
        found.append(torch.where(runs, h, 0))
    y = torch.stack(found[::-1] if reverse and lengths is None else found)
    if lengths is not None and order is not None:
        y = torch.gather(y, 0, order[..., None].expand_as(y))
    return y, h, cell


def _quantised(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Integers, as numbers, their scale and zero point, over the range of all elements, zero included."""
    low, high = x.amin().clamp(max=0), x.amax().clamp(min=0)
    scale = torch.where(high > low, (high - low) / 255, 1)
    zero = torch.round(-low / scale).clamp(0, 255)
    return (torch.round(x / scale) + zero).clamp(0, 255), scale, zero


def _rescaled(x: Tensor, weight: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    """x W, with x quantised over all of its elements."""
    integers, x_scale, x_zero = _quantised(x)
    right = weight.double() if zero is None else weight.double() - zero.double()
    return ((integers - x_zero).double() @ right * (x_scale * scale)).to(x.dtype)


@operator("com.microsoft::DynamicQuantizeLSTM")
def _quantised_lstm(c: Call) -> Sequence[Tensor] | None:
    """Both operands of every step are quantised whole: the sequence once, the state at each step.

    Gates are input, output, forget and cell; neither peepholes nor sequences of unequal lengths nor clipping.
    """
    names = [(n.decode() if isinstance(n, bytes) else n).lower() for n in c.attr("activations") or ()]
    plain = names in ([], ["sigmoid", "tanh", "tanh"], ["sigmoid", "tanh", "tanh"] * 2)
    if not plain or c.attr("clip") or c.maybe(4) is not None or c.maybe(7) is not None:
        return None
    x, w, r, bias = c.x, c.operand(1), c.operand(2), c.maybe(3)
    hidden = r.shape[1]
    states, last, cells = [], [], []
    for way in range(r.shape[0]):
        zeros = [None if z is None else z[way] for z in (c.maybe(9), c.maybe(11))]
        z = _rescaled(x.reshape(-1, x.shape[-1]), w[way], c.operand(8)[way], zeros[0]).reshape(*x.shape[:2], -1)
        if bias is not None:
            z = z + bias[way, : 4 * hidden] + bias[way, 4 * hidden :]
        shape = (x.shape[1], hidden)
        h, cell = (_start(c, way, shape, False, i) for i in (5, 6))
        back = c.attr("direction", "forward") == "reverse" or way == 1
        found: list[Tensor] = []
        for t in range(x.shape[0])[:: -1 if back else 1]:
            i, o, f, g = (z[t] + _rescaled(h, r[way], c.operand(10)[way], zeros[1])).chunk(4, 1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(cell)
            found.append(h)
        states.append(torch.stack(found[::-1] if back else found))
        last.append(h)
        cells.append(cell)
    return [torch.stack(states, 1), torch.stack(last), torch.stack(cells)][: len(c.op.outputs)]
