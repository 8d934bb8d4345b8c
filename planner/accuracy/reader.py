"""Checked access to one row of published measurements."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.errors import InputError

__all__ = ["RowReader", "Unusable"]


class Unusable(Exception):
    """A row is well-formed and cannot be predicted; the message says why."""


@dataclass(frozen=True, slots=True)
class RowReader:
    """Checked access to a row's fields; InputError names file, row, field, what was expected and what was found."""

    path: Path
    values: Mapping[str, Any]
    row: str

    def wrong(self, name: str, expected: str) -> InputError:
        found = repr(self.values[name])[:80] if name in self.values else "nothing"
        return InputError(f"{self.path}: row {self.row}: {name}: expected {expected}, found {found}")

    def text(self, name: str, default: str | None = None) -> str:
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or not value:
            raise self.wrong(name, "a text")
        return value

    def count(self, name: str, *, least: int = 1) -> int | None:
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**40:
            raise self.wrong(name, f"an integer of at least {least}, or null")
        return value

    def needed(self, name: str) -> int:
        value = self.count(name)
        if value is None:
            raise Unusable(f"{name} is not given")
        return value

    def measured(self, *names: str) -> float | None:
        """The first of these figures that was measured."""
        table = self.values.get("measured")
        if not isinstance(table, dict):
            raise self.wrong("measured", "an object of figures")
        for name in names:
            value = table.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise InputError(
                    f"{self.path}: row {self.row}: measured.{name}: expected a positive number, found {value!r}"
                )
            return float(value)
        return None
