"""When values of a micro-batch are read for the last time: on the devices of a chunk, and in the whole model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from planner.lowering import ChunkProgram, Program, Run, Seed, Staged
from planner.lowering.program import StageInstruction
from planner.lowering.staged import Phase
from planner.lowering.touched import Key, reads, writes

__all__ = ["Departures", "deaths"]

_PASSES: tuple[Phase, ...] = ("forward", "backward", "weights")


def deaths(program: Program, chunk: ChunkProgram) -> dict[Phase, dict[int, list[Key]]]:
    """Phase → instruction → values that nothing reads after it, or not before they are made again: what is recomputed
    is not there in between."""
    out: dict[Phase, dict[int, list[Key]]] = {p: {} for p in _PASSES}
    alive: set[Key] = set()
    for phase in reversed(_PASSES):
        instructions = chunk.instructions(phase)
        alive.update((t.tensor, t.layout) for t in chunk.sent(phase) if not t.gradient)
        for n in range(len(instructions) - 1, -1, -1):
            made, read = set(writes(program, instructions[n])), set(reads(program, instructions[n]))
            out[phase][n] = sorted((made | read) - alive, key=str)
            alive = (alive - made) | read
    return out


class Departures:
    """Which values of the whole model no chunk reads any more in a micro-batch.  Chunks end in any order."""

    def __init__(self, pipeline: Staged) -> None:
        self.last: dict[tuple[int, Phase], dict[int, list[str]]] = {}
        self.chunks: Counter[str] = Counter()  # that touch a tensor
        for k, chunk in enumerate(pipeline.chunks):
            last: dict[str, tuple[Phase, int]] = {}
            for phase in _PASSES:
                for n, instruction in enumerate(chunk.instructions(phase)):
                    last.update(dict.fromkeys(_tensors(pipeline.program, instruction), (phase, n)))
            for name, (phase, n) in last.items():
                self.last.setdefault((k, phase), {}).setdefault(n, []).append(name)
                self.chunks[name] += 1
        self._left: dict[int, Counter[str]] = {}  # micro-batch → chunks that still touch a tensor

    def after(self, chunk: int, phase: Phase, n: int, micro_batch: int) -> Iterator[str]:
        """Tensors that go behind instruction `n` of the phase."""
        left = self._left.setdefault(micro_batch, self.chunks.copy())
        for name in self.last.get((chunk, phase), {}).get(n, ()):
            left[name] -= 1
            if not left[name]:
                yield name

    def close(self, micro_batch: int) -> None:
        self._left.pop(micro_batch, None)


def _tensors(program: Program, i: StageInstruction) -> Iterator[str]:
    if isinstance(i, Run):
        op = program.graph.op(i.op)
        yield from (t for t in (*op.inputs, *op.outputs) if t)
    elif not isinstance(i, Seed):
        yield i.tensor
