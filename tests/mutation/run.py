"""Mutants of every kind, of every graph, and what the verifier says of them.

python -m tests.mutation.run --graphs gpt,mlp --kinds 'halo*' --seed 1 --meshes 4,2x2 --sites 2 --json out.json
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tests.mutation.faults import Kind, faults, sites
from tests.mutation.graphs import GRAPHS
from tests.mutation.judge import judge, sound
from tests.mutation.subjects import Subject, subject

__all__ = ["Result", "named", "rate", "run", "table"]


@dataclass
class Result:
    """Of one kind.  `missed` and `equivalent` name graph, mesh and site."""

    where: str
    caught: int = 0
    by: Counter[str] = field(default_factory=Counter)
    missed: list[str] = field(default_factory=list)
    equivalent: list[str] = field(default_factory=list)
    unproved: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def mutants(self) -> int:
        return self.caught + len(self.missed) + len(self.equivalent)

    def and_also(self, other: Result) -> Result:
        """Of both."""
        return Result(
            self.where,
            self.caught + other.caught,
            self.by + other.by,
            self.missed + other.missed,
            self.equivalent + other.equivalent,
            self.unproved + other.unproved,
            self.broken + other.broken,
            self.seconds + other.seconds,
        )


Results = dict[str, Result]


def run(
    subjects: Iterable[Subject],
    kinds: Iterable[Kind],
    seed: int,
    count: int,
    say: Callable[[str], None] = lambda _: None,
) -> Results:
    """At most `count` mutants of every kind of every subject."""
    chosen = list(kinds)
    out = {k.name: Result(k.where) for k in chosen}
    for s in subjects:
        begun = time.monotonic()
        wrong = sound(s)
        if wrong:
            say(f"{s.name} on {s.mesh}, seed {s.seed}: left out, since the verifier has something against it: {wrong}")
            continue
        for k in chosen:
            started = time.monotonic()
            for mutant in sites(k, s, seed + s.seed, count):
                found = judge(s, mutant)
                where = f"{s.name} on {s.mesh}, seed {s.seed}: {mutant.site}"
                result = out[k.name]
                result.caught += found.outcome == "caught"
                result.by.update(found.by)
                if found.outcome == "missed":
                    result.missed.append(where)
                    say(f"missed: {k.name}: {where}")
                elif found.outcome == "equivalent":
                    result.equivalent.append(where)
                elif found.by == ("no verdict",):
                    result.unproved.append(f"{where}: {found.why}")
                elif "execution" not in found.by and "check" not in found.by:
                    result.broken.append(f"{where}: {found.why}")
            out[k.name].seconds += time.monotonic() - started
        say(f"{s.name} on {s.mesh}, seed {s.seed}: {time.monotonic() - begun:.1f} s; {rate(out)[0]} of {rate(out)[1]}")
    return out


def rate(results: Results) -> tuple[int, int]:
    """Mutants that were caught, and all that are faults."""
    caught = sum(r.caught for r in results.values())
    return caught, caught + sum(len(r.missed) for r in results.values())


def table(results: Results) -> str:
    """One line per kind, and each miss."""
    lines = [f"{'kind':55} {'caught':>7} {'missed':>7} {'equiv.':>7} {'check':>7} {'exec.':>7} {'s':>6}"]
    for name, r in results.items():
        lines.append(
            f"{name[:55]:55} {r.caught:7} {len(r.missed):7} {len(r.equivalent):7} "
            f"{r.by['check']:7} {r.by['execution']:7} {r.seconds:6.1f}"
        )
    caught, total = rate(results)
    applied = sum(1 for r in results.values() if r.caught or r.missed)
    lines.append(f"{applied} kinds; {caught} of {total} mutants caught ({100 * caught / max(1, total):.2f} %)")
    for title, get in (
        ("missed", lambda r: r.missed),
        ("no verdict", lambda r: r.unproved),
        ("the verifier broke down", lambda r: r.broken),
    ):
        lines += [f"{title}: {name}: {where}" for name, r in results.items() for where in get(r)]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", default="*", help="names or patterns, with commas")
    parser.add_argument("--kinds", default="*", help="names or patterns, with commas")
    parser.add_argument("--meshes", default="4,2x2", help="with commas")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sites", type=int, default=1, help="of every kind, in every plan")
    parser.add_argument("--inference", action="store_true")
    parser.add_argument("--json", help="where to write all of it")
    asked = parser.parse_args(arguments)
    kinds = [k for k in faults().values() if named(k.name, asked.kinds)]
    names = [n for n in GRAPHS if named(n, asked.graphs)]
    meshes = [tuple(map(int, m.split("x"))) for m in asked.meshes.split(",")]

    def subjects() -> Iterable[Subject]:
        for name in names:
            for mesh in meshes:
                for recompute in (False, True):
                    if recompute and (mesh != meshes[-1] or asked.inference):
                        continue
                    try:
                        yield subject(name, mesh, asked.seed, not asked.inference, recompute)
                    except AssertionError as e:
                        print(e, file=sys.stderr)
                    subject.cache_clear()

    results = run(subjects(), kinds, asked.seed, asked.sites, lambda line: print(line, file=sys.stderr, flush=True))
    print(table(results))
    if asked.json:
        with open(asked.json, "w", encoding="utf-8") as file:
            json.dump({n: {**vars(r), "by": dict(r.by)} for n, r in results.items()}, file, indent=1)
    return 0 if rate(results)[0] >= 0.995 * rate(results)[1] else 1


def named(name: str, patterns: str) -> bool:
    return any(fnmatch.fnmatch(name, p.strip()) for p in patterns.split(","))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
