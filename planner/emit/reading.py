"""What a reader of another system's strategy gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from planner.errors import InputError
from planner.ir import DeviceMesh, Graph
from planner.planning.constraints import Constraints
from planner.targets import Target

__all__ = ["MOST_DEVICES", "Reading", "check_devices", "shapes_of"]

MOST_DEVICES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Reading:
    """`constraints`: what the file says, as pins; `unused`: what of it became no pin, in words; `target`: the kind of
    plan it is, as `planner search --target` has it.  `stages`: parameter → pipeline stage, of those that one stage
    alone holds; empty where there is no pipeline; `mesh` is that of a stage.  `micro_batches`: where the file says how
    many."""

    constraints: Constraints
    mesh: DeviceMesh
    unused: tuple[str, ...] = ()
    target: Target = "any"
    stages: Mapping[str, int] = field(default_factory=dict)
    micro_batches: int | None = None


def check_devices(source: str, devices: int) -> None:
    """InputError where a file is for more devices than are planned for."""
    if devices > MOST_DEVICES:
        raise InputError(f"{source}: is for {devices:,} devices; at most {MOST_DEVICES:,} are planned for")


def shapes_of(graph: Graph) -> dict[str, tuple[int, ...]]:
    """Parameters that something reads, with their shapes, for `NameRules.apply`."""
    return {t.name: t.shape or () for t in graph.parameters if t.name in graph.consumers}
