"""From the parameters of an ONNX graph to those of the user's network: by name, by prefix, or by shape and order.

A names file is JSON: an object with any of

    parameters   ONNX name → name, or {"name": …, "transposed": true}
    prefixes     beginning of ONNX names → what stands in its place; the longest that fits wins
    network      the network's parameters in their order, each {"name": …, "shape": […]}

or that list alone.  What is not named is matched to the network's remaining parameters of the same shape, first to
first; a matrix whose shape occurs there only the other way round is taken as transposed.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planner.errors import InputError

__all__ = ["Name", "NameRules", "plain", "read_names"]

Shape = tuple[int, ...]


def plain(text: str) -> str:
    """A name as it may stand in a comment or a docstring of a generated file."""
    return re.sub(r"[^A-Za-z0-9_.\-/:]", "_", text)[:200]


@dataclass(frozen=True, slots=True)
class Name:
    """A parameter of the network; `transposed`: it holds the matrix the other way round."""

    name: str
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class NameRules:
    """How names follow; without rules they stay as they are."""

    parameters: Mapping[str, Name] = field(default_factory=dict)
    prefixes: Mapping[str, str] = field(default_factory=dict)
    network: Sequence[tuple[str, Shape]] | None = None
    source: str = "--names"

    def apply(self, shapes: Mapping[str, Shape]) -> dict[str, Name]:
        """Names of parameters given with their shapes, in their order.

        InputError where a name is unknown, a shape does not agree, two become one, a parameter finds no partner, or
        what is no matrix is said to be transposed.
        """
        unknown = [n for n in self.parameters if n not in shapes]
        if unknown:
            raise InputError(
                f"{self.source}: parameters: {unknown[0]!r} is no parameter of the plan; it has "
                f"{', '.join(list(shapes)[:8])}{', …' if len(shapes) > 8 else ''}"
            )
        found = {n: self.parameters.get(n) or self._prefixed(n) for n in shapes}
        if self.network is not None:
            self._match(found, shapes, self.network)
        out = {n: name or Name(n) for n, name in found.items()}
        for n, name in out.items():
            if name.transposed and len(shapes[n]) != 2:
                raise InputError(
                    f"{self.source}: parameters: {n!r} is said to be transposed, and has shape {list(shapes[n])}; "
                    "expected a matrix: leave `transposed` out"
                )
        owners: dict[str, str] = {}
        for n, name in out.items():
            if name.name in owners:
                raise InputError(f"{self.source}: {owners[name.name]!r} and {n!r} both become {name.name!r}")
            owners[name.name] = n
        return out

    def _prefixed(self, name: str) -> Name | None:
        fitting = [p for p in self.prefixes if name.startswith(p)]
        if not fitting:
            return None
        longest = max(fitting, key=len)
        return Name(self.prefixes[longest] + name[len(longest) :])

    def _match(
        self, found: dict[str, Name | None], shapes: Mapping[str, Shape], network: Sequence[tuple[str, Shape]]
    ) -> None:
        listed = dict(network)
        for n, name in found.items():
            if name is not None and name.name in listed:
                shape = listed.pop(name.name)
                wanted = shapes[n][::-1] if name.transposed else shapes[n]
                if len(shape) == 2 and shape == shapes[n][::-1] != wanted and n not in self.parameters:
                    found[n] = Name(name.name, transposed=True)
                elif shape != wanted:
                    raise InputError(
                        f"{self.source}: {n!r} has shape {list(shapes[n])}, and {name.name!r} of the network "
                        f"{list(shape)}"
                    )
            elif name is not None:
                raise InputError(f"{self.source}: {n!r} becomes {name.name!r}, which is not in the network's list")
        rest: dict[Shape, list[str]] = defaultdict(list)
        for left, shape in listed.items():
            rest[shape].append(left)
        for n, shape in shapes.items():
            if found[n] is not None:
                continue
            turned = not rest[shape] and len(shape) == 2 and bool(rest[shape[::-1]])
            candidates = rest[shape[::-1] if turned else shape]
            if not candidates:
                raise InputError(
                    f"{self.source}: no parameter of shape {list(shape)} is left in the network for {n!r}; name it "
                    "under `parameters`"
                )
            found[n] = Name(candidates.pop(0), transposed=turned)


def read_names(path: Path) -> NameRules:
    """InputError naming the file and what is wrong in it."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise InputError(f"--names {path}: cannot be read ({e.strerror}); give a JSON file of names") from e
    except (ValueError, RecursionError) as e:
        raise InputError(f"--names {path}: is not JSON ({e})") from e
    source = f"--names {path}"
    if isinstance(document, list):
        document = {"network": document}
    if not isinstance(document, dict) or not set(document) <= {"parameters", "prefixes", "network"}:
        raise InputError(f"{source}: expected an object with parameters, prefixes or network, or a list of parameters")
    prefixes = document.get("prefixes", {})
    if not isinstance(prefixes, dict) or not all(isinstance(v, str) for v in prefixes.values()):
        raise InputError(f"{source}: prefixes: expected an object of texts, found {prefixes!r:.80}")
    return NameRules(_parameters(source, document.get("parameters", {})), prefixes, _network(source, document), source)


def _parameters(source: str, table: Any) -> dict[str, Name]:
    if not isinstance(table, dict):
        raise InputError(f"{source}: parameters: expected an object, found {table!r:.80}")
    out = {}
    for onnx, value in table.items():
        entry = value if isinstance(value, dict) else {"name": value}
        name, transposed = entry.get("name"), entry.get("transposed", False)
        if isinstance(name, str) and name.isprintable() and name and isinstance(transposed, bool) and len(entry) <= 2:
            out[onnx] = Name(name, transposed)
        else:
            raise InputError(
                f"{source}: parameters: {onnx}: expected a name or {{name, transposed}}, found {value!r:.80}"
            )
    return out


def _network(source: str, document: Mapping[str, Any]) -> list[tuple[str, Shape]] | None:
    network = document.get("network")
    if network is None:
        return None
    out: list[tuple[str, Shape]] = []
    for item in network if isinstance(network, list) else [network]:
        shape = item.get("shape") if isinstance(item, dict) else None
        name = item.get("name") if isinstance(item, dict) else None
        if (
            not isinstance(name, str)
            or not name.isprintable()
            or not isinstance(shape, list)
            or not all(type(n) is int for n in shape)
        ):
            raise InputError(f"{source}: network: expected objects with a name and a shape, found {item!r:.80}")
        out.append((name, tuple(shape)))
    if len(dict(out)) != len(out):
        raise InputError(f"{source}: network: a name is listed twice")
    return out
