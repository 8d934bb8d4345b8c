"""One rank of a plan: its stage of the pipeline, interpreted instruction by instruction.

The events of a stage run in the order of the schedule (`planner.lowering.staged`): a plan without a pipeline is one of
one stage.  Parameters are given to every step and their gradients taken from it; what is made of constants alone is
laid out once.  Values are let go behind the last instruction that reads them: what a backward reads is in its record.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from planner.frontends.facts.chance import is_drawn
from planner.ir import Layout, Op, Role
from planner.kernels.shards import Array
from planner.lowering import Event, Free, Host, Load, Redistribute, Run, Seed, Staged, StageTransfer
from planner.lowering.program import StageInstruction
from planner.lowering.staged import Phase
from planner.lowering.touched import Key
from planner.runtime.bound import bind
from planner.runtime.buckets import buckets
from planner.runtime.cells import Cell, Taken, missing
from planner.runtime.collectives import all_reduce
from planner.runtime.lifetimes import Passing, chained, passing
from planner.runtime.operators import Operators
from planner.runtime.parts import local_part
from planner.runtime.redistributions import Redistributions
from planner.runtime.transfers import Transfers
from planner.runtime.workers import Context
from planner.verify.reference import incoming_gradient
from planner.work.activity import fixed_operators

__all__ = ["DRAW", "Feed", "Stage", "Watch"]

# The local tensor of an input of a micro-batch, or of a parameter (micro-batch -1), in a layout.
Feed = Callable[[str, Layout, int], Tensor]
Watch = Callable[[StageInstruction], None]
# What a feed is asked for before random operators run, of a micro-batch.
DRAW: Final = ("", Layout.replicated(0))


class Stage:
    """This process's rank of `staged`.

    constants  whole values of constants by name, where the graph does not hold them
    precision  the type in which floats of single precision are computed; None: as the graph says
    changing   constants that steps change, as running statistics are: given to every step
    drawing    whether random operators draw anew for every micro-batch, of the whole number that is fed as `DRAW`
    wide_sums  whether gradients of several micro-batches are added up in single precision; they are where there is a
               `precision`
    """

    def __init__(
        self,
        staged: Staged,
        context: Context,
        constants: Mapping[str, Array | Tensor],
        *,
        precision: torch.dtype | None = None,
        changing: Collection[str] = (),
        drawing: bool = False,
        wide_sums: bool = False,
    ) -> None:
        self.staged, self.program, self.context = staged, staged.program, context
        self.graph, self.mesh = self.program.graph, self.program.mesh
        self.number = context.enter(self.mesh)
        self.precision, self.changing = precision, frozenset(changing)
        holder = staged.passes.holder
        self.chunks = [k for k, s in enumerate(holder) if s == self.number]
        own = set(self.chunks)
        self.bound = {op.name: bind(self.program, op, context) for op in self.graph.ops
                      if staged.chunk_of[op.name] in own}  # fmt: skip
        self.fixed = fixed_operators(self.graph) - self._changed()
        self.draws = {n for n, b in self.bound.items() if drawing and _draws(b.op) and n not in self.fixed}
        self.passing: dict[int, Passing] = {k: passing(self.program, staged, k) for k in self.chunks}
        # Many terms that are added up in a narrow type lose what is small beside the sum.
        several = len({e.micro_batch for e in staged.passes.stages[self.number] if e.phase == "forward"}) > 1
        wide = wide_sums or precision is not None
        self.sums = torch.float32 if wide and (several or staged.copies > 1) else None
        self.resident: dict[Key, Tensor] = {}
        # Parameters as the feed gives them: those of the module, if they are not converted.
        self.lasting = frozenset((i.tensor, i.layout) for i in self.loads() if self.is_parameter(i.tensor))
        if precision is not None:
            self.lasting = frozenset()
        self.buckets = {
            (k, phase): buckets(listed, self._bucketed(phase), lambda i: self.type_of(i.tensor))
            for k in self.chunks
            for phase, listed in staged.chunks[k].runs.items()
        }
        self.moves = Redistributions(self.mesh, context, self._value, self.type_of)
        self.operators = Operators(
            staged,
            self._value,
            lasting=self.lasting,
            again=frozenset[Key]().union(*(p.again for p in self.passing.values())),
            chained={b: a for k in self.chunks for b, a in chained(staged, k).items()},
        )
        self.transfers = Transfers(staged, self.number, context, self.local_shape, self.type_of)
        self._watch: Watch | None = None
        self.received: Callable[[Event], None] | None = None  # called when a pass has what it receives
        self._left: tuple[dict[Key, Tensor], dict[Key, Tensor]] | None = None
        self._lay_out(constants)

    @property
    def fallbacks(self) -> set[str]:
        """Types of the operators that ran on the host."""
        return self.operators.fallbacks

    # Preparation

    def _changed(self) -> set[str]:
        """Operators that read what a step changes, directly or by others."""
        changed, found = set(self.changing), set()
        for op in self.graph.ops:
            if any(t in changed for t in op.inputs):
                found.add(op.name)
                changed.update(op.outputs)
        return found

    def _lay_out(self, constants: Mapping[str, Array | Tensor]) -> None:
        """Constants, and what is made of them alone."""
        cell = Cell(-1)
        for i in (i for k in self.chunks for i in self._instructions(k)):
            if isinstance(i, Load) and self.graph.tensors[i.tensor].role is Role.CONSTANT:
                if (i.tensor, i.layout) not in self.resident and i.tensor not in self.changing:
                    given = self.graph.tensors[i.tensor].value
                    value = constants[i.tensor] if given is None else given
                    self.resident[i.tensor, i.layout] = self.local(value, i.layout)
            elif isinstance(i, Run) and i.op in self.fixed and not i.backward:
                if not all(k is None or k in self.resident for k in self.bound[i.op].outputs):
                    self.operators.forward(self.bound[i.op], cell, cell, record=False)
                    self.resident |= cell.values
            elif isinstance(i, Redistribute) and self._is_fixed(i) and (i.tensor, i.target) not in self.resident:
                self.moves.one(i, cell, cell)
                self.resident |= cell.values
        self.seeds: dict[Key, Tensor] = {
            (i.tensor, i.layout): self.local(incoming_gradient(self.graph, i.tensor), i.layout)
            for k in self.chunks
            for i in self._instructions(k)
            if isinstance(i, Seed)
        }

    def _instructions(self, chunk: int) -> list[StageInstruction]:
        phases: tuple[Phase, ...] = ("begin", "forward", "backward", "weights", "end")
        return [i for p in phases for i in self.staged.chunks[chunk].instructions(p)]

    def loads(self) -> list[Load]:
        """What the stage asks its feed for."""
        return [i for k in self.chunks for i in self._instructions(k) if isinstance(i, Load)]

    def _is_fixed(self, i: Redistribute) -> bool:
        made = self.graph.producers.get(i.tensor)
        if i.gradient or i.tensor in self.changing:
            return False
        return self.graph.tensors[i.tensor].role is Role.CONSTANT or (made is not None and made.name in self.fixed)

    def local(self, value: Array | Tensor, layout: Layout) -> Tensor:
        """This rank's part of a whole value, in the precision of the stage; of a pending sum the first rank of each
        group holds the value, the others zeros."""
        found = local_part(value, layout, self.mesh, self.context.place)
        at = self.mesh.coordinates(self.context.place)
        found = torch.zeros_like(found) if any(at[a] for a in layout.partial_axes) else found
        return self.computed(found.to(self.context.device))

    def computed(self, value: Tensor) -> Tensor:
        """A float in the type in which the stage computes."""
        low = self.precision is not None and value.dtype == torch.float32
        return value.to(self.precision) if low else value

    def _bucketed(self, phase: Phase) -> Callable[[Redistribute], int]:
        """Bytes of what goes in buckets: in passes that is parameters and their gradients alone."""
        once = phase in ("begin", "end")
        return lambda i: self.bytes_of(i.tensor) if once or self.is_parameter(i.tensor) else 0

    def bytes_of(self, tensor: str) -> int:
        return self.graph.tensors[tensor].elements * self.type_of(tensor).itemsize

    # Execution

    def step(
        self, feed: Feed, watch: Watch | None = None, left: tuple[dict[Key, Tensor], dict[Key, Tensor]] | None = None
    ) -> Taken:
        """One step: every event of the stage, then the sums of gradients between chunks and stages.  `watch` is called
        behind every instruction; `left` is filled with values and gradients that passes leave."""
        self._watch, self._left = watch, left
        self.operators.watched = watch is not None
        self.begin(feed)
        taken = Taken()
        self.run(self.staged.passes.stages[self.number], taken)
        self.transfers.wait()
        self.total(taken)
        self._empty()
        self._watch, self.operators.watched = None, False
        return taken

    def begin(self, feed: Feed) -> None:
        """Empties what a step fills."""
        self._feed, self.context.draw = feed, None
        self._empty()

    def _empty(self) -> None:
        self.cells: dict[tuple[int, int], Cell] = {}
        self.transfers.empty()
        self.once = {k: Cell(-1, self.sums) for k in self.chunks}

    def run(self, events: Iterable[Event], taken: Taken) -> None:
        """Events of the stage, in their order."""
        for event in events:
            self._event(event, taken)

    def _event(self, event: Event, taken: Taken) -> None:
        once = event.phase in ("begin", "end")
        shared = self.once[event.chunk]
        numbers = [-1] if once else list(self.staged.micro_batches_of(event))
        cells = [shared] if once else [self.cell(event.chunk, n) for n in numbers]
        program, life = self.staged.chunks[event.chunk], self.passing[event.chunk]
        for cell in cells:
            for transfer in program.received(event.phase):
                self._receive(transfer, cell)
        if self.received is not None:
            self.received(event)
        listed = program.instructions(event.phase)
        together = self.buckets.get((event.chunk, event.phase), {})
        passed = {n for members in together.values() for n in members[:-1]}
        for n, i in enumerate(listed):
            if n in together:
                self.moves.together([m for k in together[n] if isinstance(m := listed[k], Redistribute)], cells, shared)
            elif n not in passed:
                self._instruction(i, cells, shared, record=(event.phase, n) in life.recorded)
            if isinstance(i, Free | Host):  # a chain is not to hold what is let go, nor what goes to the host
                for cell in cells:
                    if cell.chain is not None:
                        cell.chain.forget((i.tensor, i.layout))
            for cell in cells:
                for key in life.dropped.get((event.phase, n), ()):
                    cell.values.pop(key, None)
                    if cell.chain is not None:
                        cell.chain.forget(key)
                for key in () if once else life.summed.get((event.phase, n), ()):
                    if key in cell.gradients:
                        shared.add(key, cell.gradients.pop(key))
            if self._watch is not None:
                self._watch(i)
        for cell in cells:
            self.operators.join(None, cell)
            for transfer in program.sent(event.phase):
                self._send(transfer, cell)
        if event.phase == "forward":
            self._outputs(event.chunk, cells, taken)
        if not once and event.phase != "forward":  # what no backward pass has made, as a seed of a parameter
            for cell in cells:
                for key in [k for k in cell.gradients if self.is_parameter(k[0])]:
                    shared.add(key, cell.gradients.pop(key))
        if event.phase == self.staged.last:
            for n in numbers:
                done = self.cells.pop((event.chunk, n), None)
                if done is not None and self._left is not None:
                    for store, found in zip(self._left, (done.values, done.gradients), strict=True):
                        store.clear()
                        store.update(found)

    def cell(self, chunk: int, micro_batch: int) -> Cell:
        return self.cells.setdefault((chunk, micro_batch), Cell(micro_batch))

    def is_parameter(self, tensor: str) -> bool:
        return self.graph.tensors[tensor].role is Role.PARAMETER

    def _instruction(self, i: StageInstruction, cells: Sequence[Cell], shared: Cell, *, record: bool) -> None:
        """What concerns a parameter alone happens once for the micro-batches that pass together."""
        if isinstance(i, Redistribute | Free | Load) and self.is_parameter(i.tensor):
            if isinstance(i, Redistribute) and i.gradient:
                self.moves.contribute(i, cells, shared)
                if (i.tensor, i.source) not in shared.gradients:
                    raise missing(f"gradient of {i.tensor}", i.source)
            self._one(i, shared, shared, record)
            return
        for cell in cells:
            self._one(i, cell, shared, record)

    def _one(self, i: StageInstruction, cell: Cell, shared: Cell, record: bool) -> None:
        match i:
            case Load(tensor, layout):
                if (tensor, layout) not in self.resident:
                    value = self._feed(tensor, layout, cell.micro_batch)
                    cell.values[tensor, layout] = self.computed(value)
            case Redistribute():
                if i.gradient or (i.tensor, i.target) not in self.resident:
                    self.moves.one(i, cell, shared)
            case Run(op, True):
                self.operators.backward(self.bound[op], cell, i.part)
            case Run(op):
                if op in self.draws:
                    self.context.draw = self._feed(*DRAW, cell.micro_batch)
                if op not in self.fixed:
                    self.operators.forward(self.bound[op], cell, shared, record=record)
            case Seed(tensor, layout):
                seed = self.seeds[tensor, layout]
                cell.gradients[tensor, layout] = seed if i.weight == 1.0 else seed * i.weight
            case Free(tensor, layout):
                cell.values.pop((tensor, layout), None)
            case Host(tensor, layout):
                where = self.context.device if i.back else torch.device("cpu")
                if (tensor, layout) in cell.values:
                    cell.values[tensor, layout] = cell.values[tensor, layout].to(where)

    def _value(self, key: Key, cell: Cell, shared: Cell) -> Tensor | None:
        for store in (cell.values, shared.values, self.resident):
            if key in store:
                return store[key]
        return None

    # Between stages

    def _send(self, transfer: StageTransfer, cell: Cell) -> None:
        store = cell.gradients if transfer.gradient else cell.values
        key = transfer.key
        self.transfers.send(transfer, store.pop(key, None) if transfer.gradient else self._value(key, cell, cell))

    def _receive(self, transfer: StageTransfer, cell: Cell) -> None:
        value = self.transfers.receive(transfer)
        if value is None:
            return
        if transfer.gradient:
            cell.add(transfer.key, value)
        else:
            cell.values[transfer.key] = value

    def local_shape(self, key: Key) -> tuple[int, ...]:
        shape = self.graph.tensors[key[0]].shape
        assert shape is not None, "only tensors of known shape are sent"
        return key[1].local_shape(shape, self.mesh)

    def type_of(self, tensor: str) -> torch.dtype:
        found: torch.dtype = getattr(torch, self.graph.tensors[tensor].dtype)
        return self.precision if self.precision is not None and found == torch.float32 else found

    # Results

    def _outputs(self, chunk: int, cells: Sequence[Cell], taken: Taken) -> None:
        for name in self.graph.outputs:
            made = self.graph.producers.get(name)
            if made is not None and self.staged.chunk_of[made.name] != chunk:
                continue
            for cell in cells:
                held = [k for k in (*cell.values, *self.resident) if k[0] == name]
                if held:
                    key = min(held, key=lambda k: len(k[1].partial))
                    value = self._value(key, cell, cell)
                    assert value is not None
                    taken.outputs.setdefault(name, {})[cell.micro_batch] = key[1], value

    def total(self, taken: Taken) -> None:
        """Gradients of parameters: those of the stage's chunks together, then those of the stages that hold one."""
        for name, layout in self.program.final_gradients.items():
            found = [g for k in self.chunks if (g := self.once[k].gradients.pop((name, layout), None)) is not None]
            held = any(name in self.staged.chunks[k].held for k in self.chunks)
            if not found and not (held and name in self.staged.sums):
                continue
            total = found[0] if found else torch.zeros(
                self.local_shape((name, layout)), dtype=self.type_of(name), device=self.context.device)  # fmt: skip
            for more in found[1:]:
                total = total + more
            for group in self.staged.sums.get(name, ()):
                if self.context.rank in group:
                    sent = total.to(self.type_of(name))
                    self.context.ledger.add(self.context.ledger.steps, "all_reduce", sent.nbytes)
                    total = all_reduce(sent, self.context.group_of(group)).to(total.dtype)
            taken.gradients[name] = total


def _draws(op: Op) -> bool:
    return is_drawn(op.type) or op.type.rpartition(":")[2] in ("Dropout", "BiasDropout")
