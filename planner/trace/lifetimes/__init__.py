"""Lifetimes of everything that a program keeps in a device's memory beside parameters."""

from planner.trace.lifetimes.levels import CAUSES, Levels, UnitBytes, levels_of

__all__ = ["CAUSES", "Levels", "UnitBytes", "levels_of"]
