"""Why a plan is as it is."""

from __future__ import annotations

import os
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from planner.errors import InputError
from planner.library.model import Model, Proto
from planner.library.plan import Plan, plan_of
from planner.library.progress import Listener, watch_of
from planner.library.wording import worded
from planner.requests.cancel import Cancellation

if TYPE_CHECKING:
    from planner.explain import ExplanationDocument

__all__ = ["Explanation", "explain"]


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """What limits a plan and what its choices cost; of an operator, its best alternatives.  `print` shows it."""

    document: ExplanationDocument

    @property
    def text(self) -> str:
        """As `planner explain` prints it."""
        from planner.explain import explanation_text

        return explanation_text(self.document)

    def to_dict(self) -> dict[str, Any]:
        """As data (docs/explain.md)."""
        return self.document.model_dump(mode="json", by_alias=True)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<Explanation: {self.text.partition(chr(10))[0]}>"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.text)}</pre>"


@worded
def explain(
    plan: Plan | str | os.PathLike[str],
    op: str | None = None,
    *,
    model: Model | str | os.PathLike[str] | bytes | Proto | None = None,
    alternatives: int = 3,
    hardware: str | None = None,
    progress: Listener | bool | None = None,
) -> Explanation:
    """Says why a plan is as it is, by the very search that found it, as `planner explain` does.

    Args:
        plan: of `planner.search`, or a plan.json, or its folder.
        op: an operator; None: the plan as a whole.
        model: the plan's own unless given.
        alternatives: how many of the operator's best.
        hardware: profile; None: the one planned for.
        progress: a function that hears of every search, or True for lines on standard error.

    Raises:
        InputError: the model is not known or another one, there is no such operator, or the plan does not say what was
            asked for.
    """
    from planner.requests.explanation import explained

    found = plan_of(plan, model)
    known = known_model(found)
    watch = watch_of(progress, Cancellation())
    document = explained(found.document, known.source, op, most=alternatives, hardware=hardware, say=watch.say)
    watch.raise_failure()
    return Explanation(document)


def known_model(plan: Plan) -> Model:
    """InputError where it is not known."""
    if plan.model is None:
        raise InputError(f"plan of {plan.name}: no model lies beside it; give the one that was planned as model=…")
    return plan.model
