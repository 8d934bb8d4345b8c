"""The machine at hand: its accelerators by kind, the profile of each, and the options that plan for them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from .amd import amd
from .ascend import ascend
from .found import Device, Links, Report
from .nvidia import nvidia
from .profiles import notes_on, profile_of
from .tools import LIMIT_S

__all__ = ["Kind", "Machine", "detect", "detected"]


@dataclass(frozen=True, slots=True)
class Kind:
    """Equal accelerators: how many there are, and the packaged profile that describes them, if any does."""

    device: Device
    count: int
    profile: str | None
    description: str
    links: Links | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Machine:
    """All that was found, and what each vendor's program said."""

    kinds: tuple[Kind, ...]
    reports: tuple[Report, ...]

    @property
    def options(self) -> tuple[str, ...]:
        """The options of `planner search` for this machine; none where a kind has no profile."""
        if not self.kinds or any(kind.profile is None for kind in self.kinds):
            return ()
        counts: Counter[str] = Counter()
        for kind in self.kinds:
            counts[str(kind.profile)] += kind.count
        if len(counts) == 1:
            ((name, count),) = counts.items()
            return ("--hardware", name, "--devices", str(count))
        return ("--hardware", "+".join(f"{name}:{count}" for name, count in counts.items()))

    def document(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {
            "devices": [
                {
                    "vendor": kind.device.vendor,
                    "name": kind.device.name,
                    "count": kind.count,
                    "memory_bytes": kind.device.memory_bytes,
                    "driver": kind.device.driver,
                    "profile": kind.profile,
                    "pairs": None if kind.links is None else dict(kind.links.pairs),
                    "network_adapters": None if kind.links is None else kind.links.adapters,
                    "notes": list(kind.notes),
                }
                for kind in self.kinds
            ],
            "options": list(self.options),
            "tools": [{"tool": r.tool, "installed": r.installed, "problem": r.problem or None} for r in self.reports],
        }


def detect(limit_s: float = LIMIT_S) -> Machine:
    """The accelerators that the programs of NVIDIA, Huawei and AMD show, each asked for at most `limit_s` a call."""
    return detected((nvidia(limit_s), ascend(limit_s), amd(limit_s)))


def detected(reports: tuple[Report, ...]) -> Machine:
    """The machine that these reports describe."""
    kinds = []
    for report in reports:
        counts = Counter(report.devices)
        for device, count in counts.items():
            profile = profile_of(device)
            notes = list(report.notes)
            if profile is not None:
                notes += notes_on(device, count, profile, report.links)
            name, about = (None, "") if profile is None else (profile.name, profile.description)
            links = report.links if len(counts) == 1 else None  # the matrix is of all kinds together
            kinds.append(Kind(device, count, name, about, links, tuple(notes)))
    return Machine(tuple(kinds), reports)
