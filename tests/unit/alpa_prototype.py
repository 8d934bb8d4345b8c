"""The small graphs of Alpa's solver prototype, and its answers, from the lines that it prints.

A line names an instruction, its shape, its operands and the strategy that was chosen for it (alpa-projects/alpa,
`playground/auto_sharding_solver` at b8078a9, run as it is):

    Time  4: dot.0 (8, 4) = dot(x, y)  lhs_con_dim=(1,), rhs_con_dim=(0,)  Strategy: SS = SR x RS @ {0,1}

What the lines do not say: batch dimensions of a product are the leading ones; a broadcast puts back what the reduction
before it took away, and otherwise aligns with the last dimensions that fit; a reduction that is subtracted again is the
maximum of a softmax.  New values of parameters are stored as the old ones were (the prototype's aliases).
"""

from __future__ import annotations

import ast
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from planner.builder.graph import GraphBuilder
from planner.frontends import import_bytes
from planner.ir import Graph, Role

__all__ = ["ELEMENTWISE", "Case", "Instruction", "graph_of", "read_cases"]

_LINE = re.compile(
    r"Time\s+\d+: (?P<name>\S+) (?P<shape>[(\[][\d, ]*[)\]]) = (?P<kind>\w+)\((?P<operands>[^)]*)\)"
    r"(?P<rest>.*?)  Strategy: (?P<strategy>.*)"
)
_ATTRIBUTE = re.compile(r"(\w+)=([(\[][\d, ]*[)\]])")
ELEMENTWISE = {"add": "Add", "subtract": "Sub", "multiply": "Mul", "div": "Div", "exp": "Exp", "compare": "Greater"}

# Dimensions of the left operand, the right one and the result that the two axes split, in order.
_PRODUCTS = {"SR x RS": ("lhs", "rhs"), "SS x SR": ("lhs", "sum"), "RS x SS": ("sum", "rhs")}


@dataclass(frozen=True, slots=True)
class Instruction:
    name: str
    kind: str
    shape: tuple[int, ...]
    operands: tuple[str, ...]
    attributes: Mapping[str, tuple[int, ...]]
    strategy: str

    @property
    def batch(self) -> int:
        """Leading dimensions of a product that both operands have."""
        return len(self.shape) - 2


