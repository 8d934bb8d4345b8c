"""Cheapest sequences of collectives that turn one layout of a tensor into another."""

from planner.redistribute.lattice import Lattice, lattice_of
from planner.redistribute.paths import Prices, Redistributions
from planner.redistribute.steps import Parts, Step, StepKind, folded, permute_sources

__all__ = [
    "Lattice",
    "Parts",
    "Prices",
    "Redistributions",
    "Step",
    "StepKind",
    "folded",
    "lattice_of",
    "permute_sources",
]
