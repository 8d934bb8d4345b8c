"""A pipeline on virtual devices: stages that hold what they read, micro-batches with data of their own, one step.

Every stage runs its passes, of one or several chunks of the model, in the order of the schedule and waits for what
others send; what is sent arrives in the order in which it was sent, as on a real link.  Each pass of a micro-batch
through a chunk has a store of its own and is compared with the whole model on that micro-batch's data, instruction by
instruction (`planner.verify.proof`).  Stages add parameters' gradients up over the micro-batches, bring them to where
they are stored, and sum those of shared parameters over the groups of ranks that the plan names; the result has to be
the sum of the whole model's gradients.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from planner.errors import VerificationError
from planner.ir import Layout, Op, Role
from planner.lowering import Event, Program, Staged, Transfer
from planner.verify.calibrate import calibrate
from planner.verify.check import Verdict, verdict_of
from planner.verify.data import Drawn, random_tensors
from planner.verify.double import in_double
from planner.verify.execute import Key
from planner.verify.findings import Report
from planner.verify.kernels import NoKernelError
from planner.verify.lifetimes import deaths, departures
from planner.verify.proof import Proof, summed
from planner.verify.shards import Array, Shards
from planner.verify.totals import Totals
from planner.verify.vjp import NoVjpError
from planner.verify.whole import Whole

__all__ = ["PipelineProof", "verify_pipeline"]


def verify_pipeline(
    pipeline: Staged,
    *,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    drawn: Drawn | None = None,
) -> Verdict:
    """Executes one step of the pipeline beside the whole model and compares.  Values in `drawn` are used up."""
    proof = PipelineProof(pipeline, seed, drawn)
    try:
        proof.run(progress)
    except (NoKernelError, NoVjpError) as e:  # of the whole model: nothing behind it can be computed
        proof.report.unproved.append(str(e))
    return verdict_of(
        proof.report,
        pipeline.program,
        devices=pipeline.devices,
        stages=len(pipeline.passes.stages),
        micro_batches=pipeline.micro_batches,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Message:
    """What one chunk sends another: the shards, and of a gradient the value and the contributions that they stand for.
    `shards` is None where there is no gradient."""

    micro_batch: int
    shards: Shards | None
    whole: Array | None = None
    added: tuple[str, ...] = ()


class PipelineProof:
    """One step of `pipeline` on values drawn by `seed`."""

    def __init__(self, pipeline: Staged, seed: int = 0, drawn: Drawn | None = None) -> None:
        self.pipeline, self.seed = pipeline, seed
        self.program = pipeline.program
        self.graph = in_double(self.program.graph)
        self.report = Report(failures=list(pipeline.defects))
        values = random_tensors(self.graph, seed, kept=drawn)
        self.first = Whole(self.graph, values, self.program.rules, self.program.active)
        self.wholes = {0: self.first}
        self.cells: dict[tuple[int, int], _Part] = {}  # by chunk and micro-batch
        self.links: dict[Transfer, deque[_Message]] = {}
        self.totals = Totals(pipeline, self.graph)
        self.chunks = [_Part(self.program, self.first, seed) for _ in pipeline.chunks]
        self.deaths = [deaths(self.program, chunk) for chunk in pipeline.chunks]
        self.departures = departures(pipeline)

    def run(self, progress: Callable[[int, int], None] | None = None) -> Report:
        if self.report.failures:
            return self.report
        calibrate(self.first)
        self.first.begin_backward()
        total = sum(self._work(e) for events in self.pipeline.passes.stages for e in events)
        done = 0
        for event in self._turns():
            try:
                self._run(event)
            except VerificationError as e:  # the whole model has not come to what this stage does now
                where = f"{self._name(event.chunk)}, {event.phase} of micro-batch {event.micro_batch}"
                self.report.failures.append(f"{where}: {e}")
                break
            done += self._work(event)
            if progress is not None:
                progress(done, total)
        self._finish()
        return self.report

    def _name(self, chunk: int) -> str:
        return self.pipeline.passes.name(chunk)

    def _turns(self) -> Iterator[Event]:
        """Every event of every stage, as soon as what it receives is there."""
        left = [deque(events) for events in self.pipeline.passes.stages]
        while any(left):
            moved = False
            for events in left:
                while events and not self._waits_for(events[0]):
                    moved = True
                    yield events.popleft()
            if not moved:
                self._stuck(left)
                return

    def _waits_for(self, event: Event) -> list[Transfer]:
        return [t for t in self.pipeline.chunks[event.chunk].received(event.phase) if not self.links.get(t)]

    def _stuck(self, left: list[deque[Event]]) -> None:
        for events in filter(None, left):
            lacking = self._waits_for(events[0])[0]
            self.report.failures.append(
                f"{self._name(events[0].chunk)} waits for {lacking.what} of micro-batch {events[0].micro_batch}, which "
                f"{self._name(lacking.source)} never sends"
            )

    def _work(self, event: Event) -> int:
        own = self.chunks[event.chunk]
        return sum(own._work(i) for i in self.pipeline.chunks[event.chunk].instructions(event.phase))

    # Events

    def _run(self, event: Event) -> None:
        chunk = event.chunk
        proof = self.chunks[chunk] if event.phase in ("begin", "end") else self._cell(chunk, event.micro_batch)
        program = self.pipeline.chunks[chunk]
        for transfer in program.received(event.phase):
            self._receive(proof, transfer, event)
        gone, read = self.deaths[chunk].get(event.phase, {}), self.departures.get((chunk, event.phase), {})
        for n, instruction in enumerate(program.instructions(event.phase)):
            proof.step(instruction)
            for key in gone.get(n, ()):
                proof.devices.values.pop(key, None)
            for name in read.get(n, ()):
                proof.whole.forget(name)
        for transfer in program.sent(event.phase):
            self._send(proof, transfer, event)
        if event.phase == ("backward" if self.program.active else "forward"):
            self._close(chunk, event.micro_batch)

    def _cell(self, chunk: int, micro_batch: int) -> _Part:
        """The values of a micro-batch in a chunk: the chunk's parameters, and what comes."""
        if (chunk, micro_batch) not in self.cells:
            cell = _Part(self.program, self._whole(micro_batch), self.seed, responses=micro_batch == 0)
            cell.devices.values.update(self.chunks[chunk].devices.values)
            self.cells[chunk, micro_batch] = cell
        return self.cells[chunk, micro_batch]

    def _whole(self, micro_batch: int) -> Whole:
        """The whole model on the micro-batch's data, with the parameters of all."""
        if micro_batch not in self.wholes:
            values = {t: self.first.value(t) for t in self.first.sources} | self.inputs(micro_batch)
            active = self.program.active
            whole = Whole(self.graph, values, self.program.rules, active, witnesses=False)
            whole.begin_backward()
            self.wholes[micro_batch] = whole
        return self.wholes[micro_batch]

    def inputs(self, micro_batch: int) -> dict[str, Array]:
        """The data of a micro-batch."""
        drawn = [t for t in self.first.drawn if self.graph.tensors[t].role is Role.INPUT]
        if not micro_batch:
            return {t: self.first.value(t) for t in drawn}
        return random_tensors(self.graph, self.seed + micro_batch, only=drawn)

    def _send(self, proof: _Part, transfer: Transfer, event: Event) -> None:
        key = transfer.tensor, transfer.layout
        link = self.links.setdefault(transfer, deque())
        if not transfer.gradient:
            link.append(_Message(event.micro_batch, proof.devices.values.get(key)))
            return
        shards = proof.devices.gradients.pop(key, None)
        whole, added = proof.sums.pop(key, None), proof.added.pop(key, ())
        link.append(_Message(event.micro_batch, shards, whole, added))

    def _receive(self, proof: _Part, transfer: Transfer, event: Event) -> None:
        message = self.links[transfer].popleft()
        what = f"{transfer.what} from {self._name(transfer.source)}"
        if message.micro_batch != event.micro_batch:
            proof.report.failures.append(f"receives {what} of micro-batch {message.micro_batch}")
        key = transfer.tensor, transfer.layout
        if transfer.gradient:
            if message.shards is not None and message.whole is not None:
                proof._contribute(key, message.shards, message.whole, message.added)
        elif message.shards is None:
            proof.report.failures.append(f"receives nothing for {what}")
        else:
            proof.received(what, key, message.shards)

    def _close(self, chunk: int, micro_batch: int) -> None:
        """Adds the micro-batch's gradients of parameters to the chunk's, and forgets its values."""
        cell = self.cells.pop((chunk, micro_batch))
        self._accumulate(cell, chunk, micro_batch)
        cell.leftovers()
        self.totals.expect(chunk, micro_batch, cell.whole)
        self.report.merge(cell.report, f"{self._name(chunk)}, micro-batch {micro_batch}: ")
        if chunk == (0 if self.program.active else len(self.chunks) - 1):
            del self.wholes[micro_batch]

    def _accumulate(self, cell: _Part, chunk: int, micro_batch: int) -> None:
        own = self.chunks[chunk]
        for key in [k for k in cell.devices.gradients if self.graph.tensors[k[0]].role is Role.PARAMETER]:
            who = tuple(self.totals.name(micro_batch, c) for c in cell.added.pop(key))
            own._contribute(key, cell.devices.gradients.pop(key), cell.sums.pop(key), who)

    def _finish(self) -> None:
        for (chunk, micro_batch), cell in self.cells.items():
            self.report.merge(cell.report, f"{self._name(chunk)}, micro-batch {micro_batch}: ")
        self.report.failures += [
            f"{self._name(t.source)} sends {t.what} of micro-batch {m.micro_batch} to {self._name(t.target)}, which "
            "never takes it"
            for t, link in self.links.items()
            for m in link
        ]
        self.report.parameters += self.totals.check(self.chunks, self.report)
        self.report.hear(self.first)
        for k, proof in enumerate(self.chunks):
            proof.leftovers()
            self.report.merge(proof.report, f"{self._name(k)}: ")


class _Part(Proof):
    """What a stage holds of a chunk: of one micro-batch, or of all of them.  Whether operators respond to their
    operands is judged once, by `responses`, on the first micro-batch's data."""

    def __init__(self, program: Program, whole: Whole, seed: int, *, responses: bool = True) -> None:
        super().__init__(program, whole, seed)
        self.responses = responses

    def received(self, what: str, key: Key, shards: Shards) -> None:
        """Compares a value that another chunk has sent, and puts it into its place."""
        name, layout = key
        whole = self.whole.value(name)
        good = self._compare(what, shards, layout, whole, summed(shards))
        self.devices.values[key] = self._next(shards, good, whole, layout)

    def leftovers(self) -> None:
        """Gradients that nothing has used."""
        self.report.failures += [
            f"gradient of {name} as {layout}: nothing uses it" for name, layout in self.devices.gradients
        ]

    def _silence(self, op: Op, place: int, whole: Array, layout: Layout) -> str:
        return super()._silence(op, place, whole, layout) if self.responses else ""
