"""Weights to which every operator responds.

Weights drawn at random do not know what they read: behind some layers a signal has faded beside the biases, or Relu and
Clip have cut all of it off, and then nothing that goes wrong before shows behind.  So the whole model runs once, and on
the way each product's weights (and its bias) are scaled until its result varies by about one, running statistics
become those of what they normalise, as training would have left them, and biases rise until a Relu (or a Clip from
zero on) that reads their result lets something of every part pass.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from planner.ir import Op, Role
from planner.kernels.shards import Array
from planner.rules.rule import Rule
from planner.verify.compare import sampled
from planner.verify.whole import Whole

__all__ = ["calibrate"]

# A result that varies by this much is left as it is.
_LEAST: Final = 0.5
_MOST: Final = 2.0
_SAMPLE: Final = 1 << 16
_BIASES: Final = {"Add": (0, 1), "BatchNormalization": (2,)}  # operands that move the result, where no rule says so
_PARTS: Final = 16  # of a dimension, in each of which something is to pass
_LIFTS: Final = 8
_VIEWS: Final = frozenset({"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})


def calibrate(whole: Whole) -> None:
    """Runs every operator of the whole model, forward, and scales sources on the way.  Results that no operator is
    left to read are forgotten."""
    _Calibration(whole).run()


class _Calibration:
    def __init__(self, whole: Whole) -> None:
        self.whole, self.graph = whole, whole.graph
        self.position = {op.name: i for i, op in enumerate(self.graph.ops)}
        self.views: dict[str, list[Op]] = {}  # source → the operators that turn it into what products read
        self.root = {t: t for t in self.graph.tensors if t not in self.graph.producers}
        self.used: set[str] = set()  # sources that a result depends on already: they stay as they are
        self.last: dict[int, list[str]] = {}
        for t, readers in self.graph.consumers.items():
            if t not in self.root:
                self.last.setdefault(max(self.position[op.name] for op, _ in readers), []).append(t)

    def run(self) -> None:
        for i, op in enumerate(self.graph.ops):
            if op.type == "BatchNormalization":
                self._fit_statistics(op)
            self.whole.forward(op)
            source = op.inputs[0] if op.inputs else ""
            if op.type in _VIEWS and source in self.root:
                self.root[op.name] = self.root[source]
                self.views.setdefault(self.root[source], []).append(op)
            else:
                self._fit_weights(op)
                self._fit_bias(op)
                self.used.update(self.root[t] for t in op.inputs if t in self.root)
            for t in self.last.get(i, ()) if not self.whole.active else ():
                self.whole.forget(t)

    def _fit_statistics(self, op: Op) -> None:
        x = self.whole.value(op.inputs[0])
        axes = tuple(d for d in range(x.ndim) if d != 1)
        if x.dtype.kind != "f" or x.ndim < 2 or x[:, :1].size < 2:
            return
        for slot, statistic in ((3, np.mean), (4, np.var)):
            name = op.inputs[slot]
            found = np.asarray(statistic(x, axis=axes), dtype=x.dtype)
            if name in self.whole.sources and name not in self.used and np.isfinite(found).all():
                self.whole.replace(name, np.maximum(found, 1e-6) if slot == 4 else found)

    def _fit_weights(self, op: Op) -> None:
        rule = self.whole.rules[op.name]
        result = self.whole.value(op.outputs[0]) if op.outputs[0] else None
        if result is None or result.dtype.kind != "f":
            return
        alone = [group - rule.additive for group in rule.linear]
        slots = [i for rest in alone if len(rest) == 1 for i in rest if i < len(op.inputs)]
        weights = [self.root[op.inputs[i]] for i in slots if self._free(op.inputs[i])]
        spread = _spread(result, _bias_dimensions(rule))
        if len(weights) != 1 or not spread or _LEAST <= spread <= _MOST or not np.isfinite(spread):
            return
        added = [op.inputs[i] for i in rule.additive if i < len(op.inputs) and op.inputs[i]]
        biases = [self.root[t] for t in added if self._free(t)]
        if len(biases) < len(added):
            return
        scale = 2.0 ** -round(math.log2(spread))  # the result is then the same to the last digit
        for source in (*weights, *biases):
            self._replace(source, self.whole.value(source) * scale)
        if any(op.outputs[1:]):
            self._again(op)
        else:
            self.whole.scale(op.outputs[0], scale)

    def _fit_bias(self, op: Op) -> None:
        """Raises what is added to the first result until a cut-off that reads it lets something of every part pass."""
        if not any(self._cuts(reader) for reader, slot in self.graph.consumers.get(op.outputs[0], ()) if not slot):
            return
        factor = float(op.attributes.get("beta", 1.0)) if op.type == "Gemm" else 1.0
        slots = _BIASES.get(op.type) or sorted(self.whole.rules[op.name].additive)
        free = [self.root[op.inputs[i]] for i in slots if i < len(op.inputs) and self._free(op.inputs[i])]
        added = [source for source in free if self.graph.tensors[source].role is Role.PARAMETER]
        result = self.whole.value(op.outputs[0])
        if not added or not factor or result.dtype.kind != "f" or _passes(result) or not np.isfinite(result).all():
            return
        step = math.sqrt(np.mean(np.square(result)))
        lifts = next((k for k in range(1, _LIFTS) if _passes(result + k * step)), 0)
        if lifts:
            self._replace(added[0], self.whole.value(added[0]) + lifts * step / factor)
            self._again(op)

    def _cuts(self, op: Op) -> bool:
        """Whether it lets pass what is above zero, and nothing below."""
        if op.type != "Clip":
            return op.type == "Relu"
        bounds = [op.attributes.get(a) for a in ("min", "max")]
        for i, name in enumerate(op.inputs[1:3]):
            value = self.graph.tensors[name].value if name else None
            bounds[i] = None if value is None else float(value)
        least, most = bounds
        return least == 0 and (most is None or most > 0)

    def _replace(self, source: str, value: Array) -> None:
        self.whole.replace(source, value)
        for view in self.views.get(source, ()):
            self._again(view)

    def _again(self, op: Op) -> None:
        for t in op.outputs:
            self.whole.forget(t)
        self.whole.forward(op)

    def _free(self, tensor: str) -> bool:
        """A float source of more than one element that nothing has read yet."""
        source = self.root.get(tensor)
        if source is None or source in self.used or source not in self.whole.drawn:
            return False
        value = self.whole.value(source)
        return value.dtype.kind == "f" and value.size > 1


def _bias_dimensions(rule: Rule) -> frozenset[int]:
    """Dimensions of the first result that a bias runs along."""
    biases = [rule.operands[i] for i in rule.additive if i < len(rule.operands)]
    factors = {f for dims in biases for d in dims or () for f in d}
    return frozenset(k for k, d in enumerate(rule.results[0] or ()) if factors.intersection(d))


def _passes(value: Array) -> bool:
    """Whether something is above zero in each of so many parts of every dimension."""
    if not value.size:
        return True
    above = value > 0
    for d, size in enumerate(above.shape):
        along = above.any(axis=tuple(k for k in range(above.ndim) if k != d))
        if not all(part.any() for part in np.array_split(along, min(size, _PARTS))):
            return False
    return True


def _spread(value: Array, apart: frozenset[int]) -> float:
    """Standard deviation, within each index of the dimensions `apart` if there is anything within; 0 of one element."""
    axes = tuple(d for d in range(value.ndim) if d not in apart)
    if not apart or value.size == math.prod(value.shape[d] for d in apart):
        flat = sampled(value, _SAMPLE)
        flat = flat[np.isfinite(flat)]
        return float(flat.std()) if flat.size > 1 else 0.0
    if value.size > _SAMPLE:  # some of the channels say it
        longest = max(apart, key=lambda d: value.shape[d])
        value = value[(slice(None),) * longest + (slice(None, None, max(1, value.size // _SAMPLE)),)]
    return float(np.sqrt(value.var(axis=axes).mean()))
