"""A known configuration, from its text to the pins of a plan.

`parse` reads `megatron:tp=8,…`; `samples`, `tensor`, `context` and `expert` say what a mesh axis of each kind does to
an operator, `layout` lays the whole graph out along one axis by these rules, `pins` makes constraints of all axes.
"""

from planner.planning.schemes.parse import KEYS, SCHEMES, in_words, parse_strategy, spelled, written

__all__ = ["KEYS", "SCHEMES", "in_words", "parse_strategy", "spelled", "written"]
