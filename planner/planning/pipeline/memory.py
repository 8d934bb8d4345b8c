"""What a device of each stage holds: the lifetimes of the stage's own part of the program.

A stage runs its operators; redistributions run where the tensor is made, of parameters, inputs and constants in every
stage that reads them.  A parameter that several stages read is held, with its state, by each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from planner.lowering import Convert, Instruction, Liveness, Program, Run, liveness
from planner.pricing import Settings

__all__ = ["stage_liveness", "stage_program"]


def stage_program(program: Program, stage_of: Mapping[str, int], stage: int) -> Program:
    """What the stage runs for one micro-batch; it reads what other stages send."""
    return replace(
        program, instructions=tuple(i for i in program.instructions if stage in _stages(program, stage_of, i))
    )


def stage_liveness(
    program: Program, settings: Settings, stage_of: Mapping[str, int], stages: int, micro_batches: int
) -> list[Liveness]:
    """By stage, of one micro-batch."""
    return [
        liveness(stage_program(program, stage_of, s), settings, accumulate=micro_batches > 1) for s in range(stages)
    ]


def _stages(program: Program, stage_of: Mapping[str, int], i: Instruction) -> set[int]:
    if isinstance(i, Run):
        return {stage_of[i.op]}
    made = program.graph.producers.get(i.tensor)
    if made is not None:
        return {stage_of[made.name]}
    only = i.reader if isinstance(i, Convert) else ""
    readers = program.graph.consumers.get(i.tensor, ())
    return {stage_of[op.name] for op, _ in readers if not only or op.name == only}
