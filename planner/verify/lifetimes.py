"""When values of a micro-batch are read for the last time: on the devices of a chunk, and in the whole model."""

from __future__ import annotations

from collections.abc import Iterator

from planner.ir import Layout
from planner.lowering import ChunkProgram, Convert, Instruction, Load, Program, Run, Seed, Staged
from planner.lowering.staged import Phase
from planner.verify.execute import Key

__all__ = ["deaths", "departures"]

_PASSES: tuple[Phase, ...] = ("forward", "backward")


def deaths(program: Program, chunk: ChunkProgram) -> dict[Phase, dict[int, list[Key]]]:
    """Phase → instruction → values that nothing reads after it, or not before they are made again: what is recomputed
    is not there in between."""
    out: dict[Phase, dict[int, list[Key]]] = {p: {} for p in _PASSES}
    alive: set[Key] = set()
    for phase in reversed(_PASSES):
        instructions = chunk.instructions(phase)
        alive.update((t.tensor, t.layout) for t in chunk.sent(phase) if not t.gradient)
        for n in range(len(instructions) - 1, -1, -1):
            made, read = set(_writes(program, instructions[n])), set(_reads(program, instructions[n]))
            out[phase][n] = sorted((made | read) - alive, key=str)
            alive = (alive - made) | read
    return out


def departures(pipeline: Staged) -> dict[tuple[int, Phase], dict[int, list[str]]]:
    """(Chunk, phase) → instruction → tensors that no chunk reads after it in the same micro-batch, which runs forward
    through all chunks and backward through all."""
    count = len(pipeline.chunks)
    order: list[tuple[int, Phase]] = [(k, "forward") for k in range(count)]
    order += [(k, "backward") for k in reversed(range(count))]
    last: dict[str, tuple[int, Phase, int]] = {}
    for k, phase in order:
        for n, instruction in enumerate(pipeline.chunks[k].instructions(phase)):
            for name in _tensors(pipeline.program, instruction):
                last[name] = k, phase, n
    out: dict[tuple[int, Phase], dict[int, list[str]]] = {}
    for name, (k, phase, n) in last.items():
        out.setdefault((k, phase), {}).setdefault(n, []).append(name)
    return out


def _key(program: Program, name: str, layout: Layout | None) -> Key:
    return name, Layout.replicated(program.graph.tensors[name].rank) if layout is None else layout


def _writes(program: Program, i: Instruction) -> Iterator[Key]:
    if isinstance(i, Load):
        yield i.tensor, i.layout
    elif isinstance(i, Convert) and not i.gradient:
        yield i.tensor, i.target
    elif isinstance(i, Run) and not i.backward:
        op, strategy = program.graph.op(i.op), program.strategies[i.op]
        yield from (_key(program, n, x) for n, x in zip(op.outputs, strategy.results, strict=True) if n)


def _reads(program: Program, i: Instruction) -> Iterator[Key]:
    if isinstance(i, Convert) and not i.gradient:
        yield i.tensor, i.source
    elif isinstance(i, Run):
        op, strategy = program.graph.op(i.op), program.strategies[i.op]
        yield from (_key(program, n, x) for n, x in zip(op.inputs, strategy.operands, strict=True) if n)
        if i.backward:
            yield from (_key(program, n, x) for n, x in zip(op.outputs, strategy.results, strict=True) if n)


def _tensors(program: Program, i: Instruction) -> Iterator[str]:
    if isinstance(i, Run):
        op = program.graph.op(i.op)
        yield from (t for t in (*op.inputs, *op.outputs) if t)
    elif not isinstance(i, Seed):
        yield i.tensor
