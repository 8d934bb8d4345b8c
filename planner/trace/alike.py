"""A program without most of the blocks that do the same: the rest is traced, and counted for those left out.

Of consecutive equal blocks the first, the second and the last stay.  The first and the last have other neighbours than
the rest; the second has equal blocks before and behind it, as all blocks between have, and is counted for each of them.

Blocks are equal where they are in one run of the graph, only they and the next block read what they make, they read
the same tensors of earlier parts of the graph, their operators are joined to kernels in the same way, and they have the
same instructions with the same strategies and layouts.  The kernels of the smaller graph have to be those of the whole
one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Final
from weakref import WeakKeyDictionary

from planner.frontends.resized.blocks import BlockRun
from planner.frontends.resized.siblings import BlockCut, cut_blocks, removable_runs
from planner.ir import Graph, Role
from planner.ir.memoized import memoized
from planner.lowering import Instruction, Program, Redistribute, Run
from planner.rules.strategy import Strategy
from planner.trace.facts import Facts, cut_units
from planner.trace.workload import Workload
from planner.work.activity import fixed_operators, made_of_parameters, trained_parameters
from planner.work.fusion import Fusion, fusion_of
from planner.work.units import bucket_shares, parameter_elements, units_of

__all__ = ["Condensed", "condensed"]

_STAY: Final = 3  # of equal blocks
_NONE: Final = -1  # the block of what is in none


@dataclass(frozen=True, slots=True, eq=False)
class Condensed:
    """A `program` without some blocks, and the `facts` of its graph.  `of[u]` is the unit of the program that is
    counted for unit u of the model; `repeated` and `stages` are those of the model's units, as of `Workload`."""

    program: Program
    facts: Facts
    of: tuple[int, ...]
    repeated: tuple[bool, ...]
    stages: tuple[int, ...]

    def whole(self, few: Workload, graph: Graph) -> Workload:
        """The workload of the model, whose graph is given, by that of the blocks that stay."""
        return replace(few.spread(self.of, self.repeated, parameter_elements(graph)), stages=self.stages)


def condensed(
    program: Program, stage_of: Mapping[str, int] | None, *, chains: bool, attention: bool, copies: bool
) -> Condensed | None:
    """None where no block can be left out.  Arguments as of `planner.trace.trace`; instructions have to be those of
    `program.active`, as `planner.lowering.lower` makes them."""
    graph, places = program.graph, _places(program.graph)
    if not places.runs or (stage_of is not None and not _grows([stage_of[op.name] for op in graph.ops])):
        return None

    def fusion(graph: Graph) -> Fusion:
        return fusion_of(graph, program.rules, program.active, chains=chains, attention=attention, copies=copies)

    joined = _joined(fusion(graph), places, range(len(places.names)))
    blocks, codes = _read(program, places, joined, stage_of)
    cuts = [c for run in places.runs if (c := _cut(run.run, codes[run.first : run.first + run.run.count])) is not None]
    few = _few(graph, cuts) if cuts else None
    if few is None or not _same_kernels(fusion(graph), fusion(few.graph), joined, few, places):
        return None
    instructions = tuple(
        _renamed(i, few.renamed)
        for i, block in zip(program.instructions, blocks, strict=True)
        if block == _NONE or places.names[block] not in few.stands_for
    )
    units = units_of(graph)
    facts, unit, repeated, stages = few.facts, units.of, units.repeated, tuple[int, ...]()
    if stage_of is not None:
        facts = facts.cut(stage_of)
        unit, repeated, stages = cut_units(unit, repeated, stage_of)
    member = {u: name for name, u in unit.items()}
    of = tuple(facts.unit[few.stands_for.get(member[u], member[u])] for u in range(len(repeated)))
    return Condensed(replace(program, graph=few.graph, instructions=instructions), facts, of, repeated, stages)


# Of a graph


@dataclass(frozen=True, slots=True)
class _Run:
    """A run of blocks, the first of which has the number `first` among all."""

    run: BlockRun
    first: int


@dataclass(frozen=True, slots=True, eq=False)
class _Places:
    """Where everything is in the runs of a graph.

    `names[b]` is the first operator of block b.  `block[op]` numbers blocks, `place[op]` is the same for corresponding
    operators of a run.  `home[t]`: the block that makes the tensor, or alone reads it; `name[t]` is the same for
    corresponding ones.  `marks[b]`: what tells block b from others of its run.
    """

    runs: tuple[_Run, ...]
    names: tuple[str, ...]
    block: Mapping[str, int]
    place: Mapping[str, int]
    home: Mapping[str, int]
    name: Mapping[str, Hashable]
    marks: tuple[tuple[Hashable, ...], ...]


