"""What a file says of itself in its metadata, where an exporter knows what is otherwise found by structure.

    planner.parameters   a JSON list: the stored floats that are trained; all others are constants, or frozen
    planner.frozen       a JSON list, beside the former: weights that are never trained, which plans may split as well
    planner.loss         the output that training minimises
    planner.aliases      a JSON object: further names that a module has for a parameter, which checkpoints have too

`planner.torch` writes them: a module knows its parameters, those that are tied, and its loss.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import onnx

from planner.errors import InputError

__all__ = ["ALIASES_KEY", "FROZEN_KEY", "LOSS_KEY", "PARAMETERS_KEY", "Stated", "aliases", "stated"]

PARAMETERS_KEY, FROZEN_KEY = "planner.parameters", "planner.frozen"
LOSS_KEY, ALIASES_KEY = "planner.loss", "planner.aliases"


@dataclass(frozen=True, slots=True)
class Stated:
    """`parameters`, those that are `frozen`, and `loss` as the file names them; None where it does not say."""

    parameters: frozenset[str] | None = None
    loss: str | None = None
    frozen: frozenset[str] = frozenset()


def stated(model: onnx.ModelProto, name: str) -> Stated:
    """InputError where the metadata cannot be understood."""
    found = {p.key: p.value for p in model.metadata_props}
    parameters = _names(found[PARAMETERS_KEY], PARAMETERS_KEY, name) if PARAMETERS_KEY in found else None
    frozen = _names(found[FROZEN_KEY], FROZEN_KEY, name) if FROZEN_KEY in found else frozenset()
    if frozen and parameters is None:
        raise InputError(f"{name}: metadata {FROZEN_KEY}: expected {PARAMETERS_KEY} beside it, which names the others.")
    if parameters and (both := sorted(parameters & frozen)):
        raise InputError(f"{name}: metadata {FROZEN_KEY}: {PARAMETERS_KEY} names '{both[0]}' as well; name it once.")
    loss = found.get(LOSS_KEY)
    if loss is not None and loss not in {o.name for o in model.graph.output}:
        raise InputError(f"{name}: metadata {LOSS_KEY}: the graph has no output '{loss}'.")
    return Stated(parameters, loss, frozen)


def _names(text: str, key: str, name: str) -> frozenset[str]:
    try:
        listed = json.loads(text)
    except (ValueError, RecursionError):
        listed = None
    if not isinstance(listed, list) or not all(isinstance(n, str) for n in listed):
        raise InputError(f"{name}: metadata {key}: expected a JSON list of names.")
    return frozenset(listed)


def aliases(model: onnx.ModelProto, name: str) -> dict[str, str]:
    """Further names of parameters, with the names that the graph has for them.  InputError where the metadata cannot be
    understood."""
    text = next((p.value for p in model.metadata_props if p.key == ALIASES_KEY), "{}")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(n, str) for n in found.values()):
        raise InputError(f"{name}: metadata {ALIASES_KEY}: expected a JSON object of names, found {text[:80]!r}")
    return found
