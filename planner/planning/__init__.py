"""The outer search: logical meshes compared, the best plan described, timed and written down."""

from planner.planning.describe import describe
from planner.planning.document import PlanDocument
from planner.planning.plan_file import plan_text, read_plan, write_plan
from planner.planning.planner import Candidate, Planned, Request, make_plan
from planner.planning.programs import program_of
from planner.planning.recall import Recall

__all__ = [
    "Candidate",
    "PlanDocument",
    "Planned",
    "Recall",
    "Request",
    "describe",
    "make_plan",
    "plan_text",
    "program_of",
    "read_plan",
    "write_plan",
]
