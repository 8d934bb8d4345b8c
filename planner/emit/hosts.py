"""A hosts file: the servers of a job, in a line each.

    10.0.0.11  192.1.27.6 192.2.27.6     address, and the address of each device's NIC (Ascend), NUMBER:ADDRESS where
                                         numbers do not count from 0
    node-a     slots=8                   host and number of devices, as OpenMPI's hostfiles have it

What follows # is a comment.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from planner.errors import InputError

__all__ = ["Device", "Server", "address", "check_names", "read_hosts"]

_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.\-]{0,251}[A-Za-z0-9])?")
_ZONE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.\-_]*")  # of an IPv6 address; ipaddress takes any text
_MOST_SLOTS: Final = 1024


@dataclass(frozen=True, slots=True)
class Device:
    """`ip`: of its network interface; empty where the file counts devices only."""

    number: int
    ip: str = ""


@dataclass(frozen=True, slots=True)
class Server:
    """A host by its IP address or name, with the devices that take part, in the order of their numbers."""

    server_id: str
    devices: tuple[Device, ...]

    @property
    def addressed(self) -> bool:
        """Whether the addresses of its devices are known, as a rank table needs them."""
        return all(d.ip for d in self.devices)


def read_hosts(path: Path) -> list[Server]:
    """InputError naming the line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise InputError(
            f"--hosts {path}: cannot be read ({e}); give lines of SERVER DEVICE_IP… or SERVER slots=N"
        ) from e
    servers = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if words:
            servers.append(_server(f"--hosts {path}:{number}", words))
    check_names(servers, f"--hosts {path}")
    return servers


def check_names(servers: Sequence[Server], where: str) -> None:
    """InputError where there is no server, or one name stands for two of them, or for two devices."""
    if not servers:
        raise InputError(f"{where}: names no server")
    for at, names in (
        ("server", [s.server_id for s in servers]),
        ("device", [d.ip for s in servers for d in s.devices if d.ip]),
    ):
        twice = next((n for n in names if names.count(n) > 1), None)
        if twice is not None:
            raise InputError(f"{where}: {at} {twice} is named twice")


def _server(where: str, words: Sequence[str]) -> Server:
    words = [w for w in words if not w.startswith("max_slots=")]  # OpenMPI's bound on oversubscription
    if len(words) == 2 and words[1].startswith("slots="):
        count = words[1].removeprefix("slots=")
        if not (count.isascii() and count.isdecimal()) or len(count) > 9 or not 1 <= int(count) <= _MOST_SLOTS:
            raise InputError(f"{where}: slots: expected 1 to {_MOST_SLOTS}, found {count!r}")
        if not _HOST.fullmatch(words[0]) and _address(words[0]) is None:
            raise InputError(f"{where}: expected a host's name or address, found {words[0]!r}")
        return Server(words[0], tuple(map(Device, range(int(count)))))
    devices = []
    for i, word in enumerate(words[1:]):
        head, colon, tail = word.partition(":")
        numbered = bool(colon) and head.isdecimal() and len(head) < 9 and "." in tail
        devices.append(Device(int(head) if numbered else i, address(where, tail if numbered else word)))
    return Server(address(where, words[0]), tuple(sorted(devices, key=lambda d: d.number)))


def address(where: str, text: str) -> str:
    """An IP address as it is written plainly.  InputError for anything else."""
    found = _address(text)
    if found is None:
        raise InputError(f"{where}: expected an IP address, found {text!r}")
    return found


def _address(text: str) -> str | None:
    _, percent, zone = text.partition("%")
    try:
        return str(ipaddress.ip_address(text)) if not percent or _ZONE.fullmatch(zone) else None
    except ValueError:
        return None
