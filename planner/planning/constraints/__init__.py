"""What a user forces on a plan (docs/constraints.md): file → values → restrictions of a graph → masks on a mesh."""

from planner.planning.constraints.apply import Unfit, apply, contradiction, no_mesh_left
from planner.planning.constraints.file import SCHEMA, constraints_of_plan, parse_constraints, read_constraints
from planner.planning.constraints.fitting import memory_note
from planner.planning.constraints.inline import parse_pin
from planner.planning.constraints.masks import needed
from planner.planning.constraints.resolve import Pins, Restriction, resolve
from planner.planning.constraints.values import Constraints, JobDescription
from planner.planning.constraints.write import constraints_text

__all__ = [
    "SCHEMA",
    "Constraints",
    "JobDescription",
    "Pins",
    "Restriction",
    "Unfit",
    "apply",
    "constraints_of_plan",
    "constraints_text",
    "contradiction",
    "memory_note",
    "needed",
    "no_mesh_left",
    "parse_constraints",
    "parse_pin",
    "read_constraints",
    "resolve",
]
