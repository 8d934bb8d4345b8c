"""Linear attention: a state S of shape (b, h, e, f) that runs along the sequence, forward and backward.

In each step S ← a·S, then S ← S + k ⊗ u with u = v, or u = β (v − Sᵀ k) with delta corrections, and o = scale·Sᵀ q.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array
from planner.kernels.gradients import Call, NoVjpError, register, unbroadcast
from planner.operators.attention.masked import split_heads

__all__ = ["Recurrence", "StateGradients", "as_gradients"]

Operands = Sequence["Array | None"]


@dataclass(frozen=True, slots=True)
class StateGradients:
    """`start` is that of the state before the first step."""

    q: Array
    k: Array
    v: Array
    decay: Array | None
    rate: Array | None
    start: Array


@dataclass(frozen=True, slots=True)
class Recurrence:
    """The operands of ONNX LinearAttention, heads apart.  `decay` is that in log-space."""

    q: Array  # b h g t e
    k: Array  # b h t e
    v: Array  # b h t f
    decay: Array | None  # b h t e, or b h t 1
    rate: Array | None  # b h t 1, or b 1 t 1
    scale: float

    @classmethod
    def of(cls, op: Op, inputs: Operands) -> Recurrence:
        query, key, value, _, decay, rate = (*inputs, *[None] * 6)[:6]
        assert query is not None
        assert key is not None
        assert value is not None
        heads = op.attributes["kv_num_heads"]
        q, k, v = (
            split_heads(x, op.attributes[f"{side}_num_heads"]) for x, side in ((query, "q"), (key, "kv"), (value, "kv"))
        )
        scale = op.attributes.get("scale") or 1 / math.sqrt(q.shape[-1])
        return cls(
            q.reshape(q.shape[0], heads, -1, *q.shape[2:]),
            k,
            v,
            None if decay is None else split_heads(decay, heads),
            None if rate is None else split_heads(rate, rate.shape[2]),
            scale,
        )

    def zero(self) -> Array:
        return np.zeros((*self.k.shape[:2], self.k.shape[3], self.v.shape[3]), self.k.dtype)

    def run(self, start: Array) -> tuple[Array, list[Array]]:
        """(outputs b h g t f, the state before the first step and after each)."""
        states = [start]
        for t in range(self.k.shape[2]):
            decayed, u = self._written(states[-1], t)
            states.append(decayed + self.k[:, :, t, :, None] * u[..., None, :])
        y = self.scale * np.einsum("bhgte,tbhef->bhgtf", self.q, np.stack(states[1:]))
        return y.astype(self.q.dtype), states

    def carry(self) -> Array | None:
        """A of the map S → A S + B that a run is: (b, h, e, e), its diagonal (b, h, e), or None for one."""
        if self.rate is not None:
            depth = self.k.shape[3]
            identity = np.broadcast_to(np.eye(depth, dtype=self.k.dtype), (*self.k.shape[:2], depth, depth))
            return replace(self, v=np.zeros_like(self.k)).run(identity)[1][-1]
        return None if self.decay is None else np.exp(self.decay.sum(axis=2))

    def back(self, states: Sequence[Array], dy: Array, end: Array) -> StateGradients:
        """Gradients from those of the outputs and of the state after the last step."""
        dq = self.scale * np.einsum("bhgtf,tbhef->bhgte", dy, np.stack(states[1:]))
        dk, dv = np.zeros_like(self.k), np.zeros_like(self.v)
        ddecay = None if self.decay is None else np.zeros_like(self.k)
        drate = None if self.rate is None else np.zeros((*self.k.shape[:3], 1), self.k.dtype)
        ds = end
        for t in reversed(range(self.k.shape[2])):
            k, (decayed, u) = self.k[:, :, t], self._written(states[t], t)
            ds = ds + self.scale * np.einsum("bhge,bhgf->bhef", self.q[:, :, :, t], dy[:, :, :, t])
            dk[:, :, t] = np.einsum("bhef,bhf->bhe", ds, u)
            du = np.einsum("bhef,bhe->bhf", ds, k)
            if self.rate is not None and drate is not None:
                rate = self.rate[:, :, t]
                missing = self.v[:, :, t] - np.einsum("bhef,bhe->bhf", decayed, k)
                drate[:, :, t, 0] = (du * missing).sum(axis=-1)
                du = rate * du
                ds = ds - k[..., None] * du[..., None, :]
                dk[:, :, t] -= np.einsum("bhef,bhf->bhe", decayed, du)
            dv[:, :, t] = du
            if self.decay is not None and ddecay is not None:
                ddecay[:, :, t] = (ds * decayed).sum(axis=-1)
                ds = np.exp(self.decay[:, :, t])[..., None] * ds
        return StateGradients(dq.astype(self.q.dtype), dk, dv, ddecay, drate, ds)

    def _written(self, state: Array, t: int) -> tuple[Array, Array]:
        """The state after its decay, and what is written to it at k."""
        decayed = state if self.decay is None else np.exp(self.decay[:, :, t])[..., None] * state
        u = self.v[:, :, t]
        if self.rate is not None:
            u = self.rate[:, :, t] * (u - np.einsum("bhef,bhe->bhf", decayed, self.k[:, :, t]))
        return decayed, u


def as_gradients(inputs: Operands, found: StateGradients) -> list[Array | None]:
    """In the shapes of the operands."""

    def flat(g: Array | None, i: int) -> Array | None:
        x = inputs[i] if i < len(inputs) else None
        if g is None or x is None:
            return None
        g = g.reshape(g.shape[0], -1, *g.shape[-2:])
        if x.shape[-1] != g.shape[1] * g.shape[3]:  # by head, or common to all heads
            g = g.sum(axis=-1, keepdims=True)
        return unbroadcast(g.transpose(0, 2, 1, 3).reshape(*x.shape[:2], -1), x.shape)

    past = inputs[3] if len(inputs) > 3 else None
    parts = [flat(found.q, 0), flat(found.k, 1), flat(found.v, 2)]
    return [*parts, None if past is None else found.start, flat(found.decay, 4), flat(found.rate, 5)]


@register("LinearAttention", "com.microsoft::LinearAttention")
def _linear_attention(c: Call) -> list[Array | None]:
    if c.attr("state_window", 0):
        raise NoVjpError(f"operator {c.op.name} (LinearAttention): no product for a window of states")
    whole = Recurrence.of(c.op, c.inputs)
    past = c.maybe(3)
    _, states = whole.run(whole.zero() if past is None else past)
    dy = split_heads(c.dy, c.op.attributes["q_num_heads"]).reshape(*whole.q.shape[:4], -1)
    end = c.gradients[1] if len(c.gradients) > 1 else None
    return as_gradients(c.inputs, whole.back(states, dy, whole.zero() if end is None else end))
