"""What an execution beside the whole model showed, by object."""

from __future__ import annotations

from dataclasses import dataclass, field

from planner.verify.compare import Difference
from planner.verify.whole import Whole

__all__ = ["Report"]


@dataclass
class Report:
    """What was compared.  `failures` are wrong; `unproved` could not be shown right or wrong; both name the object."""

    failures: list[str] = field(default_factory=list)
    unproved: list[str] = field(default_factory=list)
    max_error: float = 0.0
    worst: str = ""
    values: int = 0
    redistributions: int = 0
    gradients: int = 0
    parameters: int = 0
    witnessed: int = 0
    unwitnessed: list[str] = field(default_factory=list)

    def add(self, what: str, found: Difference) -> None:
        if found.unproved:
            self.unproved.append(f"{what}: {found.unproved}")
        elif found.reason:
            self.failures.append(f"{what}: {found.reason}")
        if found.error > self.max_error:
            self.max_error, self.worst = found.error, what

    def hear(self, whole: Whole) -> None:
        """What finite differences said of the whole model's gradients."""
        self.witnessed, self.unwitnessed = whole.witnessed, list(whole.unwitnessed)

    def merge(self, part: Report, where: str) -> None:
        """Adds what was compared in a part of the same execution; `where` that is stands before what is wrong there."""
        self.failures += [where + f for f in part.failures]
        self.unproved += part.unproved
        if part.max_error > self.max_error:
            self.max_error, self.worst = part.max_error, where + part.worst
        self.values += part.values
        self.redistributions += part.redistributions
        self.gradients += part.gradients
        self.parameters += part.parameters
