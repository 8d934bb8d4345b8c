"""Whether a plan's tensor parallelism is that of frameworks that take products by columns, then by rows.

Megatron-LM and torchtitan take one number of tensor-parallel ranks and divide (Shoeybi et al. 2019, Korthikanti et al.
2022; Megatron-LM `core/transformer/{attention,mlp}.py`, torchtitan `models/common/decoder_sharding.py`):

    in every layer     products by columns, with their biases, then by rows; between the two all works on shards
    routers            not at all
    the word table     by vocabulary, and so the product that makes logits
    everything else    not at all
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from planner.emit.batch import batch_of
from planner.emit.layers import Layers
from planner.emit.scheme import PRODUCTS, Scheme
from planner.errors import InputError
from planner.planning.document import PlanDocument, RedistributionDocument

__all__ = ["check_blocks", "check_pairs"]

_PAIRS: Final = "divides products by columns, then by rows"


@dataclass(frozen=True, slots=True)
class _Blocks:
    plan: PlanDocument
    scheme: Scheme
    layers: Layers
    target: str

    def refuse(self, found: str, rule: str, pin: str) -> InputError:
        return InputError(f"plan: {found}; {self.target} {rule}: pin {pin} (docs/constraints.md)")

    @property
    def axes(self) -> str:
        return "[" + ", ".join(a for a, use in self.scheme.uses.items() if use == "tensor") + "]"

    def products(self) -> Mapping[str, str]:
        """Operator → the parameter that it multiplies by, in the order of the plan."""
        found = {
            r.operator: name
            for name, p in self.plan.parameters.items()
            for r in p.readers
            if r.slot == 1 and self.plan.operators[r.operator].type in PRODUCTS
        }
        return {op: found[op] for op in self.plan.operators if op in found}

    def check_layers(self, products: Mapping[str, str]) -> None:
        opened: dict[int, str] = {}
        for op, name in products.items():
            layer = self.layers.of.get(op)
            if layer is None or self.is_router(layer, name):
                continue
            if self.scheme.cuts[name] == "whole":
                raise self.refuse(
                    f"all {self.scheme.tensor} tensor-parallel ranks compute {op} with the whole of parameter {name}",
                    _PAIRS,
                    f"{op} with its columns or rows (n or k of a MatMul) over {self.axes}",
                )
            self.check_pair(opened, layer, op, name)
        for op in opened.values():
            raise self.refuse(
                f"{op} is divided by columns, and no product behind it by rows", _PAIRS, "that one with k"
            )

    def check_pair(self, opened: dict[int, str], layer: int, op: str, name: str) -> None:
        """`opened`: layer → its last product by columns behind which none by rows has come; kept here."""
        cut = self.scheme.cuts[name]
        if cut == "row" and layer not in opened:
            raise self.refuse(
                f"{op} is divided by rows, and no product before it by columns", _PAIRS, "the one before it with n"
            )
        if cut == "whole" and layer in opened:
            raise self.refuse(
                f"{op} computes with the whole of {name}, and {opened[layer]} before it is divided by columns",
                _PAIRS,
                f"{op} with its rows (k) over {self.axes}",
            )
        self.check_bias(op, name)
        if cut == "row":
            del opened[layer]
        elif cut == "column":
            opened[layer] = op

    def is_router(self, layer: int, name: str) -> bool:
        """A product with a column for every expert of its layer."""
        stacks = [
            p.shape[0]
            for p in self.plan.parameters.values()
            if len(p.shape) == 3 and any(self.layers.of.get(r.operator) == layer for r in p.readers)
        ]
        shape = self.plan.parameters[name].shape
        return self.scheme.cuts[name] == "whole" and len(shape) == 2 and shape[0] != shape[1] and min(shape) in stacks

    def check_bias(self, op: str, name: str) -> None:
        """What stands beside the weight as `bias` is divided with its columns, and whole where rows are divided."""
        bias = name.rpartition(".")[0] + ".bias"
        cut = self.scheme.cuts.get(bias)
        wanted = "follows" if self.scheme.cuts[name] == "column" else "whole"
        if cut is not None and cut != wanted:
            by = self.scheme.cuts[name]
            reader = self.plan.parameters[bias].readers[0].operator
            raise self.refuse(
                f"{op} is {'not divided' if by == 'whole' else f'divided by {by}s'}, and its bias {bias} is "
                + ("not" if cut == "whole" else "divided"),
                "divides biases with the columns alone",
                f"{reader}, which adds it, to split its last dimension" + (f" over {self.axes}" if cut == "whole" else
                                                                          " by nothing"),
            )  # fmt: skip

    def check_moves(self) -> None:
        """Between columns and rows of a layer nothing travels among tensor-parallel ranks but whole positions."""
        tensor = {a for a, use in self.scheme.uses.items() if use == "tensor"}
        positions = batch_of(self.plan, self.scheme).positions or 0
        for r in self.plan.redistributions:
            layer = self.layers.of.get(r.tensor)
            if layer is None or r.direction != "forward" or r.tensor in self.plan.parameters:
                continue
            shape = self.plan.tensors[r.tensor].shape if r.tensor in self.plan.tensors else None
            if any(tensor & set(s.axes) and _reassembles(r, s.kind, s.dim, shape or (), positions) for s in r.steps):
                raise self.refuse(
                    f"{r.tensor} is gathered or exchanged among tensor-parallel ranks ({r.source.layout()} to "
                    f"{r.target.layout()})",
                    "goes on with every rank's columns or heads",
                    f"what reads it to split that dimension over {self.axes}",
                )

    def check_outside(self, products: Mapping[str, str]) -> None:
        """The word table is that which is also the last product's weight, else the one with most rows."""
        tables = [
            n
            for n, p in self.plan.parameters.items()
            if any(r.slot == 0 and self.plan.operators[r.operator].type == "Gather" for r in p.readers)
        ]
        outside = [name for op, name in products.items() if op not in self.layers.of]
        tied = [n for n in tables if n in outside]
        words = (tied or sorted(tables, key=lambda n: -self.plan.parameters[n].shape[0]) or [""])[0]
        vocabulary = self.plan.parameters[words].shape[0] if words else 0
        for name in tables:
            wanted = "vocabulary" if name == words else "whole"
            cut = self.scheme.cuts[name]
            if cut != wanted:
                reader = self.plan.parameters[name].readers[0].operator
                raise self.refuse(
                    f"table {name} is "
                    + ("whole on every tensor-parallel rank" if cut == "whole" else f"divided by {cut}"),
                    "divides the word table by vocabulary, and no other",
                    f"{reader} with v over {self.axes}" if name == words else f"{reader} without {self.axes}",
                )
        for op, name in products.items():
            if name not in outside:
                continue
            if name in tables:
                self.check_tied(op, name)
                continue
            logits = vocabulary in self.plan.parameters[name].shape
            wanted = "column" if logits else "whole"
            cut = self.scheme.cuts[name]
            if cut != wanted:
                raise self.refuse(
                    f"{op} outside of layers computes with "
                    + (f"the whole of {name}" if cut == "whole" else f"{name} divided by {cut}"),
                    "divides the product that makes logits by columns, and no other outside of layers",
                    f"{op} with its columns (n) over {self.axes}" if logits else f"{op} without {self.axes}",
                )

    def check_tied(self, op: str, name: str) -> None:
        """`cuts` says of a table how it is looked up; the product may yet be with all of it, of some positions."""
        operand = self.plan.operators[op].operands[1]
        over = {a for d in operand.dims for a in d} if operand is not None else set()
        missing = {a for a, use in self.scheme.uses.items() if use == "tensor" and self.scheme.sizes[a] > 1} - over
        if missing:
            raise self.refuse(
                f"{op} outside of layers computes with the whole of table {name}",
                "divides the product that makes logits by columns",
                f"{op} with its columns (n) over {self.axes}",
            )


