"""The machine at hand: its accelerators by kind, the profile of each, and the options that plan for them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from .amd import amd
from .ascend import ascend
from .found import Device, Links, Report
from .nvidia import nvidia
from .profiles import memory_differs, notes_on, profile_of, usable_gibibytes
from .tools import LIMIT_S

__all__ = ["Kind", "Machine", "detect", "detected"]


@dataclass(frozen=True, slots=True)
class Kind:
    """Equal accelerators: how many there are, and the packaged profile that describes them, if any does.

    `memory_differs`: whether they have another memory than the profile, of which `usable_gibibytes` is left to a plan.
    """

    device: Device
    count: int
    profile: str | None
    description: str
    links: Links | None
    notes: tuple[str, ...]
    memory_differs: bool = False
    usable_gibibytes: int | None = None


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
            hardware = next(iter(counts))
        else:
            hardware = "+".join(f"{name}:{count}" for name, count in counts.items())
        limits = [kind.usable_gibibytes for kind in self.kinds if kind.usable_gibibytes is not None]
        limit = ("--memory-limit", f"{min(limits)}GiB") if any(kind.memory_differs for kind in self.kinds) else ()
        return ("--hardware", hardware, "--devices", str(counts.total()), *limit)

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
        notes = list(report.notes)  # of all kinds together, and said of the first
        links = report.links if len(counts) == 1 else None  # the matrix is of all kinds together
        for device, count in counts.items():
            profile = profile_of(device)
            if profile is None:
                kinds.append(Kind(device, count, None, "", links, tuple(notes)))
            else:
                notes += notes_on(device, count, profile, report.links)
                kinds.append(
                    Kind(
                        device, count, profile.name, profile.description, links, tuple(notes),
                        memory_differs(device, profile), usable_gibibytes(device, profile),
                    )
                )  # fmt: skip
            notes = []
    return Machine(tuple(kinds), reports)
