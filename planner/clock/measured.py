"""Which kinds of parallelism the clock was measured with, alone and together.

The clock is compared with published steps (docs/accuracy.md).  A configuration that makes use of something that none of
these runs did, or of two things that none of them had together, is predicted from what the clock knows of each: that is
extrapolation, and is said.  `measured.json` has the sets of features of those runs; `tests/bench/measured_kinds.py`
makes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import combinations
from pathlib import Path
from typing import Final

from planner.clock.configuration import Configuration

__all__ = ["FURTHER_OFF", "extrapolated", "features"]

_DATA: Final = Path(__file__).with_name("measured.json")
_ORDERS: Final = {
    "1f1b": "1F1B", "gpipe": "GPipe", "zb-h1": "ZB-H1", "zb-v": "ZB-V", "interleaved": "interleaved 1F1B",
}  # fmt: skip
_AGAIN: Final = {"selective": "selective recomputation", "products": "recomputation of every second product"}
# Root mean square errors of steps whose features no other data set has, over those of the others: 0.116 / 0.099
# (`python -m tests.bench.measured_kinds ROWS --spread`).
FURTHER_OFF: Final = 1.17
_SHORT: Final = 4  # stages of a pipeline that counts as short
_DEEP: Final = 16


def features(c: Configuration) -> tuple[str, ...]:
    """What a configuration makes use of, in words; degrees in ranges within which they behave alike."""
    return tuple(_features(c))


def _features(c: Configuration) -> Iterator[str]:
    if c.tp > 1:
        yield f"TP {c.tp}"
        if not c.sequence_parallel:
            yield "TP without sequence parallelism"
    if c.cp > 1:
        yield "CP" if c.context == "ring" else f"CP by {c.context}"
    if c.ep > 1:
        yield "expert parallelism"
    if c.pp > 1:
        deep = f"up to {_SHORT}" if c.pp <= _SHORT else f"up to {_DEEP}" if c.pp <= _DEEP else f"more than {_DEEP}"
        yield f"{deep} stages"
        yield _ORDERS[c.order]
    elif c.micro_batches > 1:
        yield "accumulation"
    if c.dp * c.cp > 1:
        yield f"ZeRO {c.zero}"
        if c.shard_ranks not in (None, c.dp * c.cp):
            yield "ZeRO in groups"
    if c.recompute == "full":
        part = c.recompute_blocks < 1 or c.recompute_layers is not None
        yield "full recomputation of a part of the blocks" if part else "full recomputation"
    elif c.recompute != "none":
        yield _AGAIN[c.recompute]
    if c.offloads:
        yield "activations in the host's memory"
    if c.copies > 1:
        yield "interleaved copies of a micro-batch"
    if c.stage_layers is not None and len(set(c.stage_layers)) > 1:
        yield "uneven stages"


def extrapolated(c: Configuration) -> tuple[str, ...]:
    """What of the configuration no measured run had: single features, and pairs of features that were measured apart
    alone."""
    return _extrapolated(features(c))


@lru_cache(maxsize=4096)
def _extrapolated(own: tuple[str, ...]) -> tuple[str, ...]:
    known, pairs = _measured()
    new = [f for f in own if f not in known]
    old = [f for f in own if f in known]
    apart = [f"{a} together with {b}" for a, b in combinations(old, 2) if frozenset((a, b)) not in pairs]
    return (*new, *apart)


@cache
def _measured() -> tuple[frozenset[str], frozenset[frozenset[str]]]:
    """Features, and pairs of them, of the measured runs."""
    sets: list[list[str]] = json.loads(_DATA.read_text(encoding="utf-8"))["features"]
    pairs = frozenset(frozenset(pair) for one in sets for pair in combinations(one, 2))
    return frozenset(f for one in sets for f in one), pairs
