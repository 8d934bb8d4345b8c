"""Faults of how a step is run: gathers, scatters, what is run again, copies, what waits elsewhere, shares of a step.

Each kind has the levers of a configuration in which it can happen, and makes wrong pipelines, or wrong proofs, of a
right one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from planner.ir import Layout, Role
from planner.kernels.shards import Shards
from planner.lowering import Event, Free, Host, Load, Redistribute, Run, Seed, Staged
from planner.lowering.program import StageInstruction
from planner.lowering.staged import Phase
from planner.redistribute import StepKind
from planner.verify.cells import Part
from planner.verify.pipeline import PipelineProof

__all__ = ["KINDS", "Kind"]

Proofs = Iterator[Callable[[], PipelineProof]]
PASSES: Final[tuple[Phase, ...]] = ("forward", "backward", "weights")


@dataclass(frozen=True)
class Kind:
    """`levers`: keys of a configuration, by default a plain one; `of`: wrong proofs of its pipeline."""

    name: str
    levers: dict[str, str]
    of: Callable[[Staged], Proofs]


KINDS: Final[dict[str, Kind]] = {}


def kind(**levers: str) -> Callable[[Callable[[Staged], Proofs]], Callable[[Staged], Proofs]]:
    def add(function: Callable[[Staged], Proofs]) -> Callable[[Staged], Proofs]:
        name = function.__name__.replace("_", " ")
        KINDS[name] = Kind(name, levers, function)
        return function

    return add


Change = Callable[[StageInstruction], "StageInstruction | None"]


def each(pipeline: Staged, phases: tuple[Phase, ...], change: Change) -> Proofs:
    """One instruction is another, or none where the change is `None`; it stays where the change is itself."""
    for k, chunk in enumerate(pipeline.chunks):
        for phase in phases:
            listed = chunk.instructions(phase)
            for n, i in enumerate(listed):
                new = change(i)
                if new is not i:
                    other = (*listed[:n], *(() if new is None else (new,)), *listed[n + 1 :])
                    chunks = list(pipeline.chunks)
                    chunks[k] = replace(chunk, runs={**chunk.runs, phase: other})
                    wrong = replace(pipeline, chunks=tuple(chunks))
                    yield partial(PipelineProof, wrong)


def _of_parameter(pipeline: Staged, i: StageInstruction, *, gradient: bool) -> bool:
    role = pipeline.program.graph.tensors[i.tensor].role if isinstance(i, Redistribute) else None
    return role is Role.PARAMETER and isinstance(i, Redistribute) and i.gradient == gradient


def _elsewhere(pipeline: Staged, i: StageInstruction) -> StageInstruction:
    """The same collective over the ranks of another axis of the same size."""
    mesh = pipeline.program.mesh
    if not isinstance(i, Redistribute):
        return i
    for n, step in enumerate(i.steps):
        others = [a for a in mesh.names if a not in step.axes and mesh.sizes[a] == mesh.size(step.axes)]
        if others and step.kind in (StepKind.ALL_GATHER, StepKind.REDUCE_SCATTER, StepKind.ALL_REDUCE):
            axis = others[0]
            partial = tuple((axis if a in step.axes else a, r) for a, r in step.source.partial)
            wrong = replace(step, axes=(axis,), source=Layout(step.source.dims, partial, step.source.parts))
            return replace(i, steps=(*i.steps[:n], wrong, *i.steps[n + 1 :]))
    return i


# Parameters and their gradients


@kind(zero="3", tp="2", sp="true")
def gather_left_out(pipeline: Staged) -> Proofs:
    return each(pipeline, PASSES, lambda i: None if _of_parameter(pipeline, i, gradient=False) else i)


@kind(zero="1")
def gather_at_the_beginning_left_out(pipeline: Staged) -> Proofs:
    return each(pipeline, ("begin",), lambda i: None if _of_parameter(pipeline, i, gradient=False) else i)


@kind(zero="3", tp="2", sp="true")
def gather_over_other_ranks(pipeline: Staged) -> Proofs:
    return each(
        pipeline, PASSES, lambda i: _elsewhere(pipeline, i) if _of_parameter(pipeline, i, gradient=False) else i
    )


@kind(zero="3", dp="4", shard="2")
def shards_of_the_wrong_group(pipeline: Staged) -> Proofs:
    """Parameters lie over the ranks that should hold copies of them."""

    def change(i: StageInstruction) -> StageInstruction:
        if not isinstance(i, Load) or not any(i.layout.dims):
            return i
        other = {"x": "y", "y": "x"}
        return replace(i, layout=Layout(tuple(tuple(other.get(a, a) for a in d) for d in i.layout.dims)))

    return each(pipeline, ("begin",), change)


@kind(zero="2", tp="2", sp="true")
def scatter_left_out(pipeline: Staged) -> Proofs:
    return each(pipeline, PASSES, lambda i: None if _of_parameter(pipeline, i, gradient=True) else i)


@kind(zero="2", tp="2", sp="true")
def scatter_over_other_ranks(pipeline: Staged) -> Proofs:
    return each(pipeline, PASSES, lambda i: _elsewhere(pipeline, i) if _of_parameter(pipeline, i, gradient=True) else i)


@kind(zero="3", dp="4", shard="2")
def sum_over_replicas_left_out(pipeline: Staged) -> Proofs:
    return each(pipeline, ("end",), lambda i: None if _of_parameter(pipeline, i, gradient=True) else i)


# Micro-batches


@kind()
def share_of_another_number_of_micro_batches(pipeline: Staged) -> Proofs:
    def change(i: StageInstruction) -> StageInstruction:
        return replace(i, weight=1 / (pipeline.micro_batches + 1)) if isinstance(i, Seed) else i

    return each(pipeline, ("backward",), change)


@kind(copies="2")
def share_of_the_number_of_passes(pipeline: Staged) -> Proofs:
    def change(i: StageInstruction) -> StageInstruction:
        return replace(i, weight=i.weight * pipeline.copies) if isinstance(i, Seed) else i

    return each(pipeline, ("backward",), change)


def _events(pipeline: Staged, change: Callable[[tuple[Event, ...], Event], tuple[Event, ...]]) -> Proofs:
    """Each pass for gradients of weights makes another order of its stage."""
    stages = pipeline.passes.stages
    for s, events in enumerate(stages):
        for event in (e for e in events if e.phase == "weights"):
            other = (*stages[:s], change(events, event), *stages[s + 1 :])
            wrong = replace(pipeline, passes=replace(pipeline.passes, stages=other))
            yield partial(PipelineProof, wrong)


@kind(schedule="zb-h1")
def weights_of_a_micro_batch_left_out(pipeline: Staged) -> Proofs:
    return _events(pipeline, lambda events, event: tuple(e for e in events if e != event))


@kind(schedule="zb-v", vpp="2")
def weights_before_values(pipeline: Staged) -> Proofs:
    def early(events: tuple[Event, ...], event: Event) -> tuple[Event, ...]:
        at = events.index(replace(event, phase="backward"))
        return (*events[:at], event, *(e for e in events[at:] if e != event))

    return _events(pipeline, early)


@kind(schedule="zb-h1")
def gradients_of_weights_left_out(pipeline: Staged) -> Proofs:
    return each(pipeline, ("weights",), lambda i: None if isinstance(i, Run) and i.backward else i)


# Stages and tensors


@kind(tp="2", sp="true", dp="2")
def activations_over_other_ranks(pipeline: Staged) -> Proofs:
    def change(i: StageInstruction) -> StageInstruction:
        moves = isinstance(i, Redistribute) and pipeline.program.graph.tensors[i.tensor].role is Role.ACTIVATION
        return _elsewhere(pipeline, i) if moves else i

    return each(pipeline, PASSES, change)


# What is made again, or waits


def _again(pipeline: Staged) -> Proofs:
    """Of what is let go before; what is made again beside that, nothing reads."""
    listed = [i for chunk in pipeline.chunks for i in chunk.instructions("forward")]
    freed = {i.tensor for i in listed if isinstance(i, Free)}

    def change(i: StageInstruction) -> StageInstruction | None:
        again = isinstance(i, Run) and not i.backward
        return None if again and freed.intersection(pipeline.program.graph.op(i.op).outputs) else i

    return each(pipeline, ("backward",), change)


for _name, _levers in {
    "core that is not run again": {"recompute": "selective"},
    "products that are not run again": {"recompute": "products"},
    "block that is not run again": {"recompute": "full"},
    "block of some that is not run again": {"recompute": "full", "recompute_blocks": "0.5"},
    "block of one stage that is not run again": {"recompute": "full", "recompute_layers": "1-0"},
}.items():
    KINDS[_name] = Kind(_name, _levers, _again)


@kind(offload="0.5")
def value_that_never_comes_back(pipeline: Staged) -> Proofs:
    return each(pipeline, PASSES, lambda i: None if isinstance(i, Host) and i.back else i)


@kind(offload="0.5")
def value_that_never_goes(pipeline: Staged) -> Proofs:
    return each(pipeline, PASSES, lambda i: None if isinstance(i, Host) and not i.back else i)


@kind(recompute="full")
def value_run_again_of_another_micro_batch(pipeline: Staged) -> Proofs:
    yield lambda: _stale(PipelineProof(pipeline))


def _stale(proof: PipelineProof) -> PipelineProof:
    made: dict[str, list[Shards | None]] = {}
    cell = proof._cell

    def watched(chunk: int, micro_batch: int) -> Part:
        part = cell(chunk, micro_batch)
        if not hasattr(part.devices, "seen"):
            forward, seen = part.devices.forward, set[str]()
            part.devices.seen = seen  # type: ignore[attr-defined]

            def run(op: Any) -> list[Shards | None]:
                found = forward(op)
                if op.name in seen and micro_batch == 1:
                    return made.get(op.name, found)
                seen.add(op.name)
                if micro_batch == 0:
                    made[op.name] = found
                return found

            part.devices.forward = run  # type: ignore[method-assign]
        return part

    proof._cell = watched  # type: ignore[method-assign]
    return proof


class _Crossed(PipelineProof):
    """One copy reads what another has made: of the `at`-th operator of each forward pass, its first result."""

    at = 0

    def _step(self, instruction: StageInstruction, parts: Any, together: Part) -> None:
        super()._step(instruction, parts, together)
        if isinstance(instruction, Run) and not instruction.backward and len(parts) > 1:
            name = self.graph.op(instruction.op).outputs[0]
            if self.graph.tensors[name].role is Role.ACTIVATION and name in self.program.active:
                for key in [k for k in parts[1].devices.values if k[0] == name]:
                    parts[1].devices.values[key] = parts[0].devices.values[key]


@kind(copies="2")
def copy_that_reads_the_other_ones_activation(pipeline: Staged) -> Proofs:
    yield lambda: _Crossed(pipeline)


class _Forgotten(PipelineProof):
    """Of micro-batches that pass together the last one's gradient is not added."""

    def _give(self, part: Part, key: Any, to: Part) -> None:
        if part.micro_batch % self.pipeline.copies == self.pipeline.copies - 1:
            del part.devices.gradients[key], part.sums[key], part.added[key]
        else:
            super()._give(part, key, to)


