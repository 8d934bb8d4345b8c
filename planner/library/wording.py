"""Errors of functions in the words of Python."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from planner.errors import PlannerError
from planner.requests.wording import in_keywords

__all__ = ["in_keywords", "worded"]

P = ParamSpec("P")
R = TypeVar("R")


def worded(function: Callable[P, R]) -> Callable[P, R]:
    """The errors of a function in these words; everything else of them stays as it is."""

    @wraps(function)
    def reworded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except PlannerError as e:
            if e.args and isinstance(e.args[0], str):
                e.args = (in_keywords(e.args[0]), *e.args[1:])
            raise

    return reworded