@dataclass(frozen=True, eq=False)
class Case:
    test: str
    mesh: tuple[int, int]
    alpha: tuple[float, float]
    beta: tuple[float, float]
    all_gather: float | None  # what every all-gather costs, where the case says so
    objective: float
    peak: float  # bytes per device, in MiB
    memory: int  # bytes per device
    resharded: bool  # whether some edge between instructions costs
    instructions: tuple[Instruction, ...]

    @property
    def id(self) -> str:
        return f"{self.test.rpartition('.test_')[2]}-{self.mesh[0]}x{self.mesh[1]}"

    @cached_property
    def by_name(self) -> Mapping[str, Instruction]:
        return {i.name: i for i in self.instructions}

    @property
    def results(self) -> tuple[str, ...]:
        """Computed operands of the tuple at the end."""
        (last,) = (i for i in self.instructions if i.kind == "tuple")
        return tuple(n for n in last.operands if self.by_name[n].kind != "parameter")

    def operand_shape(self, i: Instruction) -> tuple[int, ...]:
        return self.by_name[i.operands[0]].shape

    def kept_dimensions(self, broadcast: Instruction) -> list[int]:
        """The dimensions of a broadcast's result that its operand has."""
        source = self.by_name[broadcast.operands[0]]
        if source.kind == "reduce":
            return [d for d in range(len(broadcast.shape)) if d not in source.attributes["dimensions"]]
        return _aligned(source.shape, broadcast.shape)

    @property
    def updates(self) -> dict[str, str]:
        """Result → the parameter whose new value it is."""
        found = {}
        for name in self.results:
            of = self.by_name[name]
            if of.kind == "subtract" and self.by_name[of.operands[0]].kind == "parameter":
                found[name] = of.operands[0]
        return found

    def tiles(self, name: str) -> tuple[int, ...] | None:
        """Into how many parts the chosen strategy cuts each dimension of an instruction's result; None: not said."""
        instruction = self.by_name[name]
        strategy = instruction.strategy.partition(" follow ")[0]
        if strategy.startswith("("):
            sizes = [int(x) for x in re.findall(r"\d+", strategy.replace("int64", ""))]
            return tuple(sizes[: len(instruction.shape)]) or (1,) * len(instruction.shape)
        axes = self.axes(name)
        return None if axes is None else tuple(self.mesh[a] if a >= 0 else 1 for a in axes)

    def axes(self, name: str) -> tuple[int, ...] | None:
        """The mesh axis that splits each dimension of the result, -1 for none; None where only sizes are said."""
        instruction = self.by_name[name]
        strategy, rank = instruction.strategy, len(instruction.shape)
        if strategy == "R":
            return (-1,) * rank
        if found := re.fullmatch(r"S(\d+) @ (\d+)", strategy):
            return tuple(int(found[2]) if i == int(found[1]) else -1 for i in range(rank))
        if instruction.kind == "dot":
            return self.product(name)[2]
        return None

    def product(self, name: str) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]:
        """The mesh axis that splits each dimension of both operands and the result, and that of the sum (-1: none)."""
        dot = self.by_name[name]
        batch = dot.batch
        if found := re.fullmatch(r"Sb_(\d+) = Sb x Sb @ (\d+)", dot.strategy):
            role = {int(found[1]): int(found[2])}
            leading = tuple(role.get(i, -1) for i in range(batch))
            return (*leading, -1, -1), (*leading, -1, -1), (*leading, -1, -1), -1
        if dot.strategy == "Sb = Sb x Sb @ {0,1}":
            return (0, 1, -1, -1), (0, 1, -1, -1), (0, 1, -1, -1), -1
        found = re.match(r"\w\w = (\w\w x \w\w) @ \{(\d),(\d)\}", dot.strategy)
        if not found:
            raise ValueError(f"strategy of {name}: expected one of a product, found {dot.strategy!r}")
        role_of = dict(zip(_PRODUCTS[found[1]], (int(found[2]), int(found[3])), strict=True))
        lhs, rhs, total = (role_of.get(k, -1) for k in ("lhs", "rhs", "sum"))
        left, right = [lhs, lhs], [rhs, rhs]
        left[dot.attributes["lhs_con_dim"][0] - batch] = total
        right[dot.attributes["rhs_con_dim"][0] - batch] = total
        none = (-1,) * batch
        return (*none, *left), (*none, *right), (*none, lhs, rhs), total

    def padded(self) -> Case:
        """With every size that the choice cuts unevenly rounded up, as XLA pads shards: 1024 rows in three are 1026."""
        sizes: dict[int, int] = {}
        for i in self.instructions:
            for size, parts in zip(i.shape, self.tiles(i.name) or (), strict=False):
                if size % parts:
                    sizes[size] = -(-size // parts) * parts
        if not sizes:
            return self
        grown = (replace(i, shape=tuple(sizes.get(s, s) for s in i.shape)) for i in self.instructions)
        return replace(self, instructions=tuple(grown))


def read_cases(path: Path) -> list[Case]:
    return [_case(entry) for entry in json.loads(path.read_text(encoding="utf-8"))]


def _case(entry: Mapping[str, Any]) -> Case:
    instructions = tuple(map(_instruction, entry["strategy"]))
    mesh, alpha, beta = ((entry[k][0], entry[k][1]) for k in ("mesh", "alpha", "beta"))
    return Case(
        entry["test"],
        mesh,
        alpha,
        beta,
        entry["force_all_gather_cost"],
        entry["objective"],
        entry["peak_mem_MB"],
        entry["mem_per_device"],
        bool(entry["nonzero_edges"]),
        instructions,
    )


def _instruction(line: str) -> Instruction:
    found = _LINE.fullmatch(line)
    if not found:
        raise ValueError(f"line of the solver prototype: expected an instruction and its strategy, found {line!r}")
    attributes = {k: tuple(ast.literal_eval(v)) for k, v in _ATTRIBUTE.findall(found["rest"])}
    operands = tuple(o.strip().strip("'") for o in found["operands"].split(",") if o.strip())
    shape = tuple(ast.literal_eval(found["shape"]))
    return Instruction(found["name"], found["kind"], shape, operands, attributes, found["strategy"])


def graph_of(case: Case) -> tuple[Graph, dict[str, str]]:
    """The graph, and the tensor that each instruction computes.  Every parameter is a weight: it lies in one layout."""
    builder = _Builder(case)
    for instruction in case.instructions:
        builder.add(instruction)
    for i, name in enumerate(case.results):
        builder.g.output(builder.tensors[name], f"result_{i}", case.by_name[name].shape)
    graph = import_bytes(builder.g.model().SerializeToString(), name="prototype")
    weights = {builder.tensors[i.name] for i in case.instructions if i.kind == "parameter"}
    tensors = {n: replace(t, role=Role.PARAMETER) if n in weights else t for n, t in graph.tensors.items()}
    return replace(graph, tensors=tensors), builder.tensors


class _Builder:
    def __init__(self, case: Case) -> None:
        self.case, self.g = case, GraphBuilder("prototype")
        self.tensors: dict[str, str] = {}

    def add(self, i: Instruction) -> None:
        if i.kind == "parameter":
            self.tensors[i.name] = self.g.parameter(i.name, *i.shape)
        elif i.kind == "constant":
            self.tensors[i.name] = self.g.constant(float(i.operands[0]), np.float32)
        elif i.kind != "tuple":
            self.tensors[i.name] = self._computed(i, [self.tensors[o] for o in i.operands])

    def _computed(self, i: Instruction, operands: Sequence[str]) -> str:
        g = self.g
        if i.kind in ELEMENTWISE:
            return g.add(ELEMENTWISE[i.kind], *operands)
        match i.kind:
            case "dot":
                return g.add("Einsum", *operands, equation=_equation(i))
            case "select":
                return g.add("Where", *operands)
            case "force_replicated":
                return g.add("Identity", *operands)
            case "transpose":
                return g.add("Transpose", *operands, perm=list(i.attributes["dimensions"]))
            case "reshape":
                return g.add("Reshape", *operands, g.constant(i.shape))
            case "reduce":
                kind = "ReduceMax" if self._is_maximum(i) else "ReduceSum"
                return g.add(kind, *operands, g.constant(i.attributes["dimensions"]), keepdims=0)
            case "broadcast":
                return self._broadcast(i, operands[0])
        raise ValueError(f"instruction {i.name}: expected a kind of the solver prototype, found {i.kind!r}")

    def _is_maximum(self, i: Instruction) -> bool:
        again = {b.name for b in self.case.instructions if b.kind == "broadcast" and b.operands == (i.name,)}
        return any(s.kind == "subtract" and again & set(s.operands) for s in self.case.instructions)

    def _broadcast(self, i: Instruction, operand: str) -> str:
        if not self.case.operand_shape(i):
            return self.g.add("Expand", operand, self.g.constant(i.shape))
        kept = self.case.kept_dimensions(i)
        added = [d for d in range(len(i.shape)) if d not in kept]
        return self.g.add("Expand", self.g.add("Unsqueeze", operand, self.g.constant(added)), self.g.constant(i.shape))


def _aligned(shape: Sequence[int], target: Sequence[int]) -> list[int]:
    """The last dimensions of `target` that have the sizes of `shape`, in order."""
    backward = itertools.combinations(range(len(target) - 1, -1, -1), len(shape))
    return next(sorted(c) for c in backward if [target[d] for d in sorted(c)] == [*shape])


def _equation(dot: Instruction) -> str:
    letters = "ab"[: dot.batch]
    left, right = list("mm"), list("nn")
    left[dot.attributes["lhs_con_dim"][0] - dot.batch] = "k"
    right[dot.attributes["rhs_con_dim"][0] - dot.batch] = "k"
    return f"{letters}{''.join(left)},{letters}{''.join(right)}->{letters}mn"
