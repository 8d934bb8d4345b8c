"""Cheapest sequences of collectives that turn one layout of a tensor into another."""

from planner.redistribute.paths import Prices, Redistributions
from planner.redistribute.steps import Step, StepKind

__all__ = ["Prices", "Redistributions", "Step", "StepKind"]