@memoized
def _places(graph: Graph) -> _Places:
    runs: list[_Run] = []
    names: list[str] = []
    block: dict[str, int] = {}
    place: dict[str, int] = {}
    for run in removable_runs(graph):
        if run.count > _STAY:
            runs.append(_Run(run, len(names)))
            at = range(len(place), len(place) + run.size)
            for members in run.blocks:
                block.update(dict.fromkeys(members, len(names)))
                place.update(zip(members, at, strict=True))
                names.append(members[0])
    home: dict[str, int] = {}
    name: dict[str, Hashable] = {}
    for op, b in block.items():
        for k, t in enumerate(graph.op(op).outputs):
            home[t], name[t] = b, (place[op], k)
    for t, readers in graph.consumers.items():
        if t not in graph.producers:
            here = {block.get(op.name, _NONE) for op, _ in readers}
            if len(here) == 1 and _NONE not in here:
                reader, slot = readers[0]
                home[t], name[t] = block[reader.name], (place[reader.name], slot, "source")
    return _Places(tuple(runs), tuple(names), block, place, home, name, _marks(graph, runs, block, home))


def _marks(
    graph: Graph, runs: Sequence[_Run], block: Mapping[str, int], home: Mapping[str, int]
) -> tuple[tuple[Hashable, ...], ...]:
    """What tells blocks apart: what they make for others than themselves and the next one, inputs of their own, and
    what they read from outside that others do not.  The first block of a run may read more, and anything may read what
    the last one makes, without a mark: they stay in any case."""
    begins, ends = {r.first for r in runs}, {r.first + r.run.count - 1 for r in runs}
    marks: list[list[Hashable]] = [[] for r in runs for _ in r.run.blocks]
    shared: dict[frozenset[int], int] = {}
    for t, readers in graph.consumers.items():
        here = {block.get(op.name, _NONE) for op, _ in readers}
        b = home.get(t)
        if b is not None:
            here -= {b} if b in ends else {b, b + 1}
            if graph.tensors[t].role is Role.INPUT or (b not in ends and here):
                marks[b].append(t)
        if not here <= {_NONE, *begins}:
            shared.setdefault(frozenset(here - {_NONE}), len(shared))
    for blocks, number in shared.items():
        for b in blocks:
            marks[b].append(number)
    for t in graph.outputs:
        if t in home:
            marks[home[t]].append(t)
    return tuple(map(tuple, marks))


@dataclass(frozen=True, slots=True, eq=False)
class _Few:
    """A graph with a few of its blocks; `stands_for` is what stands for each operator that does not stay, and `renamed`
    for what it makes and reads."""

    graph: Graph
    renamed: Mapping[str, str]
    stands_for: Mapping[str, str]
    facts: Facts


_PATTERNS: Final = 8  # of blocks that stay, for which smaller graphs are remembered
_Pattern = tuple[tuple[tuple[str, ...], tuple[int, ...]], ...]
_KNOWN: WeakKeyDictionary[Graph, dict[_Pattern, _Few | None]] = WeakKeyDictionary()


def _few(graph: Graph, cuts: Sequence[BlockCut]) -> _Few | None:
    """None where operators would go that are in no block; found once as long as the graph lives."""
    known, pattern = _KNOWN.setdefault(graph, {}), tuple((c.run.blocks[0], c.remaining) for c in cuts)
    if pattern not in known:
        if len(known) == _PATTERNS:
            del known[next(iter(known))]
        known[pattern] = _without(graph, cuts)
    return known[pattern]


def _without(graph: Graph, cuts: Sequence[BlockCut]) -> _Few | None:
    few, renamed = cut_blocks(graph, cuts)
    stands_for: dict[str, str] = {}
    for c in cuts:
        for j, stand_in in enumerate(c.stand_in):
            if j != stand_in:
                stands_for.update(zip(c.run.blocks[j], c.run.blocks[stand_in], strict=True))
    if len(few.ops) + len(stands_for) != len(graph.ops):
        return None
    units = units_of(graph)
    numbers = sorted({units.of[op.name] for op in few.ops})
    number = {u: n for n, u in enumerate(numbers)}
    facts = Facts(
        fixed_operators(few),
        made_of_parameters(few),
        trained_parameters(few),
        {op.name: number[units.of[op.name]] for op in few.ops},
        tuple(units.repeated[u] for u in numbers),
        bucket_shares(graph),
    )
    return _Few(few, renamed, stands_for, facts)


# Of a program


class _Numbers:
    """Equal values have equal numbers; what is the same object is not compared again."""

    def __init__(self) -> None:
        self.by_id: dict[int, int] = {}
        self.by_value: dict[Hashable, int] = {}

    def of(self, value: Hashable) -> int:
        number = self.by_id.get(id(value))
        if number is None:
            number = self.by_id[id(value)] = self.by_value.setdefault(value, len(self.by_value))
        return number


