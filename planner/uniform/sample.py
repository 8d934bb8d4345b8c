"""A model with few of its equal blocks, and what a rank does of the whole one.

Blocks of a run are equal, and a configuration treats them alike: what a rank does in one is what it does in all but
the first, which reads what stands before, and the last, which hands over to what stands behind.  So three are laid
out, and the workload of the second one stands for all between.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeVar

from planner.clock import CONTEXTS, Configuration, Context
from planner.cost_models import HardwareProfile
from planner.errors import InputError, PlannerError, UsageError
from planner.evaluate import Prices, layout_of, program_of_configuration, traced_as
from planner.frontends.resized.rebind import batch_axes, named_alike, rebind
from planner.frontends.resized.siblings import cut_layers, removable_runs
from planner.ir import DeviceMesh, Graph, Op
from planner.lowering import Program
from planner.planning.execution import runs_blocks_again
from planner.planning.schemes.expert import has_experts
from planner.planning.schemes.model import model_of
from planner.planning.schemes.stored import Inside, divide_alike
from planner.pricing import Settings
from planner.trace import Exchanges, Workload
from planner.uniform.data_ranks import DataRanks
from planner.uniform.groups import regrouped, with_ranks
from planner.uniform.resize import resized
from planner.uniform.routes import Moves, Routes, cut_as_prescribed, same_ways
from planner.uniform.summing import combines_experts, sums_by_size
from planner.uniform.ways import Ways
from planner.work.units import parameter_elements, units_of

__all__ = ["Sample"]

_PLAIN: Final = frozenset({"all_gather", "reduce_scatter", "all_reduce"})
_OF_SAMPLES: Final = frozenset({0})  # beside sizes that ranks divide, none of which is zero
_TRACED_BLOCKS: Final = 3  # the first block, one that stands for all between, the last one

_Laid = TypeVar("_Laid", Program, Configuration)
_Made = Callable[[Workload, Configuration, DataRanks, Sequence[Exchanges]], Workload]
_Sizes = tuple[frozenset[int], ...]  # that ranks divide evenly, by kind of parallelism


@dataclass(frozen=True, slots=True)
class _Spread:
    """`of[u]`: the unit of the sample that stands for unit u of the model; `repeated` as of `Units`."""

    of: tuple[int, ...]
    repeated: tuple[bool, ...]


class Sample:
    """Of one training graph on one machine, in one precision; what was traced is remembered by layout."""

    def __init__(self, graph: Graph, profile: HardwareProfile) -> None:
        self.profile = profile
        cut, _ = cut_layers(graph, _TRACED_BLOCKS)
        spread = _spread(graph, cut)
        self.whole, self.graph = graph, graph if spread is None else cut
        self._spread = spread
        self.elements = parameter_elements(graph)
        self.layers = sum(units_of(graph).repeated)
        self._graphs: dict[int, Graph] = {}
        self._workloads: dict[Configuration, Workload | PlannerError] = {}
        self._estimated: dict[Configuration, Workload | PlannerError] = {}
        self._programs: dict[object, list[tuple[_Sizes, Program]]] = defaultdict(list)
        self._laid_out: dict[object, list[tuple[_Sizes, Configuration]]] = defaultdict(list)  # with programs
        self.prices = Prices()
        self._ways = Ways(profile)
        self._routes = Routes(self._ways)
        self._moves: dict[Configuration, Moves] = {}  # of programs that stand for any number of data-parallel ranks
        self._own_moves: dict[Configuration, Moves] = {}
        self._few_programs: dict[Configuration, Program] = {}
        self._alike_in_groups: dict[tuple[int, ...], bool] = {}
        self._divided_by: dict[int, frozenset[int]] = {}

    def at(self, samples: int) -> Graph:
        """The sample's graph of so many samples.  InputError where it has no batch that can be changed."""
        if samples not in self._graphs:
            # Programs of one batch stand for those of others (`resized`) where tensors go by the same names.
            rebound = rebind(self.graph, batch_axes(self.graph, samples))
            self._graphs[samples] = named_alike(rebound, self.graph)
        return self._graphs[samples]

    def workload(self, c: Configuration) -> Workload:
        """What a rank of the whole model does for a micro-batch of `c`.

        UsageError, InputError where the configuration does not fit the model.
        """
        return _known(self._workloads, _traced_by(c), self._as_laid_out)

    def traced(self, c: Configuration, program: Program) -> Workload:
        """What a rank of the whole model does under a program of the sample."""
        return self.whole_of(traced_as(c, program, self.profile.framework.joins_kernels))

    def estimated(self, c: Configuration) -> Workload:
        """The same, at less cost: layouts are those of a configuration of the same kinds of parallelism that divides
        the same sizes, with two data-parallel ranks for any number of them.  Along which dimensions ZeRO cuts weights,
        and by which collectives tensors travel, is found for `c` itself.  How close it is: `estimates_closely`.
        Errors as of `workload`."""
        return _known(self._estimated, _traced_by(c), self._as_estimated)

    def follows(self, c: Configuration) -> bool:
        """Whether what is exchanged in groups of ranks follows from the layout over all ranks (`in_groups`).  Not where
        activations may travel by way of one group alone, nor where weights that all ranks divide are not those that a
        group does, nor where weights are divided along with positions, as tables of positions and experts may be."""
        if c.shard_ranks is None or self._forwards_in_groups(c) or not self._divide_alike(c, *_shards_of(c)):
            return False
        if c.cp == 1:
            return True
        units = {id(u): u for u in self.estimated(c.with_(shard_ranks=None)).units}.values()
        return not self.has_experts and all(x.kind in _PLAIN for u in units for x in (*u.gathers, *u.scatters))

    def _divide_alike(self, c: Configuration, ranks: int, group: int) -> bool:
        key = ranks, group, c.ep, c.cp
        if key not in self._alike_in_groups:
            self._alike_in_groups[key] = divide_alike(self.graph, ranks, group, Inside(c.ep, c.cp))
        return self._alike_in_groups[key]

    def in_groups(self, c: Configuration) -> Workload:
        """The workload of `c`, whose ZeRO divides over groups of ranks, by the layout of the same over all ranks: what
        groups exchange is found without a layout of their own."""
        over_all = c.with_(shard_ranks=None)
        return self._exchanging(self.workload(over_all), c, self._own_moves[_traced_by(over_all)], regrouped)

    def _as_laid_out(self, c: Configuration) -> Workload:
        program = self._program(c)
        divided_by_all = program.mesh == DataRanks.of(c).mesh  # else by fewer ranks, that divide more of the weights
        if c.zero and c.shard_ranks is None and c.dp > c.ep and divided_by_all:
            self._own_moves[c] = self._routes.moves(program, c)
        return self.traced(c, program)

    def _as_estimated(self, c: Configuration) -> Workload:
        ranks, group = _shards_of(c)
        if c.zero and not (self._divide_alike(c, ranks, min(ranks, 2)) and self._divide_alike(c, ranks, group)):
            return self.workload(c)  # two ranks, or those of a group, divide other weights than all of them
        if c.shard_ranks is not None and self._forwards_in_groups(c):
            return self.workload(c)
        over_all = c.with_(shard_ranks=None)
        few = self._few(over_all)
        if c.shard_ranks is not None:
            return self._exchanging(self.estimated(over_all), c, self._moves[_traced_by(few)], regrouped)
        if few is over_all:
            program = self._alike(c)
            self._moves[c] = self._routes.moves(program, c)
            self._few_programs[c] = program
            return self.traced(c, program)
        known, key = self.estimated(few), _traced_by(few)
        if c.tp * c.cp * c.ep > 1 and self._ways.forwarding(DataRanks.of(c).mesh):
            known = self._forwarding(known, self._few_programs[key], c)
        return self._exchanging(known, c, self._moves[key], with_ranks)

    def _forwarding(self, known: Workload, few: Program, c: Configuration) -> Workload:
        """`known`, of a program of few data-parallel ranks, or that of `c` where activations go by other ways among
        more of them, some of which forward for others."""
        program = self._resized(few, self.at(c.micro_batch * c.dp), DataRanks.of(c).mesh, c)
        if program is None:
            return self.workload(c)
        return known if same_ways(few, program) else self.traced(c, program)

    def _forwards_in_groups(self, c: Configuration) -> bool:
        """Whether ways of activations are worth being found on the mesh that has groups of ranks as an axis."""
        return self._ways.between_pairs and self._ways.uneven(DataRanks.of(c).mesh)

    def _exchanging(self, known: Workload, c: Configuration, moves: Moves, made: _Made) -> Workload:
        """The workload of `c` that is `made` of a known one, with exchanges by the shortest ways."""
        ranks = DataRanks.of(c)
        exchanges = self._routes.exchanges(moves, ranks, _settings(c))
        if exchanges is None:
            return self.workload(c)
        if self._spread is not None:
            exchanges = [exchanges[s] for s in self._spread.of]
        return made(known, c, ranks, exchanges)

    def _few(self, c: Configuration) -> Configuration:
        """The configuration whose layouts stand for those of `c`."""
        by_size = self._by_size and c.devices <= (self.profile.devices_per_server or 0)
        return c if by_size or c.dp <= 2 * c.ep else c.with_(dp=2 * c.ep)

    def _program(self, c: Configuration, *, kept: bool = False) -> Program:
        return program_of_configuration(self.at(c.micro_batch * c.dp), c, self.profile, prices=self.prices, kept=kept)

    def _alike(self, c: Configuration) -> Program:
        """The program of `c`, by that of a configuration of the same kinds of parallelism where there is one."""
        # Positions of several samples are not divided where samples and positions have become one dimension, as before
        # a loss; those of one sample are.
        one = c.micro_batch == 1 and (c.cp > 1 or c.sequence_parallel)
        inner = (c.tp, c.cp) if c.exchanges_heads else (c.cp, c.tp)
        # How heads travel that not all ranks divide depends on how many ranks there are.
        heads = c.exchanges_heads and c.tp > 1 and not self._attended <= self._divided(c.tp * c.cp, 1)
        # So does whether the parts of experts' results are summed before the product that combines them, or behind it.
        experts = c.tp * c.ep > 1 and self._combines_experts
        by_size = self._by_size or heads or experts
        travel = (c.dp // c.ep, c.ep, *inner) if by_size else tuple(n > 1 for n in inner)
        divided = tuple(self._divided(n, c.micro_batch) for n in (*inner, c.tp * c.cp, c.ep))
        operators = travel, c.context, c.ep > 1, c.dp > c.ep, c.sequence_parallel, one
        kinds = operators, c.zero, c.recompute
        graph, mesh = self.at(c.micro_batch * c.dp), DataRanks.of(c).mesh
        programs = self._programs[kinds]
        if not programs:
            # Where only parameters are stored otherwise, or other blocks run again, prices are those of `like`.
            for own, like in _fit_for(self._laid_out[operators], divided)[:1]:
                with suppress(UsageError, InputError):
                    program = self._program(like.with_(zero=c.zero, recompute=c.recompute), kept=True)
                    programs.append((own, program))
        for _, known in _fit_for(programs, divided):  # of one sample, dimensions go by other names
            found = self._resized(known, graph, mesh, c)
            if found is not None:
                return found
        program = self._program(c, kept=True)
        programs.append((divided, program))
        self._laid_out[operators].append((divided, c))
        return program

    def _resized(self, program: Program, graph: Graph, mesh: DeviceMesh, c: Configuration) -> Program | None:
        found = resized(program, graph, mesh)
        if found is None or not cut_as_prescribed(found, c):
            return None
        return self._routes.rerouted(found, _settings(c))

    def _divided(self, ranks: int, samples: int) -> frozenset[int]:
        """The sizes, of one sample, that so many ranks divide evenly; and whether they divide the samples of a
        micro-batch: where samples and positions are one dimension, ranks of positions take samples then.
        """
        if ranks not in self._divided_by:
            self._divided_by[ranks] = frozenset(size for size in self._sizes if size % ranks == 0)
        return self._divided_by[ranks] | (_OF_SAMPLES if samples % ranks == 0 else frozenset())

    @cached_property
    def _sizes(self) -> frozenset[int]:
        """Of what operators go over, in one sample where the batch can be so small."""
        graph = self.graph
        with suppress(InputError):
            graph = self.at(1)
        return frozenset(size for rule in model_of(graph).rules.values() for size in rule.factors.values())

    @cached_property
    def _attended(self) -> frozenset[int]:
        """Those of attentions, and of what repeats keys and values for several heads, but for dimensions of one."""
        graph = self.graph
        with suppress(InputError):
            graph = self.at(1)
        model = model_of(graph)

        def attends(op: Op) -> bool:
            kind = model.rules[op.name].cost.kind
            products = kind.product and len(op.inputs) > 1 and op.inputs[1] not in model.weights
            return kind == "attention" or products or op.type in ("Expand", "Tile")

        of = (model.rules[op.name] for op in graph.ops if attends(op))
        return frozenset(size for rule in of for size in rule.factors.values() if size > 1)

    @cached_property
    def _by_size(self) -> bool:
        """Whether links in a server are such that sizes decide how tensors travel: where pairs of devices are slower
        than all together (V100), gathering among more ranks than need be, and dropping what is too much, may be faster.
        """
        server = self.profile.server
        return server is not None and server.topology == "table"

    @cached_property
    def has_experts(self) -> bool:
        """Whether there are weights that expert parallelism divides."""
        return has_experts(self.graph, model_of(self.graph).rules)

    @cached_property
    def _combines_experts(self) -> bool:
        """Whether products combine what experts make of samples."""
        return combines_experts(self.graph)

    @cached_property
    def estimates_closely(self) -> bool:
        """Whether estimated layouts are those of the configuration itself.  They may not be where it depends on sizes
        where gradients are summed, or, with links between pairs, whether a tensor is gathered once for several readers.
        """
        graph = self.graph
        with suppress(InputError):
            graph = self.at(2)  # of one sample, what is repeated for samples has one size with what it is made of
        return not (self._ways.between_pairs or sums_by_size(graph))

    @cached_property
    def contexts(self) -> tuple[Context, ...]:
        """The ways for attention to go about positions that ranks divide, of which no two are the same in the model: an
        attention of several operators has no ring, and gathers keys and values where one is asked for."""
        rules = model_of(self.graph).rules.values()
        ring = any(rule.cost.kind == "attention" and any(x.ring for x in rule.inner) for rule in rules)
        return CONTEXTS if ring else tuple(context for context in CONTEXTS if context != "gather")

    @cached_property
    def times(self) -> tuple[int, ...]:
        """By unit of the sample: for how many units of the model it stands."""
        if self._spread is None:
            return (1,) * len(units_of(self.graph).repeated)
        counts = Counter(self._spread.of)
        return tuple(counts[s] for s in range(len(counts)))

    @cached_property
    def stands_for(self) -> Mapping[str, str]:
        """Operator of the model → the one of the sample that stands for it."""
        found = {op.name: op.name for op in self.graph.ops}
        for run in removable_runs(self.whole) if self._spread is not None else ():
            if run.count > _TRACED_BLOCKS:
                for j in range(1, run.count):
                    found |= zip(
                        run.blocks[j], run.blocks[_TRACED_BLOCKS - 1 if j == run.count - 1 else 1], strict=True
                    )
        return found

    def whole_of(self, workload: Workload) -> Workload:
        """The model's, where `workload` is that of a program of the sample."""
        if self._spread is None:
            return workload
        return workload.spread(self._spread.of, self._spread.repeated, self.elements)


def _settings(c: Configuration) -> Settings:
    return Settings(True, c.precision, c.optimizer)


def _fit_for(known: Sequence[tuple[_Sizes, _Laid]], sizes: _Sizes) -> list[tuple[_Sizes, _Laid]]:
    """What ranks that divide all of these sizes were laid out for: three ranks, which leave four heads whole, do not
    stand for two, which divide them."""
    return [k for k in known if all(wanted <= own for wanted, own in zip(sizes, k[0], strict=True))]


def _shards_of(c: Configuration) -> tuple[int, int]:
    """Into how many shards ZeRO cuts a weight that all data-parallel ranks hold: over all of them, and by groups."""
    ranks = c.dp // c.ep
    return ranks, ranks if c.shard_ranks is None else c.shard_ranks // (c.ep * c.cp)


def _known(
    found: dict[Configuration, Workload | PlannerError], key: Configuration, make: Callable[[Configuration], Workload]
) -> Workload:
    """What is made of the key, once: a refusal takes as long to find as a layout, and many ask for it."""
    if key not in found:
        try:
            found[key] = make(key)
        except (UsageError, InputError) as refused:
            found[key] = copy(refused)
    known = found[key]
    if isinstance(known, PlannerError):
        raise copy(known)  # which does not hold on to where it was met
    return known


def _traced_by(c: Configuration) -> Configuration:
    """What of a configuration its workload depends on."""
    key = layout_of(c).with_(attention=c.attention, fuse=c.fuse)
    return key.with_(recompute="full") if runs_blocks_again(c) else key


def _spread(graph: Graph, cut: Graph) -> _Spread | None:
    """None where the units of the cut graph are not those of the model: the whole model is laid out then."""
    units, own = units_of(graph), units_of(cut)
    stands: dict[int, set[int]] = defaultdict(set)
    for op in cut.ops:
        stands[units.of[op.name]].add(own.of[op.name])
    if any(len(s) != 1 for s in stands.values()) or len(stands) != len(own.repeated):
        return None
    found = {u: next(iter(s)) for u, s in stands.items()}
    readers = _readers(graph, units.of)
    for run in removable_runs(graph):
        numbers = [units.of[block[0]] for block in run.blocks]
        if not _own_weights(readers, numbers):
            return None
        if run.count > _TRACED_BLOCKS:
            # Behind the cut the last block kept stands where the last one stood.
            _between(found, numbers)
    if len(found) != len(units.repeated):
        return None
    of = tuple(found[u] for u in range(len(units.repeated)))
    same = all(units.repeated[u] == own.repeated[s] for u, s in enumerate(of))
    return _Spread(of, units.repeated) if same and set(of) == set(range(len(own.repeated))) else None


def _readers(graph: Graph, of: Mapping[str, int]) -> list[set[int]]:
    """Units that read each parameter, where there are several."""
    found = ({of[op.name] for op, _ in graph.consumers.get(p.name, ())} for p in graph.parameters)
    return [units for units in found if len(units) > 1]


def _own_weights(readers: Sequence[set[int]], numbers: Sequence[int]) -> bool:
    """Whether each parameter that several units read is read by all blocks of the run, by none, or by its first or its
    last alone: another block could not stand for those between."""
    run, ends = set(numbers), {numbers[0], numbers[-1]}
    return all(units >= run or (len(units & run) < 2 and units & run <= ends) for units in readers)


def _between(found: dict[int, int], numbers: Sequence[int]) -> None:
    first, middle, last = (found[numbers[k]] for k in range(_TRACED_BLOCKS))
    found.update(dict.fromkeys(numbers[1:-1], middle))
    found[numbers[0]], found[numbers[-1]] = first, last
