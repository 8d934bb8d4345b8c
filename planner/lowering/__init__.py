"""Plan -> SPMD program: local operators plus explicit collectives."""

from planner.lowering.liveness import Liveness, liveness
from planner.lowering.lower import lower
from planner.lowering.program import Convert, Instruction, Load, Program, Run, Seed
from planner.lowering.staged import Event, Staged, StageProgram, Transfer, passes, staged

__all__ = [
    "Convert",
    "Event",
    "Instruction",
    "Liveness",
    "Load",
    "Program",
    "Run",
    "Seed",
    "StageProgram",
    "Staged",
    "Transfer",
    "liveness",
    "lower",
    "passes",
    "staged",
]