def _read(
    program: Program, places: _Places, joined: Mapping[str, Hashable], stage_of: Mapping[str, int] | None
) -> tuple[list[int], list[tuple[Hashable, ...]]]:
    """By instruction the block that it belongs to, and by block what it does, in values that equal blocks share.

    A redistribution for one reader belongs to that; other instructions belong to what they run or provide, and to no
    block where several read that from outside.
    """
    block, place, home, name = places.block, places.place, places.home, places.name
    codes: list[list[Hashable]] = [[] for _ in places.names]
    blocks: list[int] = []
    number = _Numbers().of
    for i in program.instructions:
        if isinstance(i, Run):
            b = block.get(i.op, _NONE)
            if b != _NONE:
                codes[b].append((place[i.op], i.backward))
        elif isinstance(i, Redistribute):
            t, reader = i.tensor, i.reader
            b = block.get(reader, _NONE) if reader else home.get(t, _NONE)
            if b != _NONE:
                away = b - home.get(t, b)
                code = name.get(t, t), away, place.get(reader), i.gradient, number(i.source), number(i.target)
                codes[b].append((*code, number(i.steps)))
        else:
            b = home.get(i.tensor, _NONE)
            if b != _NONE:
                codes[b].append((type(i), name[i.tensor], number(i.layout)))
        blocks.append(b)
    numbers = _strategy_numbers(program, places)
    for (op, b), n in zip(block.items(), numbers, strict=True):
        codes[b].append((n, joined.get(op), None if stage_of is None else stage_of[op]))
    return blocks, [(*marks, *code) for marks, code in zip(places.marks, codes, strict=True)]


def _joined(fusion: Fusion, places: _Places, number: Sequence[int]) -> dict[str, Hashable]:
    """By operator of a block: what it does for its kernel, and which operators are in that, where blocks go by their
    numbers."""
    block, place = places.block, places.place
    found: dict[str, Hashable] = {}

    def add(members: Sequence[str]) -> None:
        mine = [name for name in members if name in block]
        least = min((number[block[name]] for name in mine), default=0)
        kernel = tuple((place[name], number[block[name]] - least) if name in block else name for name in members)
        for name in mine:
            found[name] = found.get(name), fusion.parts.get(name), kernel, number[block[name]] - least

    for members in fusion.members:
        add([op.name for op in members])
    for core in fusion.cores:
        add([core.scores, core.between[0].name, core.output])
    return found


def _same_kernels(whole: Fusion, few: Fusion, joined: Mapping[str, Hashable], graph: _Few, places: _Places) -> bool:
    """Whether the operators that stay are joined in the smaller graph as they are in the whole one."""
    ops = [op.name for op in graph.graph.ops]
    number = [0] * len(places.names)
    for n, b in enumerate(sorted({places.block[name] for name in ops if name in places.block})):
        number[b] = n
    again = _joined(few, places, number)
    return all(whole.parts.get(name) == few.parts.get(name) and joined.get(name) == again.get(name) for name in ops)


def _grows(stages: Sequence[int]) -> bool:
    return all(a <= b for a, b in pairwise(stages))


def _strategy_numbers(program: Program, places: _Places) -> list[int]:
    """By operator of a block: equal numbers for equal strategies of corresponding operators."""
    numbers: list[int] = []
    by_id: dict[int, int] = {}
    seen: dict[int, list[tuple[int, Strategy]]] = defaultdict(list)
    for op, place in places.place.items():
        strategy = program.strategies[op]
        number = by_id.get(id(strategy))
        if number is None:
            number = next((n for n, known in seen[place] if known == strategy), len(by_id))
            by_id[id(strategy)] = number
            seen[place].append((number, strategy))
        numbers.append(number)
    return numbers


def _cut(run: BlockRun, codes: Sequence[Hashable]) -> BlockCut | None:
    """The blocks that stay and those that stand for others; None where all stay."""
    remaining: list[int] = []
    stand_in: list[int] = []
    for _, equal in groupby(range(run.count), key=codes.__getitem__):
        members = list(equal)
        few = members if len(members) <= _STAY else [*members[: _STAY - 1], members[-1]]
        remaining += few
        stand_in += [j if j in few else few[1] for j in members]
    return BlockCut(run, tuple(remaining), tuple(stand_in)) if len(remaining) < run.count else None


def _renamed(i: Instruction, renamed: Mapping[str, str]) -> Instruction:
    if isinstance(i, Run) or i.tensor not in renamed:
        return i
    return replace(i, tensor=renamed[i.tensor])
