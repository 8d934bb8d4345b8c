"""Plan -> SPMD program: local operators plus explicit collectives."""

from planner.lowering.lower import lower
from planner.lowering.program import Convert, Instruction, Load, Program, Run, Seed

__all__ = ["Convert", "Instruction", "Load", "Program", "Run", "Seed", "lower"]
