"""The process that solves integer programs: it can be ended at any moment, whatever the solver is doing.

It reads one pickled request from its parent on standard input and writes pickled (bound, choice) pairs.
"""

from __future__ import annotations

import pickle
import sys
from typing import Any

from planner.processes import die_with
from planner.search.large.program import solve_lazily

__all__ = ["main"]


def main() -> None:
    if len(sys.argv) > 1:
        die_with(int(sys.argv[1]))
    out = sys.stdout.buffer
    request: dict[str, Any] = pickle.load(sys.stdin.buffer)

    def send(kind: str, bound: float | None, choice: list[int] | None) -> None:
        pickle.dump((kind, bound, choice), out)
        out.flush()

    try:
        closed = solve_lazily(
            request["lazy"],
            request["rows"],
            seconds=request["seconds"],
            report=lambda bound, choice: send("round", bound, choice),
        )
    except Exception as e:  # whatever the solver's library raises; the rest of the portfolio goes on
        send(f"failed: {e}", None, None)
        return
    send("closed" if closed else "open", None, None)


if __name__ == "__main__":
    main()