@kind(copies="2")
def gradient_of_one_copy_left_out(pipeline: Staged) -> Proofs:
    yield lambda: _Forgotten(pipeline)


@kind(zero="3", copies="2")
def gradient_of_one_copy_left_out_of_the_scatter(pipeline: Staged) -> Proofs:
    yield lambda: _Forgotten(pipeline)


class _Twice(PipelineProof):
    """The first micro-batch's gradients are added to the second one's, too."""

    def __init__(self, pipeline: Staged) -> None:
        super().__init__(pipeline)
        self.before: dict[Any, Any] = {}

    def _give(self, part: Part, key: Any, to: Part) -> None:
        kept = part.devices.gradients[key], part.sums[key]
        super()._give(part, key, to)
        if part.micro_batch == 0:
            self.before[key] = kept
        elif part.micro_batch == 1 and key in self.before:
            to._contribute(key, *self.before.pop(key), ())


@kind()
def gradient_of_one_micro_batch_twice(pipeline: Staged) -> Proofs:
    yield lambda: _Twice(pipeline)


@kind(offload="0.5")
def value_of_another_micro_batch_comes_back(pipeline: Staged) -> Proofs:
    yield lambda: _Swapped(pipeline)


class _Swapped(PipelineProof):
    """What comes back from the host's memory is what micro-batch 0 put there."""

    def __init__(self, pipeline: Staged) -> None:
        super().__init__(pipeline)
        self.put: dict[Any, Any] = {}

    def _step(self, instruction: StageInstruction, parts: Any, together: Part) -> None:
        if isinstance(instruction, Host) and instruction.back:
            key = instruction.tensor, instruction.layout
            for part in parts:
                part.host[key] = self.put.setdefault(key, part.host[key])
        super()._step(instruction, parts, together)
