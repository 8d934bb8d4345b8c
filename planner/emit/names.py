"""From the parameters of an ONNX graph to those of the user's network: by name, by prefix, or by a list of them.

A names file is JSON: an object with any of

    parameters   ONNX name → name, or {"name": …, "transposed": true}
    prefixes     beginning of ONNX names → what stands in its place; the longest that fits wins
    network      the network's parameters, each {"name": …, "shape": […]}

or that list alone.  A parameter that is not named by the first two is found in the list by its own name, by its name
with another beginning where one change of it fits all, by the module that reads it, or by a shape that no other has; a
matrix whose shape occurs there only the other way round is taken as transposed.  What could be several is refused.

Exporters give names of their own to weights that they turn or fold (`val_7`, `onnx::MatMul_55`): no module has these.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from planner.errors import InputError

__all__ = ["Name", "NameRules", "Place", "exported_name", "plain", "read_names"]

Shape = tuple[int, ...]

# What torch.onnx calls a value that an operator computes, and so a weight that it folded the operator into.
_EXPORTED: Final = re.compile(
    r"onnx::.*|/.*|\d+|_tensor_constant\d+|lifted_tensor_\d+"
    r"|(?:val|const|tensor|t|numpy_t|transpose|permute|view|reshape|flatten|squeeze|unsqueeze|expand|slice|select"
    r"|cat|concat|stack|clone|contiguous|alias|detach|to|_to_copy|add|sub|mul|div|neg|pad|full|zeros|ones|arange)(?:_\d+)?"
)
_TURNED: Final = re.compile(r"onnx::MatMul_\d+|(?:val|t|numpy_t|transpose|permute)(?:_\d+)?")


def exported_name(name: str) -> bool:
    """Whether an exporter made the name up, so that no module has a parameter of it."""
    return _EXPORTED.fullmatch(name) is not None


def plain(text: str) -> str:
    """A name as it may stand in a comment or a docstring of a generated file."""
    return re.sub(r"[^A-Za-z0-9_.\-/:]", "_", text)[:200]


@dataclass(frozen=True, slots=True)
class Name:
    """A parameter of the network; `transposed`: it holds the matrix the other way round."""

    name: str
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """Where a parameter is read: the path of the module, empty where several or none are known, and whether as the
    second operand of products alone."""

    module: str = ""
    multiplies: bool = False


@dataclass(frozen=True, slots=True)
class NameRules:
    """How names follow; without rules they stay as they are."""

    parameters: Mapping[str, Name] = field(default_factory=dict)
    prefixes: Mapping[str, str] = field(default_factory=dict)
    network: Sequence[tuple[str, Shape]] | None = None
    source: str = "--names"

    def apply(self, shapes: Mapping[str, Shape], places: Mapping[str, Place] | None = None) -> dict[str, Name]:
        """Names of parameters given with their shapes, in their order; `places`: where they are read.

        InputError where a name is unknown, a shape does not agree, two become one, a parameter finds no partner or
        could be several, or what is no matrix is said to be transposed.
        """
        unknown = [n for n in self.parameters if n not in shapes]
        if unknown:
            raise InputError(
                f"{self.source}: parameters: {unknown[0]!r} is no parameter of the plan; it has "
                f"{', '.join(list(shapes)[:8])}{', …' if len(shapes) > 8 else ''}"
            )
        found = {n: self.parameters.get(n) or self._prefixed(n) for n in shapes}
        if self.network is not None:
            self._match(found, shapes, places or {}, dict(self.network))
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

    def check(self, names: Mapping[str, Name], places: Mapping[str, Place]) -> None:
        """InputError where a name is an exporter's, and neither given under `parameters` nor found in the list."""
        if self.network is not None:
            return
        made_up = [n for n in names if n not in self.parameters and exported_name(n)]
        if not made_up:
            return
        place = places.get(made_up[0], Place())
        where = f", and is read in module {place.module}" if place.module else ""
        more = f" (as are {len(made_up) - 1} more)" if len(made_up) > 1 else ""
        raise InputError(
            f"plan: parameter {made_up[0]!r} is named by the exporter{more}{where}; no module has a parameter of that "
            "name. Give --names with the network's list of names and shapes, or export with the names kept "
            "(torch.onnx.export with optimize=False; with dynamo=False, do_constant_folding=False)"
        )

    def _prefixed(self, name: str) -> Name | None:
        fitting = [p for p in self.prefixes if name.startswith(p)]
        if not fitting:
            return None
        longest = max(fitting, key=len)
        return Name(self.prefixes[longest] + name[len(longest) :])

    def _match(
        self,
        found: dict[str, Name | None],
        shapes: Mapping[str, Shape],
        places: Mapping[str, Place],
        listed: dict[str, Shape],
    ) -> None:
        """Completes `found` by the network's parameters, `listed` with their shapes."""
        left = dict(listed)
        for n, name in found.items():
            if name is None:
                continue
            if name.name not in left:
                what = "is already another's" if name.name in listed else "is not in the network's list"
                raise InputError(f"{self.source}: {n!r} becomes {name.name!r}, which {what}")
            found[n] = self._fitting(n, name, shapes[n], left.pop(name.name))
        self._by_name(found, shapes, left)
        for n in [n for n, name in found.items() if name is None]:
            place = places.get(n, Place())
            own = [c for c in left if _alike(left[c], shapes[n]) and _inside(place.module, c)]
            longest = max((c.count(".") for c in own), default=0)
            own = [c for c in own if c.count(".") == longest]
            if len(own) == 1:
                shape = left.pop(own[0])
                turned = shape != shapes[n] or self._turned_square(n, shapes[n], place)
                found[n] = Name(own[0], transposed=turned)
        for n in [n for n, name in found.items() if name is None]:
            candidates = [c for c in left if _alike(left[c], shapes[n])]
            rivals = [m for m, name in found.items() if name is None and _alike(shapes[m], shapes[n])]
            if not candidates:
                raise InputError(
                    f"{self.source}: no parameter of shape {list(shapes[n])} is left in the network for {n!r}; name it "
                    "under `parameters`"
                )
            if len(candidates) > 1 or len(rivals) > 1:
                which = ", ".join(candidates[:4]) + (", …" if len(candidates) > 4 else "")
                where = f", read in module {places[n].module}," if n in places and places[n].module else ""
                raise InputError(
                    f"{self.source}: {n!r}{where} could be any of {which}, by its shape {list(shapes[n])}, and so "
                    f"could {len(rivals) - 1} more; name it under `parameters`, or give `prefixes`"
                )
        for n in [n for n, name in found.items() if name is None]:
            (candidate,) = [c for c in left if _alike(left[c], shapes[n])]
            turned = left[candidate] != shapes[n] or self._turned_square(n, shapes[n], places.get(n, Place()))
            found[n] = Name(candidate, transposed=turned)
        self._check_squares(found, shapes, listed)

    def _fitting(self, n: str, name: Name, shape: Shape, listed: Shape) -> Name:
        """The name, transposed where that is how the matrix lies in the network."""
        wanted = shape[::-1] if name.transposed else shape
        if listed == wanted:
            return name
        if n not in self.parameters and _alike(listed, shape):
            return Name(name.name, transposed=True)
        raise InputError(
            f"{self.source}: {n!r} has shape {list(shape)}, and {name.name!r} of the network {list(listed)}"
        )

    def _by_name(self, found: dict[str, Name | None], shapes: Mapping[str, Shape], left: dict[str, Shape]) -> None:
        """By their own names, or with one other beginning for all of them that the exporter has not renamed."""
        kept = [n for n, name in found.items() if name is None and not exported_name(n)]
        for n in [n for n in kept if n in left]:
            found[n] = self._fitting(n, Name(n), shapes[n], left.pop(n))
            kept.remove(n)
        if not kept:
            return
        changes = {
            (kept[0][: len(kept[0]) - size], c[: len(c) - size])
            for c in left
            for size in (_common_end(kept[0], c),)
            if size
        }
        fitting = []
        for old, new in changes:
            named = {n: new + n[len(old) :] for n in kept if n.startswith(old)}
            if (
                len(named) == len(kept)
                and all(c in left and _alike(left[c], shapes[n]) for n, c in named.items())
                and len(set(named.values())) == len(kept)
            ):
                fitting.append(named)
        if len(fitting) == 1:
            for n, c in fitting[0].items():
                found[n] = self._fitting(n, Name(c), shapes[n], left.pop(c))

    def _turned_square(self, n: str, shape: Shape, place: Place) -> bool:
        """Whether a square matrix is transposed, as one is that the exporter has renamed because it turned it."""
        if len(shape) != 2 or shape[0] != shape[1] or not exported_name(n):
            return False
        if place.multiplies and _TURNED.fullmatch(n):
            return True
        raise InputError(
            f"{self.source}: {n!r} of shape {list(shape)} does not show whether the network holds it transposed: say "
            "so under `parameters`"
        )

    def _check_squares(
        self, found: Mapping[str, Name | None], shapes: Mapping[str, Shape], listed: Mapping[str, Shape]
    ) -> None:
        """InputError where matrices that kept their names lie the other way round in the network, and a square one,
        of which its shape does not say so, is found by name alone."""
        kept = [n for n in shapes if n not in self.parameters and not exported_name(n) and len(shapes[n]) == 2]
        turned = [n for n in kept if (name := found[n]) is not None and name.transposed]
        square = [n for n in kept if shapes[n][0] == shapes[n][1] != 1]
        if turned and square:
            raise InputError(
                f"{self.source}: {turned[0]!r} is transposed in the network, and {square[0]!r} of shape "
                f"{list(shapes[square[0]])} does not show whether it is: say so under `parameters`"
            )


def _alike(a: Shape, b: Shape) -> bool:
    """Equal, or those of a matrix and of the same transposed."""
    return a == b or (len(a) == 2 and a[::-1] == b)


def _inside(module: str, parameter: str) -> bool:
    """Whether the network's parameter belongs to the module at this path of the graph, which may begin with a wrapper
    of the network."""
    owner = parameter.rpartition(".")[0]
    return bool(owner) and f".{module}".endswith(f".{owner}")


def _common_end(a: str, b: str) -> int:
    """How many characters the longest common end of whole path components has."""
    mine, theirs = a.split("."), b.split(".")
    count = 0
    while count < min(len(mine), len(theirs)) and mine[-1 - count] == theirs[-1 - count]:
        count += 1
    return len(".".join(mine[len(mine) - count :])) if count else 0


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
