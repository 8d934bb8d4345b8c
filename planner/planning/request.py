"""What to plan for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from planner.clock import Configuration
from planner.cost_models import HardwareProfile
from planner.ir import DeviceMesh
from planner.planning.constraints import Constraints
from planner.pricing import Settings
from planner.search.solvers import SolverName

__all__ = ["STRATEGY", "Request", "source_of"]

STRATEGY: Final = "--strategy"  # how the name of pins begins that are of a known configuration


def source_of(strategy: str, space: str | None) -> str:
    """The name of these pins, as the command line has it; with `space` operators, these are searched inside of the
    configuration."""
    return f"{STRATEGY} {strategy}" + (" --space operators" if space == "operators" else "")


@dataclass(frozen=True, slots=True)
class Request:
    """What to plan for.  `meshes` None: every one- and two-dimensional mesh; `memory_limit` in bytes per device,
    None: what the profile leaves usable; `time_limit` in seconds for the whole search, None: none; `recompute`
    auto: of the blocks of equal layers, on meshes where nothing fits without; `constraints`: what the user pins;
    `top_k`: how many meshes are searched to the end; `execution`: the known configuration that the constraints are of,
    which says how the plan is run, in so many micro-batches and stages; `known_step_s`: of a plan that is known, and
    that others have to be faster than."""

    devices: int
    profile: HardwareProfile
    settings: Settings
    meshes: tuple[DeviceMesh, ...] | None = None
    memory_limit: int | None = None
    solver: SolverName = "auto"
    time_limit: float | None = None
    recompute: Literal["auto", "none", "blocks"] = "auto"
    constraints: Constraints | None = None
    top_k: int = 1
    execution: Configuration | None = None
    known_step_s: float | None = None

    @property
    def run_as(self) -> Configuration | None:
        """The known configuration that says how a step is run and what is held; None in inference, where it says
        nothing of the kind."""
        return self.execution if self.settings.training else None

    @property
    def configured(self) -> Configuration | None:
        """The known configuration, where the constraints pin all of it, in training: what is held is then not for the
        search to change."""
        pins = () if self.constraints is None else self.constraints.operators
        pinned = any(pin.where.startswith(STRATEGY) for pin in pins)
        return self.execution if pinned and self.settings.training else None
