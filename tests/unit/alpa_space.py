"""The solver prototype's own space as a Problem: its strategies, follows, edges and memory.

Rules of alpa-projects/alpa, `playground/auto_sharding_solver` at b8078a9: a dimension is split over one axis at most;
views and element-wise instructions follow an operand; sums are reduced where they arise; another layout of an operand
costs an all-gather per dimension that is no longer split as it was.  Costs in thousandths, in which its prices are
whole; sizes as they are: a third of 1024 rows is a third.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner.search.problem import FORBIDDEN, Edge, Node, Problem
from tests.unit.alpa_prices import PENALTY, PrototypeLinks, links_of
from tests.unit.alpa_prototype import ELEMENTWISE, Case, Instruction

__all__ = ["UNITS", "Space", "space_of"]

UNITS = 1000

Spec = tuple[int, ...]  # the axis that splits each dimension, -1 for none


@dataclass(frozen=True, slots=True)
class Option:
    """A strategy: its name, the layout of the result, what it costs, and the layouts that it wants of its operands
    (None: of the operand that is followed, whose option it stands for)."""

    name: str
    spec: Spec
    cost: float
    wants: tuple[Spec | None, ...] = ()
    follows: int = -1


@dataclass(frozen=True, eq=False)
class Space:
    case: Case
    options: Mapping[str, Sequence[Option]]
    problem: Problem
    numbers: Mapping[str, int]

    def choice(self) -> tuple[int, ...]:
        """The states that the case states.  What follows is as the followed is."""
        found: dict[str, int] = {}
        for name in self.numbers:
            options, strategy = self.options[name], self.case.by_name[name].strategy
            if options[0].follows < 0:
                (found[name],) = (i for i, o in enumerate(options) if o.name == strategy)
            else:
                of = found[_followed(self.case, self.case.by_name[name])]
                (found[name],) = (i for i, o in enumerate(options) if o.follows == of)
        return tuple(found[n] for n in self.numbers)


def space_of(case: Case) -> Space:
    links = links_of(case)
    options: dict[str, list[Option]] = {}
    batches = _batch_dimensions(case) if "force_data_parallel" in case.test else {}
    for instruction in case.instructions:
        if instruction.kind != "tuple":
            found = list(_options(case, links, instruction, options))
            batch = batches.get(instruction.name)
            if instruction.kind == "dot" and batch is not None:
                found = [o for o in found if o.spec[batch] == 0]
            options[instruction.name] = found
    numbers = {name: i for i, name in enumerate(options)}
    last = {o: t for t, i in enumerate(case.instructions) for o in i.operands}
    nodes = []
    for t, (name, choices) in enumerate((n, options[n]) for n in numbers):
        size = 0 if case.by_name[name].kind == "force_replicated" else _bytes(case.by_name[name].shape)
        usage = [size / math.prod(links.shape[a] for a in o.spec if a >= 0) for o in choices]
        nodes.append(
            Node(_units([o.cost for o in choices]), np.rint(usage).astype(np.int64), (t, last.get(name, t) + 1))
        )
    edges = [*_edges(case, links, options, numbers), *_aliases(case, options, numbers)]
    return Space(case, options, Problem(nodes, edges, case.memory), numbers)


def _units(costs: Sequence[float]) -> np.ndarray:
    units: np.ndarray = np.rint(np.array(costs) * UNITS).astype(np.int64)
    return units


def _bytes(shape: Sequence[int]) -> int:
    return 4 * math.prod(shape)


def _edges(
    case: Case, links: PrototypeLinks, options: Mapping[str, Sequence[Option]], numbers: Mapping[str, int]
) -> Iterator[Edge]:
    for name in numbers:
        for k, operand in enumerate(case.by_name[name].operands):
            if operand not in options:  # the value of a constant
                continue
            costs = np.empty((len(options[operand]), len(options[name])), dtype=np.int64)
            for q, option in enumerate(options[name]):
                wanted = option.wants[k]
                for p, source in enumerate(options[operand]):
                    if wanted is None:
                        costs[p, q] = 0 if p == option.follows else FORBIDDEN
                    else:
                        costs[p, q] = _resharding(links, case.by_name[operand].shape, source.spec, wanted)
            yield Edge(numbers[operand], numbers[name], costs)


def _resharding(links: PrototypeLinks, shape: Sequence[int], source: Spec, wanted: Spec) -> int:
    moved = [a for a, b in zip(source, wanted, strict=True) if a >= 0 and a != b]
    return round(UNITS * sum(links.cost("all_gather", a, _bytes(shape)) for a in moved))


def _aliases(case: Case, options: Mapping[str, Sequence[Option]], numbers: Mapping[str, int]) -> Iterator[Edge]:
    """New values of weights lie as the old ones; the prototype does not ask it of biases."""
    for result, parameter in case.updates.items():
        if len(case.by_name[parameter].shape) > 1:
            apart = [[0 if a.spec == b.spec else FORBIDDEN for b in options[result]] for a in options[parameter]]
            yield Edge(numbers[parameter], numbers[result], np.array(apart, dtype=np.int64))


def _batch_dimensions(case: Case) -> dict[str, int]:
    """Where products and what is element-wise have the rows of the first parameter: a case that forces data
    parallelism puts these on the first axis wherever a product has them."""
    found = {case.instructions[0].name: 0}
    for i in case.instructions:
        if i.kind == "dot":
            for operand, total, out in zip(i.operands, ("lhs_con_dim", "rhs_con_dim"), (0, 1), strict=True):
                if operand in found and found[operand] != i.attributes[total][0]:
                    found.setdefault(i.name, i.batch + out if found[operand] >= i.batch else found[operand])
        elif i.kind in ELEMENTWISE:
            found.update((i.name, found[o]) for o in i.operands if o in found)
    return found


def _depths(case: Case) -> dict[str, int]:
    depths: dict[str, int] = {}
    for i in case.instructions:
        depths[i.name] = 1 + max((depths[o] for o in i.operands if o in depths), default=-1)
    return depths


def _followed(case: Case, instruction: Instruction) -> str:
    """The deepest operand, the first of these."""
    depths = _depths(case)
    return max(instruction.operands, key=depths.__getitem__)


def _options(
    case: Case, links: PrototypeLinks, i: Instruction, options: Mapping[str, Sequence[Option]]
) -> Iterator[Option]:
    rank = len(i.shape)
    whole = (-1,) * rank
    match i.kind:
        case "parameter":
            for d, j in ((d, j) for d in range(rank) for j in (0, 1)):
                if 1 < links.shape[j] <= i.shape[d]:
                    yield Option(f"S{d} @ {j}", _spec(rank, {d: j}), 0)
            yield Option("R", whole, PENALTY)
        case "constant":
            yield Option("R", whole, 0)
        case "force_replicated":
            yield Option("R", whole, 0, (whole,))
        case "dot":
            yield from _products(links, i)
        case _:
            of = _followed(case, i)
            for k, source in enumerate(options[of]):
                spec, summed = _carried(case, i, source.spec)
                if spec is not None:
                    size = _bytes(i.shape) / math.prod(links.shape[a] for a in spec if a >= 0)
                    cost = sum(links.cost("all_reduce", a, size) for a in summed)
                    yield Option("", spec, cost, tuple(None if o == of else spec for o in i.operands), k)


def _spec(rank: int, split: Mapping[int, int]) -> Spec:
    return tuple(split.get(d, -1) for d in range(rank))


def _carried(case: Case, i: Instruction, spec: Spec) -> tuple[Spec | None, list[int]]:
    """The layout in which an instruction leaves an operand that lies so, and the axes over which it sums."""
    shape = case.operand_shape(i)
    match i.kind:
        case "transpose":
            return tuple(spec[d] for d in i.attributes["dimensions"]), []
        case "reshape":
            starts = _group_starts(shape, i.shape)
            if any(a >= 0 and d not in starts for d, a in enumerate(spec)):
                return None, []
            return _spec(len(i.shape), {starts[d]: a for d, a in enumerate(spec) if a >= 0}), []
        case "broadcast":
            kept = case.kept_dimensions(i)
            return _spec(len(i.shape), dict(zip(kept, spec, strict=True))), []
        case "reduce":
            gone = i.attributes["dimensions"]
            summed = [a for d, a in enumerate(spec) if d in gone and a >= 0]
            return tuple(a for d, a in enumerate(spec) if d not in gone), summed
    return spec, []


def _group_starts(old: Sequence[int], new: Sequence[int]) -> dict[int, int]:
    """Old dimension → new one, where equal products of sizes begin."""
    begins = {math.prod(new[:d]): d for d in reversed(range(len(new)))}
    products = [math.prod(old[:d]) for d in range(len(old))]
    return {d: begins[p] for d, p in reversed([*enumerate(products)]) if p in begins}


def _products(links: PrototypeLinks, i: Instruction) -> Iterator[Option]:
    batch, rank = i.batch, len(i.shape)
    total = i.attributes["lhs_con_dim"][0], i.attributes["rhs_con_dim"][0]
    space = tuple(next(d for d in range(batch, rank) if d != t) for t in total)
    both = links.shape[0] > 1 and links.shape[1] > 1

    def option(name: str, lhs: Mapping[int, int], rhs: Mapping[int, int], out: Mapping[int, int], over: int) -> Option:
        spec, left, right = (_spec(rank, _real(links, s)) for s in (out, lhs, rhs))
        size = _bytes(i.shape) / math.prod(links.shape[a] for a in spec if a >= 0)
        cost = links.cost("all_reduce", over, size) if over >= 0 else 0
        return Option(name + (f" (allreduce @ {over})" if over >= 0 else ""), spec, cost, (left, right))

    if batch == 2 and both:
        along = {0: 0, 1: 1}
        yield option("Sb = Sb x Sb @ {0,1}", along, along, along, -1)
        return
    for a, b in ((0, 1), (1, 0)):
        at = f"@ {{{a},{b}}}"
        yield option(f"SS = SR x RS {at}", {space[0]: a}, {space[1]: b}, {batch: a, batch + 1: b}, -1)
        if links.shape[b] > 1:
            yield option(f"SR = SS x SR {at}", {space[0]: a, total[0]: b}, {total[1]: b}, {batch: a}, b)
        if both:
            yield option(f"RS = RS x SS {at}", {total[0]: a}, {total[1]: a, space[1]: b}, {batch + 1: b}, a)
    for d, j in ((d, j) for d in range(batch) for j in (0, 1)):
        if 1 < links.shape[j] <= i.shape[d]:
            yield option(f"Sb_{d} = Sb x Sb @ {j}", {d: j}, {d: j}, {d: j}, -1)


def _real(links: PrototypeLinks, split: Mapping[int, int]) -> dict[int, int]:
    """An axis of one device splits nothing."""
    return {d: a for d, a in split.items() if links.shape[a] > 1}
