"""Symbolic dimensions of the graph's inputs get their sizes.

A dimension is known by the name the file gives it, or as `<input>.<axis>`.  Every one must be bound: the
cost of a plan is a number, not a formula.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from planner.errors import InputError, UsageError
from planner.frontends.steps.draft import Draft

__all__ = ["bind_dimensions"]

BATCH_NAMES = frozenset({"batch", "batch_size", "batchsize", "b", "n", "bs", "num_batches", "None"})


def bind_dimensions(draft: Draft, bind: Mapping[str, int], batch: int | None) -> tuple[dict[str, int], bool]:
    """Put sizes in place of names in the dims of the sources.

    Returns the sizes by name and whether `batch` was used.  UsageError for unknown names and sizes below 1,
    InputError where a dimension stays open or an input's rank is unknown.
    """
    for key, size in [*bind.items(), *([("--batch", batch)] if batch is not None else [])]:
        if size < 1:
            raise UsageError(f"{key}={size}: a dimension must be at least 1.")
    where = symbolic_dimensions(draft)
    aliases = {f"{tensor}.{axis}": symbol for symbol, places in where.items() for tensor, axis in places}
    sizes: dict[str, int] = {}
    for key, size in bind.items():
        symbol = key if key in where else aliases.get(key)
        if symbol is None:
            known = ", ".join(sorted(where)) or "none: all its dimensions are fixed"
            raise UsageError(f"--bind {key}={size}: the model has no such dimension. Its symbolic dimensions: {known}.")
        if sizes.get(symbol, size) != size:
            raise UsageError(f"--bind {key}={size}: the same dimension is already bound to {sizes[symbol]}.")
        sizes[symbol] = size
    used = False
    if batch is not None:
        for symbol in _batch_symbols(where):
            used = True
            sizes.setdefault(symbol, batch)
    missing = [s for s in where if s not in sizes]
    if missing:
        raise InputError(_unbound(draft, where, missing))
    for name, source in draft.sources.items():
        if source.dims is not None and any(isinstance(d, str) for d in source.dims):
            dims = tuple(sizes[d or f"{name}.{i}"] if isinstance(d, str) else d for i, d in enumerate(source.dims))
            draft.sources[name] = replace(source, dims=dims)
    return sizes, used


def symbolic_dimensions(draft: Draft) -> dict[str, list[tuple[str, int]]]:
    """Name → the (input, axis) places that have it; nameless ones are called `<input>.<axis>`."""
    where: dict[str, list[tuple[str, int]]] = {}
    for name in draft.inputs:
        dims = draft.sources[name].dims
        if dims is None:
            raise InputError(
                f"graph input '{name}' has no shape, not even its number of dimensions; re-export the model with one."
            )
        for axis, d in enumerate(dims):
            if isinstance(d, str):
                where.setdefault(d or f"{name}.{axis}", []).append((name, axis))
    return where


def _batch_symbols(where: Mapping[str, list[tuple[str, int]]]) -> list[str]:
    """Dimensions called batch; else those that stand first in an input."""
    named = [s for s in where if s.lower() in BATCH_NAMES or "batch" in s.lower()]
    return named or [s for s, places in where.items() if all(axis == 0 for _, axis in places)]


def _unbound(draft: Draft, where: Mapping[str, list[tuple[str, int]]], missing: list[str]) -> str:
    lines = []
    for symbol in missing[:8]:
        places = ", ".join(f"{tensor} axis {axis}" for tensor, axis in where[symbol][:3])
        lines.append(f"  '{symbol}' ({places}): give --bind {symbol}=SIZE")
    if len(missing) > 8:
        lines.append(f"  and {len(missing) - 8} more")
    example = " ".join(f"--bind {s}={8 if i == 0 else 128}" for i, s in enumerate(missing[:3]))
    return (
        f"{draft.name}: {len(missing)} dimension(s) of its inputs have no size; every one must be bound:\n"
        + "\n".join(lines)
        + f"\nFor example: {example}"
    )
