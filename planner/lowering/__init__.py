"""Plan -> SPMD program: local operators plus explicit collectives."""

from planner.lowering.lower import lower
from planner.lowering.program import Convert, Free, Host, Instruction, Load, Program, Run, Seed
from planner.lowering.staged import ChunkProgram, Event, Passes, Staged, StageTransfer, passes, staged

__all__ = [
    "ChunkProgram",
    "Convert",
    "Event",
    "Free",
    "Host",
    "Instruction",
    "Load",
    "Passes",
    "Program",
    "Run",
    "Seed",
    "StageTransfer",
    "Staged",
    "lower",
    "passes",
    "staged",
]
