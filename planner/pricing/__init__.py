"""Graph x rules x mesh x profile -> Problem, and a choice back to layouts."""

from planner.pricing.assignment import Assignment, Redistribution, RedistributionPlan
from planner.pricing.build import PriceTables, price
from planner.pricing.cases import KnownRedistributions
from planner.pricing.machine import Machine, Settings
from planner.pricing.priced import PricedProblem
from planner.rules.bound import bind_rules
from planner.work.activity import active_tensors, gradient_sources

__all__ = [
    "Assignment",
    "KnownRedistributions",
    "Machine",
    "PriceTables",
    "PricedProblem",
    "Redistribution",
    "RedistributionPlan",
    "Settings",
    "active_tensors",
    "bind_rules",
    "gradient_sources",
    "price",
]
