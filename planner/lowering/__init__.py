"""Plan -> SPMD program: local operators plus explicit collectives."""

from planner.lowering.lower import lower
from planner.lowering.program import Free, Host, Instruction, Load, Program, Redistribute, Run, Seed
from planner.lowering.staged import ChunkProgram, Event, Passes, Staged, StageTransfer, passes, staged

__all__ = [
    "ChunkProgram",
    "Event",
    "Free",
    "Host",
    "Instruction",
    "Load",
    "Passes",
    "Program",
    "Redistribute",
    "Run",
    "Seed",
    "StageTransfer",
    "Staged",
    "lower",
    "passes",
    "staged",
]
