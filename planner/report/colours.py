"""How operators are split, in words that pictures colour: one of `SPLITS` for every axis of the mesh.

A plan names the factor that an axis splits (`split:d0`), which says little without the operator's rule.  What the
split does is read off its layouts and shapes: which dimension of the result the axis cuts, or that the result is a
pending sum over it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from planner.planning.document import LayoutDocument, OperatorDocument, PlanDocument

__all__ = ["SPLITS", "Split", "Splits"]


@dataclass(frozen=True, slots=True)
class Split:
    """`letter`: its key in data and beside colours.  Colours are those of Okabe and Ito, told apart by all kinds of
    colour vision; `pattern` says the same in print."""

    letter: str
    name: str
    meaning: str
    colour: str
    pattern: str


SPLITS: Mapping[str, Split] = {
    s.letter: s
    for s in (
        Split("b", "batch", "the batch is divided: data parallel", "#0072B2", "solid"),
        Split("s", "sequence", "positions or space are divided", "#009E73", "rows"),
        Split("c", "columns", "features, heads or channels of the result are divided", "#E69F00", "columns"),
        Split(
            "k",
            "contraction",
            "what is summed over is divided (rows of a weight): a sum is pending",
            "#D55E00",
            "hatch",
        ),
        Split("e", "experts", "experts are divided", "#CC79A7", "dots"),
        Split(
            "p", "pending", "replicated or linear work on values or gradients that are pending sums", "#56B4E9", "cross"
        ),
        Split("r", "replicated", "every rank does the same work", "#8A8F98", "none"),
    )
}


@dataclass(frozen=True, slots=True)
class Splits:
    """Classifier for the operators of one plan.  `batch`, `positions`: sizes of the first two dimensions of what the
    model is fed, 0 where unknown; `image`: whether it is fed dimensions of space."""

    plan: PlanDocument
    batch: int
    positions: int
    image: bool

    @classmethod
    def of(cls, plan: PlanDocument) -> Splits:
        fed = [(i.shape, i.dtype) for n, i in plan.inputs.items() if n not in plan.parameters and i.shape]
        image = any(len(s) >= 4 and min(s[2:]) > 1 and d.startswith(("float", "bfloat", "uint8")) for s, d in fed)
        rows = [s for s, _ in fed if len(s) == 2] or [s for s, _ in fed]
        positions = 0 if image else _usual(s[1] for s in rows if len(s) > 1)
        return cls(plan, _usual(s[0] for s in rows), positions, image)

    def letters(self, operator: OperatorDocument) -> str:
        """One letter of `SPLITS` for every axis of the mesh, in its order."""
        return "".join(self.letter(operator, axis) for axis in self.plan.mesh.names)

    def letter(self, o: OperatorDocument, axis: str) -> str:
        role, _, factor = o.strategy.get(axis, "replicate").partition(":")
        if role == "replicate":
            return "r"
        if role != "split":
            return "p"
        if "&" in factor:
            return "e" if factor.endswith("&e") else "s"
        if factor == "e":
            return "e"
        results = [(t, r) for t, r in zip(o.outputs, o.results, strict=False) if r is not None]
        if any(axis in r.partial for _, r in results):
            return "k"
        for tensor, layout in results:
            for d, axes in enumerate(layout.dims):
                if axis in axes:
                    return self._dimension(o, axis, tensor, layout, d)
        return "b" if any(x is not None and x.dims and axis in x.dims[0] for x in o.operands) else "k"

    def _dimension(self, o: OperatorDocument, axis: str, tensor: str, layout: LayoutDocument, d: int) -> str:
        rank = len(layout.dims)
        known = self.plan.tensors.get(tensor)
        size = known.shape[d] if known is not None and known.shape is not None and d < len(known.shape) else 0
        if d == 0 and self._is_batch(o, axis, size, rank):
            # Batch and positions merged: what is inside of as many parts as there are samples divides positions.
            outer = self.plan.mesh.size(layout.dims[0][: layout.dims[0].index(axis)])
            return "s" if size == self.batch * self.positions > self.batch and outer >= self.batch else "b"
        if self.image and rank >= 4:
            return "s" if d >= 2 else "c"
        return "s" if size and size == self.positions and not self._is_feature(o, axis, tensor, d) else "c"

    def _is_feature(self, o: OperatorDocument, axis: str, tensor: str, d: int) -> bool:
        """Whether the last dimension is one of features, of which there may be as many as positions: behind positions,
        or as the axis cuts the columns of a weight."""
        known = self.plan.tensors.get(tensor)
        shape = (known.shape if known is not None else None) or []
        if (len(shape), d) == (3, 2) and shape[1] == self.positions:
            return True
        if (len(shape), d) == (2, 1) and shape[0] == self.batch * self.positions:
            return True
        return any(
            t in self.plan.parameters and x is not None and x.dims and axis in x.dims[-1]
            for t, x in zip(o.inputs, o.operands, strict=False)
        )

    def _is_batch(self, o: OperatorDocument, axis: str, size: int, rank: int) -> bool:
        if not any(
            x is not None and x.dims and axis in x.dims[0] and t not in self.plan.parameters
            for t, x in zip(o.inputs, o.operands, strict=False)
        ) and any(x is not None and t in self.plan.tensors for t, x in zip(o.inputs, o.operands, strict=False)):
            return False
        if not size or not self.batch:
            return True
        return size in (self.batch, self.batch * self.positions) or (rank >= 3 and size % self.batch == 0)


def _usual(sizes: Iterable[int]) -> int:
    """The most frequent one, those of size one left out."""
    count = Counter(s for s in sizes if s > 1)
    return count.most_common(1)[0][0] if count else 0
