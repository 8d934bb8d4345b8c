"""Why an alternative loses, in words: which parts of the step and of the objective grow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planner.report.words import time_text

__all__ = ["why"]

# Parts of the step by the clock, and of the objective.
STEP_PARTS = {
    "compute": "computing",
    "recompute": "recomputation",
    "collectives": "collectives that nothing hides",
    "host": "waiting for the host",
    "optimizer": "optimizer",
    "outside": "time outside the model",
    "offload": "copies of activations to the host that nothing hides",
    "bubble": "pipeline bubble",
    # of several micro-batches, as the clock calls them
    "tensor_collectives": "collectives of activations that nothing hides",
    "gathering": "gathering of weights that nothing hides",
    "scattering": "scattering of gradients that nothing hides",
    "exchange": "exchange of gradients and weights behind the last micro-batch",
    "update": "optimizer",
    "overhead": "time outside the model",
}
PARTS = {
    "compute_forward": "forward work",
    "compute_backward": "backward work",
    "inside_operators": "collectives inside operators",
    "activations": "activations moved",
    "activation_gradients": "their gradients moved",
    "parameters": "parameters gathered",
    "parameter_gradients": "gradients synchronised",
    "optimizer": "optimizer",
}
MOST_PARTS = 2
NEGLIGIBLE = 0.02  # of the largest difference of a part


def _listed(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def _changes(parts_s: Mapping[str, float], names: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """What there is more of, and what there is less of, the largest first."""
    size = max((abs(s) for s in parts_s.values()), default=0.0)
    more = sorted((p for p in parts_s if parts_s[p] > NEGLIGIBLE * size), key=lambda p: -parts_s[p])
    less = sorted((p for p in parts_s if parts_s[p] < -NEGLIGIBLE * size), key=lambda p: parts_s[p])
    return (
        [f"{time_text(parts_s[p])} more of {names.get(p, p)}" for p in more[:MOST_PARTS]],
        [f"{time_text(-parts_s[p])} less of {names.get(p, p)}" for p in less[:MOST_PARTS]],
    )


def why(difference_s: float, step_parts_s: Mapping[str, float], parts_s: Mapping[str, float]) -> str:
    """One sentence on what an alternative's step costs more, and what it saves; and on the parts of the objective that
    this comes from.  Arguments as in an `OutcomeDocument`."""
    gains, losses = _changes(step_parts_s, STEP_PARTS)
    if difference_s == 0 or not (gains or losses):
        said = "takes as long" if not gains else f"takes as long: {_listed(gains)}, made up by {_listed(losses)}"
    elif difference_s > 0:
        said = f"loses by {_listed(gains or losses)}" + (f", against {_listed(losses)}" if gains and losses else "")
    else:
        said = f"is better by {_listed(losses or gains)}" + (f", against {_listed(gains)}" if gains and losses else "")
    changes = [c for found in _changes(parts_s, PARTS) for c in found]
    return f"{said} (one after the other: {_listed(changes)})" if changes else said
