"""Proof of a plan."""

from __future__ import annotations

import os
from dataclasses import dataclass
from html import escape
from typing import Any

from planner.library.explaining import known_model
from planner.library.model import Model, Proto
from planner.library.plan import Plan, plan_of
from planner.library.wording import worded

__all__ = ["Verification", "verify"]


@dataclass(frozen=True, eq=False, repr=False)
class Verification:
    """The verdict on a plan; true where it is `ok`.  `print` shows all of it.

    plan      with its record of what was executed; that is what to save
    document  what `planner verify --json` prints
    """

    plan: Plan
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


@worded
def verify(
    plan: Plan | str | os.PathLike[str],
    model: Model | str | os.PathLike[str] | bytes | Proto | None = None,
    *,
    seed: int = 0,
    whole: bool = False,
    progress: bool | None = None,
) -> Verification:
    """Executes a plan on virtual devices and compares it with the whole model, as `planner verify` does.

    Args:
        plan: of `planner.search`, or a plan.json, or its folder.
        model: the plan's own unless given.
        seed: of the random weights and inputs.
        whole: the whole graph is executed, and the file, at any cost.
        progress: True prints lines to standard error.

    Returns:
        The verdict, with the plan that holds its record.

    Raises:
        InputError: the model is not known or another one.
        VerificationError: the process that executed it died.
    """
    from contextlib import nullcontext
    from dataclasses import replace

    from planner.planning import plan_text
    from planner.requests.verification import recorded_in, said_by_children, verification_document, verified

    found = plan_of(plan, model)
    source = known_model(found).source
    with said_by_children() if progress else nullcontext(_nobody) as say:
        verdict = verified(found.document, source, seed=seed, whole=whole, say=say)
    record = recorded_in(found.document, verdict, seed)
    proved = found if record is None else replace(found, text=plan_text(record))
    return Verification(proved, verification_document(verdict))


def _nobody(line: str) -> None:
    pass
