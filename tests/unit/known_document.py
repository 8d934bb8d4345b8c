"""The tables of docs/known-answers.md, computed.  `python -m tests.unit.known_document` prints them anew."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tests.unit.alpa_cases import BUILT, CASES, LEFT_OUT, answer, published
from tests.unit.alpa_prices import best, chosen
from tests.unit.alpa_prototype import Case, read_cases
from tests.unit.known import Found, counts, inner_counts

__all__ = ["DOCUMENT", "PROTOTYPE", "agrees", "case_row", "left_out_rows", "prototype_row", "solved"]

DOCUMENT = Path(__file__).parents[2] / "docs" / "known-answers.md"
PROTOTYPE = read_cases(Path(__file__).parents[1] / "golden" / "alpa_prototype.json")

PROVEN = 1e-9  # bounds are rounded down in double precision

_KINDS = {
    "all_reduce": "all-reduce",
    "reduce_scatter": "reduce-scatter",
    "all_gather": "all-gather",
    "all_to_all": "all-to-all",
    "permute": "permute",
}


@cache
def solved(case: Case) -> tuple[Found, Found]:
    """The prototype's choice and ours, of uneven shards as XLA pads them."""
    even = case.padded()
    return chosen(even), best(even)


def prototype_row(case: Case) -> str:
    theirs, ours = solved(case)
    mesh = "x".join(map(str, case.mesh))
    cells = [f"`{case.id.removesuffix(f'-{mesh}')}`", mesh, _cost(case.objective), _cost(theirs.objective)]
    return _row(*cells, _against(ours, theirs), _counted(counts(theirs)), _counted(counts(ours)))


def case_row(name: str) -> str:
    found = answer(name)
    stated = published(name)
    cells = [f"`{name}`", "x".join(map(str, BUILT[name].links.shape)), "" if stated is None else _cost(stated)]
    cells += [_cost(found.theirs.objective), _against(found.ours, found.theirs)]
    cells += [_stated(CASES[name].get("collectives", {})), _collectives(found.theirs)]
    if found.same:
        return _row(*cells, "the same", "agrees" if agrees(name, found.ours) else "")
    ours = "" if found.ours.gap > PROVEN else _collectives(found.ours)
    return _row(*cells, ours, "cheaper" if found.ours.objective < found.theirs.objective else "")


def left_out_rows() -> Iterator[str]:
    for reason in dict.fromkeys(LEFT_OUT.values()):
        names = (f"`{name}`" for name, why in LEFT_OUT.items() if why == reason)
        yield _row(", ".join(names), reason)


def agrees(name: str, found: Found) -> bool:
    """Whether a plan has the collectives that a case states.

    A batch normalisation adds one all-reduce forward and one backward (its sums are combined, as Alpa's are).
    """
    stated, found_counts = CASES[name].get("collectives", {}), dict(counts(found))
    statistics = {
        (op.name, c.backward)
        for op in found.program.graph.ops
        if op.type == "BatchNormalization"
        for c in found.program.strategies[op.name].inner
    }
    if statistics and name.startswith("conv_dp"):
        found_counts["all_reduce"] = found_counts.get("all_reduce", 0) + len(statistics)
    if "constraint" in stated:
        scattered = found_counts.get("reduce_scatter", 0)
        return found_counts.get("all_reduce", 0) + scattered == 5 and scattered == found_counts.get("all_gather", 0)
    alone = stated.get("total") == "ar+a2a"
    if alone and set(found_counts) - {"all_reduce", "all_to_all"}:
        return False
    return all(_within(found_counts.get(kind, 0), limit) for kind, limit in stated.items() if kind in _KINDS)


def _within(count: int, limit: int | str) -> bool:
    if isinstance(limit, int):
        return count == limit
    return count <= int(limit[2:]) if limit.startswith("<=") else count > int(limit[1:])


def _cost(value: float) -> str:
    return f"{value:.2f}".removesuffix(".00")


def _against(ours: Found, theirs: Found) -> str:
    """Bold where cheaper; of what is not proven best, four digits."""
    if ours.gap > PROVEN:
        unit = 10 ** (math.floor(math.log10(ours.objective)) - 3)
        text = f"at most {math.ceil(ours.objective / unit) * unit}"
    else:
        text = _cost(ours.objective)
    return f"**{text}**" if ours.objective < theirs.objective - 1e-6 else text


def _counted(found: Mapping[str, int]) -> str:
    return ", ".join(_plural(found[k], k) for k in _KINDS if found.get(k)) or "none"


def _plural(count: int | str, kind: str) -> str:
    return f"{count} {_KINDS[kind]}{'' if count == 1 else 's'}"


def _collectives(found: Found) -> str:
    inside = sum(inner_counts(found).values())
    return _counted(counts(found)) + (f"; {inside} inside operators" if inside else "")


def _stated(collectives: Mapping[str, Any] | str) -> str:
    if isinstance(collectives, str):
        return "all-reduces alone"
    if "constraint" in collectives:
        return "5 all-reduces and reduce-scatters, as many all-gathers as the latter"
    parts = []
    for kind in _KINDS:
        limit = collectives.get(kind, 0)
        if isinstance(limit, str):
            bounded = limit.startswith("<=")
            parts.append(_plural(f"at most {limit[2:]}", kind) if bounded else f"some {_KINDS[kind]}s")
        elif limit:
            parts.append(_plural(limit, kind))
    text = ", ".join(parts)
    return f"{text}, no other" if "total" in collectives else text


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _tables() -> Iterator[str]:
    yield from (prototype_row(case) for case in PROTOTYPE)
    yield ""
    yield from (case_row(name) for name in CASES if name not in LEFT_OUT)
    yield ""
    yield from left_out_rows()


if __name__ == "__main__":
    print("\n".join(_tables()))
