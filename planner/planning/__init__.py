"""The outer search: logical meshes compared, the best plan described, timed and written down."""

from planner.planning.describe import describe, program_of
from planner.planning.document import PlanDocument, read_plan, write_plan
from planner.planning.planner import Candidate, Planned, Request, make_plan

__all__ = [
    "Candidate",
    "PlanDocument",
    "Planned",
    "Request",
    "describe",
    "make_plan",
    "program_of",
    "read_plan",
    "write_plan",
]
