"""The tables of docs/experts.md, of what `tests.bench.experts --json OUT` wrote.

python -m tests.bench.experts_table OUT
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.bench.experts_reasons import reason_of

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


def overview(rows: Sequence[Row]) -> Iterator[str]:
    yield (
        "| data set | jobs | rows | ours at most equal | same within 0.5 % | median distance | largest | over 5 % | "
        "median with the rows' own means | largest | over 5 % | refused |"
    )
    yield "|" + " --- |" * 12
    for name, mine in [*_sets(rows).items(), ("all", list(rows))]:
        far, own = [r["distance"] for r in mine], [r["published_s"] / r["alike_s"] - 1 for r in mine]
        cells = [
            f"`{name}`" if name != "all" else name,
            len(mine),
            sum(r["rows"] for r in mine),
            sum(r["ratio"] <= 1 + 1e-9 for r in mine),
            sum(d < 0.005 for d in far),
            *(_percent(v) for v in (statistics.median(far), max(far))),
            sum(d > _NEAR for d in far),
            *(_percent(v) for v in (statistics.median(own), max(own))),
            sum(d > _NEAR for d in own),
            sum(r["over"] for r in mine),
        ]
        yield f"| {' | '.join(map(str, cells))} |"


def consistency(rows: Sequence[Row]) -> Iterator[str]:
    yield (
        "| data set | jobs with several configurations | configurations | measured best is predicted best | "
        "mean regret | largest |"
    )
    yield "|" + " --- |" * 6
    for name, mine in _sets([r for r in rows if r["configurations"] > 1]).items():
        regrets = [r["regret"] for r in mine]
        cells = [
            f"`{name}`",
            len(mine),
            sum(r["configurations"] for r in mine),
            sum(r["consistent"] for r in mine),
            *(_percent(v) for v in (statistics.mean(regrets), max(regrets))),
        ]
        yield f"| {' | '.join(map(str, cells))} |"


def jobs(rows: Sequence[Row]) -> Iterator[str]:
    for name, mine in _sets(rows).items():
        yield f"### {name}"
        yield ""
        yield "| job | published: measured, predicted | which | ours | which | distance | faster ones | why |"
        yield "|" + " --- |" * 8
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
    return f"| {' | '.join(map(str, cells))} |"


def main(arguments: Sequence[str]) -> int:
    (path,) = arguments
    rows = [r for r in json.loads(Path(path).read_text()) if "ratio" in r]
    for part in (overview(rows), consistency(rows), jobs(rows)):
        print("\n".join(part) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
