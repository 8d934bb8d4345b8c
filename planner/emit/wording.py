"""How names and values are told in messages and in generated Python."""

from __future__ import annotations

from collections.abc import Sequence
from pprint import pformat

__all__ = ["literal", "some"]


def some(names: Sequence[str]) -> str:
    """The first six, and how many more there are; `none` where there are none."""
    if not names:
        return "none"
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def literal(value: object) -> str:
    """A value of plain types as Python's source, entries in their order."""
    return pformat(value, width=116, sort_dicts=False)
