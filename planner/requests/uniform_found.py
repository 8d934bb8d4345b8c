"""What a search of uniform configurations found, for the summary and for `--json`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from planner.planning.schemes import in_words, spelled
from planner.report.words import time_text
from planner.uniform import Found, Scored

__all__ = ["Uniform"]

_REJECTED = {
    "memory": "too large for a device",
    "model": "that do not divide the model",
    "target": "that the target cannot express",
    "bound": "slower by a bound",
}


@dataclass(frozen=True, slots=True)
class Uniform:
    """`found` has one configuration at least; `of_any_s`: seconds of the fastest configuration that some target can be
    told, where this is for one `target`; `bound_s`: seconds that no uniform configuration takes less than, wherever
    stages begin; None where that is not known; `front`: the fastest for ever less memory, where that was asked for;
    `safer_than`: what is faster, and whose interval ends later, under `--risk upper`."""

    found: Found
    target: str = "any"
    of_any_s: float | None = None
    bound_s: float | None = None
    front: tuple[Scored, ...] = ()
    safer_than: Scored | None = None

    @property
    def strategy(self) -> str:
        """As `--strategy` takes it."""
        return spelled(self.found.best[0].configuration)

    @property
    def step_time_s(self) -> float:
        return self.found.best[0].prediction.step_time_s

    @property
    def _changes(self) -> str:
        c = self.found.best[0].configuration
        uneven = c.stage_layers is not None, c.offloads
        return ", and of changes to the best of them" if any(uneven) else ""

    @property
    def document(self) -> dict[str, Any]:
        """For `--json`."""
        found = self.found
        return {
            "strategy": self.strategy,
            "step_time_s": self.step_time_s,
            "step_time_lower_bound_s": self.bound_s,
            "considered": found.considered,
            "simulated": found.simulated,
            "refused": dict(found.refused),
            "rejected": dict(found.rejected),
            "best": [_document(s) for s in found.best],
            **({"safer_than": _document(self.safer_than)} if self.safer_than else {}),
            **({"front": [_document(s) for s in self.front]} if self.front else {}),
            **({} if self.target == "any" else {"target": self.target, "step_time_any_s": self.of_any_s}),
        }

    @property
    def _others(self) -> str:
        """How those that were not rejected were compared; where the search was stopped, some never were."""
        found = self.found
        simulated = f"simulating {found.simulated:,} step{'s' if found.simulated != 1 else ''}"
        if "bound" not in found.rejected:
            return f"others were compared by {simulated}"
        return f"the other {found.considered - sum(found.rejected.values()):,} were compared by {simulated}"

    def lines(self, *, chosen: bool, count: int = 1, answer_s: float = float("inf")) -> list[str]:
        """Of the summary, with the `count` best; `answer_s`: seconds of the plan that is the answer."""
        best, n = self.found.best[0], self.found.considered
        if chosen:
            out = [f"uniform     the fastest of {n:,} configurations that treat all layers alike{self._changes}"]
        else:
            step = time_text(best.prediction.step_time_s)
            out = [
                f"uniform     the best of {n:,} configurations that treat all layers alike takes {step}: "
                f"{in_words(best.configuration)}"
            ]
        own = best.prediction.step_time_s
        saved = f"{1 - answer_s / own:.2%}"
        if chosen and answer_s < own and saved != "0.00%":  # sums of a plan's parts end in other digits
            out.append(f"operators   laid out one by one within it: {saved} faster than {time_text(own)}")
        for s in self.found.best[1:count]:
            out.append(f"also        {time_text(s.prediction.step_time_s)}: {in_words(s.configuration)}")
        if self.safer_than is not None:
            other = self.safer_than
            out.append(
                f"risk        at most {time_text(best.prediction.time_high_s)} in 9 of 10 cases; "
                f"{in_words(other.configuration)} would take {time_text(other.prediction.step_time_s)}, at most "
                f"{time_text(other.prediction.time_high_s)}"
            )
        words = _REJECTED if self.safer_than is None else _REJECTED | {"target": "unlike those that were measured"}
        why = [f"{n:,} {words[reason]}" for reason, n in self.found.rejected.items() if n]
        if why:
            out.append(f"rejected    {', '.join(why)}; {self._others}")
        for s in self.front:
            size, step = s.prediction.allocated_bytes / 2**30, time_text(s.prediction.step_time_s)
            out.append(f"with        {size:.2f} GiB per device {step}: {in_words(s.configuration)}")
        if self.of_any_s is not None:
            more = best.prediction.step_time_s / self.of_any_s - 1
            out.append(
                f"target      {self.target}: {more:+.1%} against the fastest uniform configuration for any target "
                f"({time_text(self.of_any_s)})"
            )
        return out


def _document(s: Scored) -> dict[str, Any]:
    return {
        "strategy": spelled(s.configuration),
        "parallelism": in_words(s.configuration),
        "step_time_s": s.prediction.step_time_s,
        "peak_memory_bytes": round(s.prediction.allocated_bytes),
    }