def _reassembles(r: RedistributionDocument, kind: str, dim: int, shape: Sequence[int], positions: int) -> bool:
    """Whether a step puts columns or heads together, not positions: of three dimensions the middle one, of more that
    which alone has their number."""
    if kind == "all_to_all":
        return True
    if kind != "all_gather" or (len(r.target.dims) == 3 and dim == 1):
        return False
    return not (shape and shape[dim] == positions and list(shape).count(positions) == 1)


def check_blocks(plan: PlanDocument, scheme: Scheme, layers: Layers, target: str) -> None:
    """InputError where a framework that divides whole transformers would divide a parameter, or the work on it,
    otherwise than the plan, naming the operator and what to pin."""
    if scheme.tensor == 1:
        return
    if not layers.count:
        raise InputError(
            f"plan: tensor parallelism over {scheme.tensor} ranks, and no layers (NAME.0, NAME.1, …) in the module "
            f"paths of its operators; {target} divides those of transformers: use --target torch"
        )
    blocks = _Blocks(plan, scheme, layers, target)
    products = blocks.products()
    blocks.check_layers(products)
    blocks.check_moves()
    blocks.check_outside(products)


def check_pairs(plan: PlanDocument, scheme: Scheme, layers: Layers, target: str) -> str | None:
    """The parameter of the last product, where its columns are divided and its result gathered.

    For frameworks that take products one by one, and reduce behind those divided by rows.  InputError where a product
    by columns is not followed by one by rows, naming the operator and what to pin.
    """
    if scheme.tensor == 1:
        return None
    blocks = _Blocks(plan, scheme, layers, target)
    products = blocks.products()
    opened: dict[int, str] = {}
    for op, name in products.items():
        if scheme.cuts[name] in ("column", "row", "whole"):
            blocks.check_pair(opened, layers.of.get(op, -1), op, name)
    blocks.check_moves()
    last = next(reversed(list(products)), None)
    for op in opened.values():
        if op != last:
            raise blocks.refuse(
                f"{op} is divided by columns, and no product behind it by rows", _PAIRS, "that one with k"
            )
    return products[opened[-1]] if -1 in opened else None
