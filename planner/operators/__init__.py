"""Operators, one family a module or a folder; `planner.plugins` says what a folder holds and when it is imported."""
