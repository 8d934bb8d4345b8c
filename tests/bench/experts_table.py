"""The tables of docs/experts.md, of what `tests.bench.experts --json OUT` wrote.

    python -m tests.bench.experts_table OUT [docs/experts.md]

Prints them, or puts them between the document's marks.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.bench.experts_reasons import CAUSES, reason_of, saved_of

__all__ = ["main"]

_NEAR: Final = 0.05
Row = Mapping[str, Any]


def _time(seconds: float) -> str:
    return f"{seconds:.4g} s" if seconds >= 1 else f"{seconds * 1e3:.4g} ms"


def _percent(value: float) -> str:
    return "0.0 %" if abs(value) < 5e-4 else f"{value:.1%}".replace("%", " %")


def _sets(rows: Sequence[Row]) -> dict[str, list[Row]]:
    out: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        out[row["dataset"]].append(row)
    return dict(sorted(out.items()))


def _line(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _header(*names: str) -> Iterator[str]:
    yield _line(names)
    yield "|" + " --- |" * len(names)


def overview(rows: Sequence[Row]) -> Iterator[str]:
    """Distances by data set: in the whole space, and with nothing but what rows of the framework use."""
    yield from _header(
        "data set", "jobs", "rows", "ours at most equal", "equal within 0.5 %", "median distance", "largest",
        "over 5 %", "median, own kinds", "largest", "over 5 %", "jobs beyond the limit",
    )  # fmt: skip
    for name, mine in [*((f"`{n}`", m) for n, m in _sets(rows).items()), ("all", list(rows))]:
        far, own = [r["distance"] for r in mine], [r["published_s"] / r["alike_s"] - 1 for r in mine]
        equal, same = sum(r["ratio"] <= 1 + 1e-9 for r in mine), sum(d < 0.005 for d in far)
        over = sum(r["published_bytes"] > (r["usable_bytes"] or math.inf) for r in mine)
        yield _line([name, len(mine), sum(r["rows"] for r in mine), equal, same, *_spread(far), *_spread(own), over])


def _spread(distances: Sequence[float]) -> tuple[str, str, int]:
    return _percent(statistics.median(distances)), _percent(max(distances)), sum(d > _NEAR for d in distances)


def causes(rows: Sequence[Row]) -> Iterator[str]:
    """Of jobs over 5 %: what saves most."""
    far = [(r["dataset"], max(saved_of(r).items(), key=lambda s: s[1])[0]) for r in rows if r["distance"] > _NEAR]
    found = [c for c in CAUSES if any(cause == c for _, cause in far)]
    yield from _header("data set", "over 5 %", *(CAUSES[c] for c in found))
    for name in sorted({n for n, _ in far}):
        mine = [cause for n, cause in far if n == name]
        yield _line([f"`{name}`", len(mine), *(mine.count(c) or "" for c in found)])


def consistency(rows: Sequence[Row]) -> Iterator[str]:
    """Whether the clock ranks first what was measured to be first."""
    yield from _header(
        "data set", "jobs with several configurations", "configurations", "the one measured best is predicted best",
        "mean regret", "largest",
    )  # fmt: skip
    for name, mine in _sets([r for r in rows if r["configurations"] > 1]).items():
        regrets = [_percent(statistics.mean(r["regret"] for r in mine)), _percent(max(r["regret"] for r in mine))]
        several, first = sum(r["configurations"] for r in mine), sum(r["consistent"] for r in mine)
        yield _line([f"`{name}`", len(mine), several, first, *regrets])


def jobs(rows: Sequence[Row]) -> Iterator[str]:
    for name, mine in _sets(rows).items():
        yield f"### {name}"
        yield ""
        yield from _header(
            "job", "published: measured, predicted", "which", "ours", "which", "distance", "faster ones", "why"
        )
        yield from (_job(r) for r in mine)
        yield ""


def _job(r: Row) -> str:
    frozen = ", adapters alone trained" if r["frozen"] else ""
    what = f"{r['model']}, {r['devices']} x {r['machine']}, batch {r['batch']:,}, {r['seq']:,} tokens"
    cells = [
        f"{what}, {r['matrix']}{frozen}",
        f"{_time(r['measured_s'])}, {_time(r['published_s'])}",
        r["published"],
        _time(r["ours_s"]),
        r["ours"] if r["ours"] != r["published"] else "the same",
        _percent(r["distance"]),
        "over 100" if r["faster"] is None else r["faster"],
        reason_of(r),
    ]
    return _line(cells)


def main(arguments: Sequence[str]) -> int:
    path, *documents = map(Path, arguments)
    rows = [r for r in json.loads(path.read_text()) if "ratio" in r]
    parts = {f.__name__: "\n".join(f(rows)).rstrip() for f in (overview, causes, consistency, jobs)}
    for document in documents:
        text = document.read_text(encoding="utf-8")
        for name, table in parts.items():
            begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
            before, _, rest = text.partition(begin)
            text = f"{before}{begin}{table}\n{end}{rest.partition(end)[2]}"
        document.write_text(text, encoding="utf-8")
    if not documents:
        print("\n\n".join(parts.values()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
