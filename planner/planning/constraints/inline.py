"""A pin on the command line: `PATTERN key=value ...`.

*.c_fc.* m=x n=y            the operators' strategy, complete
*.c_fc.* replicated
*.c_fc.* shard=[[8,1],[1,2]]
*.weight stored=[_,x]       parameters: stored, compute
hidden layout=[x,_,_]       tensors: layout, produced
rest=data_parallel          everything else
mesh=8x2
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from planner.errors import UsageError
from planner.planning.constraints.file import SCHEMA, parse_constraints
from planner.planning.constraints.values import Constraints

__all__ = ["parse_pin"]

_SECTIONS = {"stored": "parameters", "compute": "parameters", "layout": "tensors", "produced": "tensors"}
_OPERATOR = ("type", "reads", "shard", "shard_out")
_WHOLE = ("rest", "mesh")


def parse_pin(text: str) -> Constraints:
    """UsageError where the form is wrong; InputError, as of a file, where a value is."""
    words = text.split()
    pattern = words.pop(0) if words and "=" not in words[0] else ""
    document: dict[str, Any] = {"schema": SCHEMA}
    strategy: dict[str, Any] | str = {}
    entry: dict[str, Any] = {"match": pattern} if pattern else {}
    sections = set()
    for word in words:
        key, equals, value = word.partition("=")
        if word == "replicated":
            strategy = "replicated"
        elif not equals or not key or not value:
            raise UsageError(f"--pin {text!r}: {word!r} is not KEY=VALUE; expected such as '*.fc1.* m=x n=y'")
        elif key in _WHOLE:
            document[key] = _value(value)
        elif key in _SECTIONS or key in _OPERATOR:
            entry[key] = _value(value)
            sections.add(_SECTIONS.get(key, "operators"))
        elif isinstance(strategy, dict):
            strategy[key] = _value(value)
    if strategy:
        entry["strategy"] = strategy
        sections.add("operators")
    if len(document) + len(sections) < 2 or len(sections) > 1 or bool(entry) != bool(sections):
        raise UsageError(
            f"--pin {text!r}: expected a pattern and what to pin: factors (m=x) or shard; stored or compute; "
            f"layout or produced"
        )
    for section in sections:
        document[section] = [entry]
    return replace(parse_constraints(json.dumps(document), f"--pin {text!r}", numbered=False), source="--pin")


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
