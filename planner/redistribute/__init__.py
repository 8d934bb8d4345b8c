"""Cheapest sequences of collectives that turn one layout of a tensor into another."""

from planner.redistribute.lattice import Lattice, lattice_of
from planner.redistribute.paths import Prices, Redistributions
from planner.redistribute.scattered import scattered
from planner.redistribute.steps import (
    Parts,
    RedistributionStep,
    StepKind,
    folded,
    parts_of_both,
    permute_sources,
    reduction_of_both,
)

__all__ = [
    "Lattice",
    "Parts",
    "Prices",
    "RedistributionStep",
    "Redistributions",
    "StepKind",
    "folded",
    "lattice_of",
    "parts_of_both",
    "permute_sources",
    "reduction_of_both",
    "scattered",
]
