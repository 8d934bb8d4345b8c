"""Certificates in files: JSON (gzip where the name ends in `.gz`), read as strictly as problems are.

    {"certificate": {"problem": digest, "choice": [...] | null, "cost": n | null, "bound": n | null,
                     "proof": [{"node": v, "states": [[...], ...], "children": [...]},
                               {"denominator": D, "instants": [...], "prices": [...], "order": [...], "costs": true,
                                "messages": {"edges": [[u, v], ...], "to_u": [[...], ...], "to_v": ...} | null},
                               ...]}}

Denominators and prices of 2^63 or more are written as texts.  docs/problem-format.md says what the fields mean.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np

from planner.errors import InputError
from planner.search.certificates.certificate import Certificate, Leaf, Messages, Split
from planner.search.problem import IntArray
from planner.search.saved.text import Numbers, decode, read_bytes

__all__ = ["read_certificate", "write_certificate"]

MOST_DIGITS = 400


def write_certificate(certificate: Certificate, path: Path) -> None:
    """Equal certificates give equal bytes."""
    document = {
        "certificate": {
            "problem": certificate.problem,
            "choice": None if certificate.choice is None else list(certificate.choice),
            "cost": certificate.cost,
            "bound": certificate.bound,
            "proof": [_item(item) for item in certificate.proof],
        }
    }
    text = (json.dumps(document, separators=(",", ":")) + "\n").encode()
    path.write_bytes(gzip.compress(text, 6, mtime=0) if path.suffix == ".gz" else text)


def _item(item: Leaf | Split) -> dict[str, Any]:
    if isinstance(item, Split):
        return {"node": item.node, "states": [list(s) for s in item.states], "children": list(item.children)}
    messages = None
    if item.messages is not None:
        messages = {
            "edges": [list(pair) for pair in item.messages.edges],
            "to_u": [m.tolist() for m in item.messages.to_u],
            "to_v": [m.tolist() for m in item.messages.to_v],
        }
    return {
        "denominator": _number(item.denominator),
        "instants": [t for t, _ in item.prices],
        "prices": [str(p) for _, p in item.prices] if _wide(item) else [p for _, p in item.prices],
        "order": list(item.order),
        "costs": item.costs,
        "messages": messages,
    }


def _wide(leaf: Leaf) -> bool:
    return any(p >= 2**63 for _, p in leaf.prices)


def _number(value: int) -> int | str:
    return value if value < 2**63 else str(value)


def read_certificate(path: Path) -> Certificate:
    """InputError naming the place where the file is malformed; whether its claims hold is the checker's business."""
    return _Reader(path).certificate(decode(read_bytes(path), path))


class _Reader:
    def __init__(self, path: Path) -> None:
        self.path = path

    def certificate(self, document: Any) -> Certificate:
        found = self.field(self.object(document, "the document"), "certificate", "the document")
        found = self.object(found, "certificate")
        problem = self.field(found, "problem", "certificate")
        if not isinstance(problem, str):
            raise self.error("certificate.problem", "the digest of the problem", problem)
        choice = self.field(found, "choice", "certificate")
        items = self.items(self.field(found, "proof", "certificate"), "certificate.proof")
        return Certificate(
            problem=problem,
            choice=None if choice is None else self.integers(choice, "certificate.choice"),
            cost=self.optional(found, "cost"),
            bound=self.optional(found, "bound"),
            proof=tuple(self.item(item, f"certificate.proof[{k}]") for k, item in enumerate(items)),
        )

    def item(self, value: Any, place: str) -> Leaf | Split:
        found = self.object(value, place)
        if "node" in found:
            sets = self.items(self.field(found, "states", place), f"{place}.states")
            return Split(
                self.integer(found["node"], f"{place}.node"),
                tuple(self.integers(s, f"{place}.states[{k}]") for k, s in enumerate(sets)),
                self.integers(self.field(found, "children", place), f"{place}.children"),
            )
        instants = self.integers(self.field(found, "instants", place), f"{place}.instants")
        prices = self.integers(self.field(found, "prices", place), f"{place}.prices")
        if len(prices) != len(instants):
            raise self.error(f"{place}.prices", f"{len(instants)} prices, one per instant", f"{len(prices)}")
        costs = self.field(found, "costs", place)
        if not isinstance(costs, bool):
            raise self.error(f"{place}.costs", "true or false", costs)
        return Leaf(
            self.integer(self.field(found, "denominator", place), f"{place}.denominator"),
            tuple(zip(instants, prices, strict=True)),
            self.integers(self.field(found, "order", place), f"{place}.order"),
            self.messages(self.field(found, "messages", place), f"{place}.messages"),
            costs,
        )

    def messages(self, value: Any, place: str) -> Messages | None:
        if value is None:
            return None
        found = self.object(value, place)
        pairs = [self.integers(p, f"{place}.edges[{k}]") for k, p in enumerate(self.lists(found, "edges", place))]
        for k, pair in enumerate(pairs):
            if len(pair) != 2:
                raise self.error(f"{place}.edges[{k}]", "two nodes", str(list(pair)))
        sides = []
        for key in ("to_u", "to_v"):
            rows = [self.array(m, f"{place}.{key}[{k}]") for k, m in enumerate(self.lists(found, key, place))]
            if len(rows) != len(pairs):
                raise self.error(f"{place}.{key}", f"{len(pairs)} lists, one per pair", f"{len(rows)}")
            sides.append(tuple(rows))
        return Messages(tuple((u, v) for u, v in pairs), *sides)

    def lists(self, found: dict[str, Any], key: str, place: str) -> list[Any]:
        return self.items(self.field(found, key, place), f"{place}.{key}")

    def array(self, value: Any, place: str) -> IntArray:
        if isinstance(value, list):  # texts
            return np.array(self.integers(value, place), dtype=np.int64)
        if not isinstance(value, Numbers) or value.defect is not None:
            raise self.error(place, "a list of integers", value)
        return value.values

    def integers(self, value: Any, place: str) -> tuple[int, ...]:
        if isinstance(value, list):
            return tuple(self.integer(x, f"{place}[{k}]") for k, x in enumerate(value))
        return tuple(self.array(value, place).tolist())

    def integer(self, value: Any, place: str) -> int:
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= MOST_DIGITS:
            return int(value)
        if type(value) is not int:
            raise self.error(place, "an integer", value)
        return value

    def optional(self, found: dict[str, Any], key: str) -> int | None:
        value = self.field(found, key, "certificate")
        return None if value is None else self.integer(value, f"certificate.{key}")

    def items(self, value: Any, place: str) -> list[Any]:
        if isinstance(value, Numbers) and value.defect is None and not len(value.values):
            return []
        if not isinstance(value, list):
            raise self.error(place, "a list", value)
        return value

    def object(self, value: Any, place: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.error(place, "an object", value)
        return value

    def field(self, found: dict[str, Any], key: str, place: str) -> Any:
        if key not in found:
            raise self.error(place, f"the key {key!r}", ", ".join(found))
        return found[key]

    def error(self, place: str, expected: str, found: Any) -> InputError:
        if isinstance(found, Numbers):
            found = found.defect or "a list of numbers"
        text = found if isinstance(found, str) else type(found).__name__
        return InputError(f"{self.path}: {place}: expected {expected}, found {text[:80]}")
