"""What the vendors' programs say of a machine: devices, their links, and the report of all."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Device", "Links", "Report"]


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator, as its vendor's program describes it; `memory_bytes` is None where that says nothing."""

    vendor: str
    name: str
    memory_bytes: int | None
    driver: str


@dataclass(frozen=True, slots=True)
class Links:
    """How the accelerators of a vendor are joined.

    Attributes:
        pairs: the kind of link of every two devices ("NV18", "PHB", "HCCS" …) and how many pairs have it, most first.
        adapters: network adapters beside them.
    """

    pairs: tuple[tuple[str, int], ...] = ()
    adapters: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """What one vendor's program said.

    Attributes:
        tool: the program.
        installed: whether it is on the PATH.
        problem: why it found nothing, or empty.
        devices: what it found, in its order.
        links: how they are joined, None where nothing says so.
        notes: sentences about what was found.
    """

    tool: str
    installed: bool
    problem: str = ""
    devices: tuple[Device, ...] = ()
    links: Links | None = None
    notes: tuple[str, ...] = ()
