"""Tables of docs/accuracy.md and docs/cost-model.md: `python -m tests.bench.accuracy_tables ROWS.json [--write]`.

Two runs over the rows: the packaged profiles as they are (they were fitted to these rows), and the same constants
fitted again without each tenth of the groups.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping
from operator import attrgetter
from pathlib import Path

from planner.accuracy.metrics import Figures
from planner.accuracy.report import figures_by_dataset, measure_accuracy
from planner.cost_models import load_profile, profile_names

DOCS = Path(__file__).parents[2] / "docs"
PLAIN = (
    "device.memory_efficiency",
    "device.attention_efficiency",
    "device.attention_backward_efficiency",
    "device.native_attention_efficiency",
    "device.native_attention_backward_efficiency",
    "device.product_ramp_s",
    "host.dispatch_interval_s",
    "host.step_overhead_s",
    "host.handover_s",
    "framework.collective_interference",
    "prediction.spread",
)


def share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


def figure(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *map(list, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def accuracy(fitted: Mapping[str, Figures], held: Mapping[str, Figures]) -> str:
    heads = (
        "data set",
        "rows",
        "time",
        "held out",
        "largest",
        "Spearman",
        "regret",
        "in 80 % interval",
        "memory (largest)",
    )
    rows = []
    for name, f in fitted.items():
        memory = "" if f.memory_mape is None else f"{share(f.memory_mape)} ({share(f.memory_max)})"
        out = share(held[name].time_mape) if name in held else ""
        rows.append(
            (f"`{name}`", str(f.rows), share(f.time_mape), out, share(f.time_max), figure(f.spearman),
             share(f.top1_regret), share(f.coverage), memory)
        )  # fmt: skip
    return table(heads, rows)


def constants() -> str:
    rows = []
    for name in profile_names():
        profile = load_profile(name)
        device, note = profile.device, profile.sources.get("device.memory_efficiency", "")
        if device is None or not note.startswith(("fitted", "derived: mean")):
            continue
        by_type = ", ".join(f"{t} {v:g}" for t, v in device.matmul_efficiency_by_type.items()) or "–"
        values = (attrgetter(key)(profile) for key in PLAIN)
        rows.append((f"`{name}`", by_type, *("–" if v is None else f"{v:g}" for v in values)))
    heads = (
        "machine",
        "products",
        *(p.removeprefix("device.").replace("_efficiency", "").replace(".", " ").replace("_", " ") for p in PLAIN),
    )
    return table(heads, rows)


def put(file: Path, mark: str, text: str) -> None:
    """Replaces what stands between `<!-- mark -->` and `<!-- /mark -->`."""
    before, _, rest = file.read_text(encoding="utf-8").partition(f"<!-- {mark} -->\n")
    _, _, after = rest.partition(f"<!-- /{mark} -->")
    file.write_text(f"{before}<!-- {mark} -->\n{text}\n<!-- /{mark} -->{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--write", action="store_true", help="into the documents, else to standard output")
    options = parser.parse_args()
    names = frozenset(profile_names())

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    plain = measure_accuracy(options.rows, names, progress=say)
    crossed = measure_accuracy(options.rows, names, fit="profile", cross_validate=True, progress=say)
    assert crossed.held_out is not None
    parts = []
    for complete in (True, False):
        fitted, held = (
            figures_by_dataset(o for o in outcomes if o.case.complete == complete)
            for outcomes in (plain.outcomes, crossed.held_out)
        )
        parts.append(accuracy(fitted, held))
    if not options.write:
        print("\n\n".join([*parts, constants()]))
        return
    put(DOCS / "accuracy.md", "complete", parts[0])
    put(DOCS / "accuracy.md", "filled", parts[1])
    put(DOCS / "cost-model.md", "fitted", constants())


if __name__ == "__main__":
    main()
