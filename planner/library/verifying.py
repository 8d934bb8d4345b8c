"""`planner.Verification`: the verdict of `planner.verify` on a plan."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any, Generic, TypeVar

__all__ = ["Verification"]

P = TypeVar("P")


@dataclass(frozen=True, eq=False, repr=False)
class Verification(Generic[P]):
    """The verdict on a plan; true where it is `ok`.  `print` shows all of it.

    plan      with its record of what was executed; that is what to save
    document  what `planner verify --json` prints
    """

    plan: P
    document: dict[str, Any]

    @property
    def ok(self) -> bool:
        """Whether every field follows and every value that was executed agrees."""
        return bool(self.document["ok"])

    @property
    def verdict(self) -> str:
        """ok, failed or no verdict."""
        return str(self.document["verdict"])

    @property
    def max_error(self) -> float:
        """The largest difference from the whole model, relative, in double precision."""
        return float(self.document["max_error"])

    @property
    def checked(self) -> list[str]:
        """What was executed: forward, gradients."""
        return list(self.document["checked"])

    @property
    def text(self) -> str:
        """As `planner verify` prints it."""
        from planner.requests.verification_text import verification_text

        return verification_text(self.document)

    def to_dict(self) -> dict[str, Any]:
        """As the command prints it with --json."""
        return dict(self.document)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<Verification {self.text.partition(chr(10))[0]}>"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.text)}</pre>"
