"""A network on this machine alone: a bridge, and a network namespace for each host (Linux, root)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

__all__ = ["Host", "Network", "network"]


def _ip(*words: str, check: bool = True) -> None:
    subprocess.run(["ip", *words], check=check, capture_output=not check)


@dataclass(frozen=True)
class Host:
    """`within`: the words before a command that runs on the host."""

    name: str
    address: str

    @property
    def within(self) -> list[str]:
        return ["ip", "netns", "exec", self.name]

    def cut(self) -> None:
        """Nothing reaches the host, and nothing leaves it: packets are lost, connections are not told."""
        _ip("link", "set", f"{self.name}b", "down")

    def join(self) -> None:
        _ip("link", "set", f"{self.name}b", "up")


@dataclass
class Network:
    """`address`: of this machine, on the bridge."""

    bridge: str
    prefix: str
    hosts: list[Host] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"{self.prefix}.1"

    def host(self) -> Host:
        number = len(self.hosts) + 2
        host = Host(f"{self.bridge}h{number}", f"{self.prefix}.{number}")
        near, far = f"{host.name}b", f"{host.name}e"
        _ip("netns", "add", host.name)
        self.hosts.append(host)
        _ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", host.name)
        _ip("link", "set", near, "master", self.bridge, "up")
        _ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", far)
        _ip("-n", host.name, "link", "set", far, "up")
        _ip("-n", host.name, "link", "set", "lo", "up")
        return host


@contextmanager
def network() -> Iterator[Network]:
    """It is gone with the block, as are its hosts; processes on them are the caller's to end before."""
    number = os.getpid() % 200
    made = Network(f"pn{number}", f"10.213.{number}")
    _ip("link", "add", made.bridge, "type", "bridge")
    try:
        _ip("addr", "add", f"{made.address}/24", "dev", made.bridge)
        _ip("link", "set", made.bridge, "up")
        yield made
    finally:
        for host in made.hosts:
            _ip("netns", "del", host.name, check=False)
            _ip("link", "del", f"{host.name}b", check=False)
        _ip("link", "del", made.bridge, check=False)
