"""One step of a program on one device, played over three streams.

Operators compute, in the order of the program, with the collectives inside them.  Redistributions of activations run in
a second stream, those of parameters in a third, each as soon as what it reads is there:

- A parameter is gathered while the unit before the one that reads it first computes, at the earliest (FSDP's prefetch;
  Zhao et al., VLDB 16(12), 2023, section 3.3).
- Gradients of a unit's parameters are summed together, when the last of them is there (gradient buckets; Li et al.,
  VLDB 13(12), 2020, section 3.2.3).
- While collectives run, computing is slowed (`collective_interference`).
- The host starts a kernel every `dispatch_interval_s`; a pass through a unit of many small kernels waits for it.

Behind the last instruction parameters are updated, and `step_overhead_s` passes outside the model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from planner.clock.bound import overhead
from planner.clock.costs import convert_cost, run_cost
from planner.clock.streams import COMPUTE, Piece, run
from planner.ir import Layout
from planner.lowering import Convert, Load, Program, Run, Seed
from planner.pricing import PricedProblem
from planner.work.units import Units, units_of

__all__ = ["Timeline", "play"]

ACTIVATIONS, PARAMETERS = 1, 2
_Value = tuple[str, Layout, bool]


@dataclass(frozen=True, slots=True)
class Timeline:
    """When every instruction begins, and what the step takes, in units of the profile's price resolution.

    `end` is the whole step, of which operators take `compute` with the collectives inside them.  Behind the last
    instruction parameters are updated for `optimizer` units and `overhead` passes; `host` is what computing waits for
    the host that starts kernels, `exposed` for collectives that are not hidden, what they slow it down included.
    """

    begins: tuple[int, ...]
    end: int
    compute: int
    optimizer: int
    host: int
    overhead: int
    exposed: int

    @property
    def parts(self) -> dict[str, int]:
        """Units of the step by cause; they add up to it."""
        return {
            "compute": self.compute,
            "collectives": self.exposed,
            "host": self.host,
            "optimizer": self.optimizer,
            "outside": self.overhead,
        }


def play(priced: PricedProblem, choice: Sequence[int], program: Program) -> Timeline:
    """One step of the program."""
    return _Step(priced, choice, program).timeline()


class _Step:
    def __init__(self, priced: PricedProblem, choice: Sequence[int], program: Program) -> None:
        self.priced, self.choice, self.program = priced, choice, program
        self.units: Units = units_of(priced.graph)
        self.device = priced.machine.profile.device
        self.unit_s = priced.machine.unit_s
        self.pieces: list[Piece] = []
        self.number: list[int] = []  # piece by instruction
        self.made: dict[_Value, list[int]] = defaultdict(list)  # pieces that a value needs
        self.computed: dict[int, int] = {}  # unit → its last piece of the forward pass
        self.sums: list[tuple[int, int]] = []  # (piece, unit) of gradients of parameters
        self.host = 0.0
        self.compute = 0

    def timeline(self) -> Timeline:
        ends = self._passes()
        busy, launches, last = 0, 0, -1
        for position, instruction in enumerate(self.program.instructions):
            if isinstance(instruction, Load):
                self._add(Piece(-1, 0.0), [(instruction.tensor, instruction.layout, False)])
            elif isinstance(instruction, Seed):
                needs = (last,) if last >= 0 else ()
                self._add(Piece(-1, 0.0, needs), [(instruction.tensor, instruction.layout, True)])
            elif isinstance(instruction, Convert):
                self._convert(instruction)
            else:
                last = self._run(instruction)
                busy += int(self.pieces[last].duration)
                launches += self._launches(instruction)
                if position in ends:
                    last = self._wait_for_host(busy, launches, last)
                    busy = launches = 0
        backward = {self.units.of[i.op]: n for i, n in self._backward_runs()}
        for number, unit in self.sums:
            self.pieces[number].after = backward.get(unit, -1)
        return self._played()

    def _played(self) -> Timeline:
        interference = 0.0 if self.device is None else self.device.collective_interference
        begins, ends = run(self.pieces, 1 / (1 - interference))
        costs, nodes = self.priced.problem.nodes, self.priced.parameter_nodes.values()
        optimizer = sum(int(costs[n].costs[self.choice[n]]) for n in nodes)
        passed = round(max(ends, default=0.0))
        host, outside = min(round(self.host), passed - self.compute), overhead(self.priced)
        return Timeline(
            tuple(round(begins[n]) for n in self.number),
            passed + optimizer + outside,
            self.compute,
            optimizer,
            host,
            outside,
            passed - self.compute - host,
        )

    def _passes(self) -> set[int]:
        """Instructions that end a pass through a unit: the next operator is of another unit, or of the other pass."""
        runs = [(n, i) for n, i in enumerate(self.program.instructions) if isinstance(i, Run)]
        keys = [(self.units.of[i.op], i.backward) for _, i in runs]
        return {n for (n, _), a, b in zip(runs, keys, [*keys[1:], None], strict=True) if a != b}

    def _backward_runs(self) -> list[tuple[Run, int]]:
        pairs = zip(self.program.instructions, self.number, strict=True)
        return [(i, n) for i, n in pairs if isinstance(i, Run) and i.backward]

    def _add(self, piece: Piece, makes: Sequence[_Value]) -> int:
        self.pieces.append(piece)
        self.number.append(len(self.pieces) - 1)
        for value in makes:
            self.made[value].append(self.number[-1])
        return self.number[-1]

    def _convert(self, c: Convert) -> None:
        cost = convert_cost(self.priced, c)
        parameter = c.tensor in self.priced.parameter_nodes
        stream = -1 if not cost else PARAMETERS if parameter else ACTIVATIONS
        piece = Piece(stream, float(cost), tuple(self.made[c.tensor, c.source, c.gradient]))
        number = self._add(piece, [(c.tensor, c.target, c.gradient)])
        if parameter and cost:
            readers = [op.name for op, _ in self.program.graph.consumers[c.tensor]]
            unit = min(self.units.of[name] for name in readers if c.reader in ("", name))
            if c.gradient:
                self.sums.append((number, unit))
            else:
                piece.after = max((n for u, n in self.computed.items() if u < unit - 1), default=-1)

    def _run(self, instruction: Run) -> int:
        op = self.program.graph.op(instruction.op)
        strategy = self.program.strategies[op.name]
        read = [(n, x, False) for n, x in zip(op.inputs, strategy.operands, strict=True) if n and x is not None]
        made = [(n, x, False) for n, x in zip(op.outputs, strategy.results, strict=True) if n and x is not None]
        if instruction.backward:
            given = zip(op.outputs, strategy.result_gradients, strict=True)
            wanted = zip(op.inputs, strategy.operand_gradients, strict=True)
            read += [(n, x, True) for n, x in given if n and x is not None]
            made = [(n, x, True) for n, x in wanted if n and x is not None]
        priced = op.name in self.priced.op_nodes
        cost = sum(run_cost(self.priced, self.choice, instruction)) if priced else 0
        self.compute += cost
        needs = [n for value in read for n in self.made.get(value, ())]
        # Even what costs nothing keeps its place among the operators.
        number = self._add(Piece(COMPUTE, float(cost), needs), made)
        if not instruction.backward:
            self.computed[self.units.of[op.name]] = number
        return number

    def _launches(self, instruction: Run) -> int:
        if instruction.op not in self.priced.op_nodes:
            return 0
        return self.priced.tables[instruction.op].launches[instruction.backward]

    def _wait_for_host(self, busy: int, launches: int, last: int) -> int:
        """What a pass through a unit, `busy` for so long, waits for the host to start its kernels."""
        interval = 0.0 if self.device is None else self.device.dispatch_interval_s / self.unit_s
        late = max(0.0, launches * interval - busy)
        if not late:
            return last
        self.host += late
        self.pieces.append(Piece(COMPUTE, late, (last,)))
        return len(self.pieces) - 1
