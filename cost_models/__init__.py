"""Prices of computing, communicating and storing: plain numbers in, seconds and bytes out.

Nothing here knows of graphs, tensors or layouts, and nothing here imports `planner` or `api`.

- `profile`: a machine as one TOML file of numbers, each with its unit and source
- `device`: seconds an operator takes on one device
- `link`: seconds a collective takes on a group of devices
- `memory`: bytes a parameter costs, seconds its optimizer update takes
"""

from __future__ import annotations

from .device import DTYPES, KINDS, OperatorKind, compute_seconds, matmul_utilisation
from .link import COLLECTIVES, Collective, CollectiveModel, GroupShape, group_on_mesh
from .memory import (
    OPTIMIZERS,
    PRECISIONS,
    ParameterBytes,
    optimizer_seconds,
    parameter_bytes,
    usable_memory_bytes,
)
from .profile import (
    HardwareProfile,
    ProfileError,
    UnknownProfileError,
    alpha_beta_profile,
    load_profile,
    profile_names,
)

__all__ = [
    "COLLECTIVES",
    "DTYPES",
    "KINDS",
    "OPTIMIZERS",
    "PRECISIONS",
    "Collective",
    "CollectiveModel",
    "GroupShape",
    "HardwareProfile",
    "OperatorKind",
    "ParameterBytes",
    "ProfileError",
    "UnknownProfileError",
    "alpha_beta_profile",
    "compute_seconds",
    "group_on_mesh",
    "load_profile",
    "matmul_utilisation",
    "optimizer_seconds",
    "parameter_bytes",
    "profile_names",
    "usable_memory_bytes",
]
