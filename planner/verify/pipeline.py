"""A pipeline on virtual devices: stages that hold what they read, micro-batches with data of their own, one step.

Every stage runs its passes, of one or several chunks of the model, in the order of the schedule and waits for what
others send; what is sent arrives in the order in which it was sent, as on a real link.  Each pass of a micro-batch
through a chunk has a store of its own and is compared with the whole model on that micro-batch's data, instruction by
instruction (`planner.verify.proof`).  Micro-batches that pass together take turns, instruction by instruction; what one
gathers of a parameter is there for all of them, and what they scatter of its gradient they add up before.  Stages add
parameters' gradients up over the passes, bring them to where they are stored, and sum those of shared parameters over
the groups of ranks that the plan names; the result has to be the mean of the whole model's gradients.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from planner.errors import VerificationError
from planner.frontends.resized.samples import share_of_micro_batch
from planner.ir import Role
from planner.kernels import NoKernelError
from planner.kernels.gradients import NoVjpError
from planner.kernels.shards import Array
from planner.lowering import Event, Redistribute, Staged, StageTransfer
from planner.lowering.program import StageInstruction
from planner.lowering.touched import Key
from planner.verify.calibrate import calibrate
from planner.verify.cells import Message, Part
from planner.verify.check import Verdict, verdict_of
from planner.verify.data import Drawn, random_tensors
from planner.verify.double import in_double
from planner.verify.findings import Report
from planner.verify.lifetimes import Departures, deaths
from planner.verify.totals import Totals
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
        with np.errstate(all="ignore"):  # what is no number is said by name
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


class PipelineProof:
    """One step of `pipeline` on values drawn by `seed`."""

    def __init__(self, pipeline: Staged, seed: int = 0, drawn: Drawn | None = None) -> None:
        self.pipeline, self.seed = pipeline, seed
        self.program = pipeline.program
        self.graph = in_double(self.program.graph)
        self.report = Report(failures=list(pipeline.defects))
        values = random_tensors(self.graph, seed, kept=drawn)
        self.first = Whole(self.graph, values, self.program.rules, self.program.active)
        self.share = share_of_micro_batch(self.graph, pipeline.micro_batches)
        self.wholes = {0: self.first}
        self.ended: Counter[int] = Counter()  # micro-batch → chunks that are through with it
        self.cells: dict[tuple[int, int], Part] = {}  # by chunk and micro-batch
        self.links: dict[StageTransfer, deque[Message]] = {}
        self.totals = Totals(pipeline, self.graph)
        self.chunks = [Part(self.program, self.first, seed) for _ in pipeline.chunks]
        self.deaths = [deaths(self.program, chunk) for chunk in pipeline.chunks]
        self.departures = Departures(pipeline)

    def run(self, progress: Callable[[int, int], None] | None = None) -> Report:
        if self.report.failures:
            return self.report
        calibrate(self.first)
        self.first.begin_backward(self.share)
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

    def _waits_for(self, event: Event) -> list[StageTransfer]:
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
        once = sum(own._work(i) for i in self.pipeline.chunks[event.chunk].instructions(event.phase))
        return once * (1 if event.phase in ("begin", "end") else self.pipeline.copies)

    # Events

    def _run(self, event: Event) -> None:
        chunk = event.chunk
        once = event.phase in ("begin", "end")
        numbers = [] if once else self.pipeline.micro_batches_of(event)
        parts = [self.chunks[chunk]] if once else [self._cell(chunk, n) for n in numbers]
        together = self.chunks[chunk] if once else Part(self.program, self.first, self.seed)
        program = self.pipeline.chunks[chunk]
        for part in parts:
            for transfer in program.received(event.phase):
                self._receive(part, transfer, event)
        gone = self.deaths[chunk].get(event.phase, {})
        for n, instruction in enumerate(program.instructions(event.phase)):
            self._step(instruction, parts, together)
            for part in parts:
                for key in gone.get(n, ()):
                    part.devices.values.pop(key, None)
                for name in () if once else self.departures.after(chunk, event.phase, n, part.micro_batch):
                    part.whole.forget(name)
        for part in parts:
            for transfer in program.sent(event.phase):
                self._send(part, transfer, event)
        if not once:
            self._keep(together, event)
        if event.phase == self.pipeline.last:
            for number in numbers:
                self._close(chunk, number)

    def _step(self, instruction: StageInstruction, parts: Sequence[Part], together: Part) -> None:
        """One instruction of the micro-batches that pass together.  What concerns parameters alone happens once."""
        shared = isinstance(instruction, Redistribute) and self.graph.tensors[instruction.tensor].role is Role.PARAMETER
        if not shared or parts[0] is together:
            for part in parts:
                part.step(instruction)
            return
        assert isinstance(instruction, Redistribute)
        if not instruction.gradient:
            parts[0].step(instruction)
            key = instruction.tensor, instruction.target
            for part in parts[1:]:
                part.devices.values[key] = parts[0].devices.values[key]
            return
        key = instruction.tensor, instruction.source
        for part in parts:
            if key in part.devices.gradients:
                self._give(part, key, together)
        together.step(instruction)

    def _give(self, part: Part, key: Key, to: Part) -> None:
        part.give(key, to, tuple(self.totals.name(part.micro_batch, c) for c in part.added[key]))

    def _keep(self, together: Part, event: Event) -> None:
        """Adds what a pass has scattered to the chunk's gradients."""
        for key in list(together.devices.gradients):
            together.give(key, self.chunks[event.chunk], together.added[key])
        where = f"pass {event.micro_batch}" if self.pipeline.copies > 1 else f"micro-batch {event.micro_batch}"
        self.report.merge(together.report, f"{self._name(event.chunk)}, {where}: ")

    def _cell(self, chunk: int, micro_batch: int) -> Part:
        """The values of a micro-batch in a chunk: the chunk's parameters, and what comes."""
        if (chunk, micro_batch) not in self.cells:
            cell = Part(self.program, self._whole(micro_batch), self.seed, micro_batch, responses=micro_batch == 0)
            cell.devices.values.update(self.chunks[chunk].devices.values)
            self.cells[chunk, micro_batch] = cell
        return self.cells[chunk, micro_batch]

    def _whole(self, micro_batch: int) -> Whole:
        """The whole model on the micro-batch's data, with the parameters of all."""
        if micro_batch not in self.wholes:
            values = {t: self.first.value(t) for t in self.first.sources} | self.inputs(micro_batch)
            active = self.program.active
            whole = Whole(self.graph, values, self.program.rules, active, witnesses=False)
            whole.begin_backward(self.share)
            self.wholes[micro_batch] = whole
        return self.wholes[micro_batch]

    def inputs(self, micro_batch: int) -> dict[str, Array]:
        """The data of a micro-batch."""
        drawn = [t for t in self.first.drawn if self.graph.tensors[t].role is Role.INPUT]
        if not micro_batch:
            return {t: self.first.value(t) for t in drawn}
        return random_tensors(self.graph, self.seed + micro_batch, only=drawn)

    def _send(self, proof: Part, transfer: StageTransfer, event: Event) -> None:
        key = transfer.tensor, transfer.layout
        link = self.links.setdefault(transfer, deque())
        if not transfer.gradient:
            link.append(Message(proof.micro_batch, proof.devices.values.get(key)))
            return
        shards = proof.devices.gradients.pop(key, None)
        whole, added = proof.sums.pop(key, None), proof.added.pop(key, ())
        link.append(Message(proof.micro_batch, shards, whole, added))

    def _receive(self, proof: Part, transfer: StageTransfer, event: Event) -> None:
        message = self.links[transfer].popleft()
        what = f"{transfer.what} from {self._name(transfer.source)}"
        if message.micro_batch != proof.micro_batch:
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
        self.ended[micro_batch] += 1
        if self.ended[micro_batch] == len(self.chunks):
            self.departures.close(micro_batch)
            del self.wholes[micro_batch]

    def _accumulate(self, cell: Part, chunk: int, micro_batch: int) -> None:
        """Adds gradients of parameters, as the passes have left them, to the chunk's."""
        for key in [k for k in cell.devices.gradients if self.graph.tensors[k[0]].role is Role.PARAMETER]:
            self._give(cell, key, self.chunks[chunk])

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
