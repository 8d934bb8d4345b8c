"""The machine that is planned for: a hardware profile, with so many devices."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from planner.errors import OptionError
from planner.library.table import Table
from planner.library.wording import worded
from planner.requests.values import profile_of

if TYPE_CHECKING:
    from planner.cost_models import HardwareProfile

__all__ = ["Machine", "machines", "settled_machine"]

HARDWARE = "a100-80"  # what `planner search` plans for by default


@dataclass(frozen=True)
class Machine:
    """A hardware profile by its name (`planner.machines()` lists them) or its TOML file, with devices and servers.

    hardware  the name or path of the profile
    devices   the number of devices; None: the call gives it
    nodes     the number of servers; None: as many as full servers need

    >>> planner.Machine("h100", devices=64)
    Machine(hardware='h100', devices=64, nodes=None)
    """

    hardware: str = HARDWARE
    devices: int | None = None
    nodes: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "hardware", os.fspath(self.hardware))

    @cached_property
    def profile(self) -> HardwareProfile:
        """All numbers of the profile, with their sources.  InputError where there is no such profile or it is wrong."""
        return worded(profile_of)(self.hardware)

    @property
    def description(self) -> str:
        """One line that says what the machine is."""
        return self.profile.description

    @property
    def memory(self) -> int | None:
        """Bytes of each device that a plan may use; None where the profile says nothing of it."""
        from planner.cost_models import usable_memory_bytes

        return usable_memory_bytes(self.profile)


def machines() -> Table:
    """The packaged hardware profiles: name, description, usable bytes of memory of a device, devices of a server."""
    from planner.cost_models import profile_names

    rows = []
    for name in profile_names():
        machine = Machine(name)
        server = machine.profile.server
        rows.append((name, machine.description, machine.memory, None if server is None else server.devices))
    return Table.of(("name", "description", "memory_bytes", "devices_per_server"), rows)


def settled_machine(
    machine: Machine | str | None, devices: int | None, hardware: str | Machine | None, nodes: int | None = None
) -> Machine:
    """One machine of what a call says in two ways.  OptionError where these differ."""
    if isinstance(hardware, Machine):
        if machine is not None:
            raise OptionError("machine and hardware: both give a machine; keep one")
        machine, hardware = hardware, None
    if isinstance(machine, str | os.PathLike):
        machine = Machine(machine)
    if machine is None:
        machine = Machine() if hardware is None else Machine(hardware)
    elif not isinstance(machine, Machine):
        raise OptionError(f"machine: expected a planner.Machine, found {machine!r:.60}; give a number as devices=…")
    elif hardware is not None and os.fspath(hardware) != machine.hardware:
        raise OptionError(f"hardware={hardware}: the machine is {machine.hardware}; keep one")
    for name, given, own in (("devices", devices, machine.devices), ("nodes", nodes, machine.nodes)):
        if None not in (given, own) and given != own:
            raise OptionError(f"{name}={given}: the machine has {own}; keep one")
    return Machine(
        machine.hardware,
        machine.devices if devices is None else devices,
        machine.nodes if nodes is None else nodes,
    )
