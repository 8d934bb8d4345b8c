"""Cheapest sequences of collectives that turn one layout of a tensor into another."""

from planner.redistribute.lattice import Lattice, lattice_of
from planner.redistribute.paths import Prices, Redistributions
from planner.redistribute.steps import Step, StepKind, permute_sources

__all__ = ["Lattice", "Prices", "Redistributions", "Step", "StepKind", "lattice_of", "permute_sources"]
