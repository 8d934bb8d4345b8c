"""Uniform configurations on clusters of several kinds of devices.

A pipeline's first stages stand on devices of one kind, the next ones on another.  All stages have equally many devices,
and the same DP, TP and CP; how many layers a stage holds goes by what its devices are worth (`cut`)."""

from planner.uniform.mixed.cluster import Cluster, Kind
from planner.uniform.mixed.compare import Compared, alone, assumed, even_layers
from planner.uniform.mixed.cut import layers_cut
from planner.uniform.mixed.search import FoundMixed, Mixed, best_mixed, changed

__all__ = [
    "Cluster",
    "Compared",
    "FoundMixed",
    "Kind",
    "Mixed",
    "alone",
    "assumed",
    "best_mixed",
    "changed",
    "even_layers",
    "layers_cut",
]
