"""Why a configuration is faster than a published one, in words made of the two predictions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from planner.clock import Configuration

__all__ = ["CAUSES", "Kinds", "kinds_of", "reason_of", "saved_of"]

_ORDERS: Final = {
    "1f1b": "1F1B", "gpipe": "GPipe", "zb-h1": "ZB-H1", "zb-v": "ZB-V", "interleaved": "interleaved 1F1B",
}  # fmt: skip
_AGAIN: Final = {
    "none": "no recomputation",
    "selective": "recomputation of the core of attention",
    "products": "recomputation of every second product",
}
CAUSES: Final[Mapping[str, str]] = {
    "compute": "computing",
    "recompute": "recomputation",
    "host": "waiting for the host",
    "tensor_collectives": "exchange of activations",
    "bubble": "pipeline bubble",
    "gathering": "gathering of parameters",
    "scattering": "scattering of gradients",
    "exchange": "exchange of gradients and parameters",
    "update": "update",
    "overhead": "overhead",
}
_TOLD: Final = 0.01  # of the published step, from which on a cause is named
_EQUAL: Final = 0.005


def kinds_of(c: Configuration) -> Iterator[str]:
    """What a configuration makes use of, whatever the degrees."""
    if c.tp > 1:
        yield "TP with sequence parallelism" if c.sequence_parallel else "TP without sequence parallelism"
    if c.cp > 1:
        yield "CP"
    if c.ep > 1:
        yield "expert parallelism"
    if c.pp > 1:
        yield _ORDERS[c.order]
    if c.dp * c.cp > 1:
        yield f"ZeRO {c.zero}"
    part = "full recomputation" if c.recompute_blocks == 1 else "recomputation of a part of the blocks"
    yield _AGAIN.get(c.recompute, part)
    for told, name in (
        (c.copies > 1, "copies of a micro-batch"),
        (c.offload > 0, "activations in the host's memory"),
        (c.stage_layers is not None, "uneven stages"),
        (c.shard_ranks not in (None, c.dp * c.cp), "ZeRO in groups"),
    ):
        if told:
            yield name


@dataclass(frozen=True, slots=True)
class Kinds:
    """What some configurations make use of."""

    known: frozenset[str]

    @classmethod
    def of(cls, configurations: Iterable[Configuration]) -> Kinds:
        return cls(frozenset(k for c in configurations for k in kinds_of(c)))

    def with_(self, configurations: Iterable[Configuration]) -> Kinds:
        return Kinds(self.known | Kinds.of(configurations).known)

    def beyond(self, c: Configuration) -> list[str]:
        """What `c` uses besides."""
        return [k for k in kinds_of(c) if k not in self.known]


def reason_of(row: Mapping[str, Any]) -> str:
    """Sentences, of a row of `experts_jobs.compared`."""
    told: list[str] = []
    slower = row["distance"] >= _EQUAL
    if row["ours"] == row["published"]:
        told.append("Ours is the published configuration.")
    elif slower:
        told += [*_shares(row), *_unknown(row)]
    else:
        told.append("As fast as ours.")
    told += [*_memory(row, slower=slower), *_others(row)]
    return " ".join(told)


def _memory(row: Mapping[str, Any], *, slower: bool) -> Iterator[str]:
    usable, published = row["usable_bytes"], row["published_bytes"]
    if usable is not None and published > usable:
        within = _percent(row["within_s"] / row["published_s"] - 1, "+.1%")
        yield (
            f"The published one is predicted to hold {_gib(published)} GiB of {_gib(usable)} that may be used, and our "
            f"search would refuse it; the limit is raised to that here. Below the limit ours takes {within} against it."
        )
        return
    if slower:
        of = "" if usable is None else f" of {_gib(usable)} GiB"
        yield f"Memory{of}: {_gib(row['ours_bytes'])} GiB, published {_gib(published)}."
    if row["over"]:
        yield f"Another measured configuration is predicted beyond the limit ({row['over']} in all), which is raised."


def _others(row: Mapping[str, Any]) -> Iterator[str]:
    """Of the other configurations that were measured."""
    if row["configurations"] == 1:
        return
    yield f"Of {row['configurations']} configurations this is the one measured fastest,"
    if row["consistent"]:
        yield "and the one predicted fastest."
    else:
        sooner, later = _percent(1 - row["first_s"] / row["published_s"]), _percent(row["regret"])
        yield f"but {row['first']} is predicted to take {sooner} less; measured it takes {later} more."


def saved_of(row: Mapping[str, Any]) -> dict[str, float]:
    """Shares of the published step that ours saves, by cause; below zero where it adds."""
    before, after, step = row["published_breakdown"], row["ours_breakdown"], row["published_s"]
    return {k: (before.get(k, 0.0) - after.get(k, 0.0)) / step for k in CAUSES if k in before or k in after}


def _shares(row: Mapping[str, Any]) -> list[str]:
    saved = saved_of(row)
    less = sorted(((v, k) for k, v in saved.items() if v >= _TOLD), reverse=True)
    more = sorted((v, k) for k, v in saved.items() if v <= -_TOLD)
    out = []
    if less:
        sizes = ", ".join(f"{name} {b} for {a}" for name, (a, b) in row["changed"].items() if a != b)
        computing = "computing on the slowest pipeline rank" if row["changed"]["PP"][0] > 1 else CAUSES["compute"]
        words = {**CAUSES, "compute": f"{computing} ({sizes})" if sizes else computing}
        named = (f"{words[k]} {_percent(v, '.0%')}" for v, k in less)
        out.append(f"Saved of the published step: {', '.join(named)}.")
    else:
        out.append("No part of the step saves 1 % by itself.")
    if more:
        out.append("Added: " + ", ".join(f"{CAUSES[k]} {_percent(-v, '.0%')}" for v, k in more) + ".")
    return out


def _unknown(row: Mapping[str, Any]) -> list[str]:
    beyond, rest = row["beyond"], row["published_s"] / row["alike_s"] - 1
    if not beyond:
        return ["All that it uses stands in published rows of the framework."]
    left = "nothing is gained" if rest < _EQUAL else f"{_percent(rest)} is gained ({row['alike']})"
    return [f"No row of the framework uses {_listed(beyond)}; without, {left}."]


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _percent(value: float, form: str = ".1%") -> str:
    return format(value, form).replace("%", " %")


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f}"
