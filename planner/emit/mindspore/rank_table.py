"""Rank tables (HCCL, schema 1.0): which rank runs on which device of which server.

One server takes 1, 2, 4 or 8 devices, several take 8 each.  On the Ascend 910A two or four devices of a server must lie
in one of its halves, 0-3 or 4-7.  Ranks follow the servers in the lexicographic order of their `server_id`, as texts,
whatever the order they are listed in.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from planner.emit.hosts import Device, Server, address, check_names
from planner.emit.launch import Hosts
from planner.errors import InputError

__all__ = ["check_counts", "check_servers", "rank_table", "read_rank_table"]

PER_SERVER: Final = 8
_HALF: Final = 4


def check_counts(hosts: Hosts) -> None:
    """InputError where HCCL would refuse so many devices on so many servers, whether a rank table names them or not:
    a job has 1, 2, 4 or 8 devices of one server, or all of several (which are 8, or on later ones a multiple)."""
    per = hosts.per_host
    if per % PER_SERVER == 0 or (hosts.count == 1 and per in (1, 2, 4)):
        return
    kind = "1, 2, 4 or 8 devices of one server" if hosts.count == 1 else "all 8 devices of each of several servers"
    servers = "1 server" if hosts.count == 1 else f"{hosts.count} servers"
    raise InputError(
        f"plan: is for {servers} of {per} Ascend devices; HCCL takes {kind}: "
        "search with another --devices, or with as many --nodes as there are servers of 8"
    )


def check_servers(servers: Sequence[Server], where: str, *, halves: bool = False) -> None:
    """InputError where HCCL would refuse them.  `halves`: devices 0-3 and 4-7 are on different networks (910A)."""
    check_names(servers, where)
    allowed = (1, 2, 4, PER_SERVER) if len(servers) == 1 else (PER_SERVER,)
    for s in servers:
        numbers = [d.number for d in s.devices]
        if len(numbers) not in allowed:
            kind = "one server takes 1, 2, 4 or 8" if len(servers) == 1 else "each of several servers takes 8"
            raise InputError(f"{where}: server {s.server_id} has {len(numbers)} devices; {kind}")
        if len(set(numbers)) != len(numbers) or max(numbers) >= PER_SERVER:
            raise InputError(f"{where}: server {s.server_id}: expected distinct devices 0 to 7, found {numbers}")
        if not s.addressed:
            raise InputError(f"{where}: server {s.server_id}: a rank table needs the address of each device's NIC")
        if halves and len(numbers) in (2, _HALF) and len({n // _HALF for n in numbers}) > 1:
            raise InputError(
                f"{where}: server {s.server_id}: devices {numbers} lie in both halves of an Ascend 910A; take them "
                "from 0-3 or from 4-7"
            )


def rank_table(servers: Iterable[Server]) -> dict[str, Any]:
    """The table as HCCL reads it."""
    ordered = sorted(servers, key=lambda s: s.server_id)
    entries, rank = [], 0
    for s in ordered:
        devices = []
        for d in s.devices:
            devices.append({"device_id": str(d.number), "device_ip": d.ip, "rank_id": str(rank)})
            rank += 1
        entries.append({"server_id": s.server_id, "device": devices, "host_nic_ip": "reserve"})
    return {"version": "1.0", "server_count": str(len(entries)), "server_list": entries, "status": "completed"}


def read_rank_table(path: Path, *, halves: bool = False) -> list[Server]:
    """Servers of a table, which must be one that `rank_table` could have made.  InputError naming what is wrong."""
    where = f"rank table {path}"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as e:
        raise InputError(f"{where}: cannot be read ({e})") from e
    except (ValueError, RecursionError) as e:
        raise InputError(f"{where}: is not JSON ({e})") from e
    if not isinstance(document, dict) or document.get("version") != "1.0":
        found = document.get("version") if isinstance(document, dict) else type(document).__name__
        raise InputError(f"{where}: expected version 1.0, found {found!r}")
    if document.get("status") != "completed":
        raise InputError(f"{where}: expected status completed, found {document.get('status')!r}")
    listed = document.get("server_list")
    if not isinstance(listed, list) or document.get("server_count") != str(len(listed)):
        raise InputError(f"{where}: server_count {document.get('server_count')!r} does not count server_list")
    servers, ranks = [], []
    for entry in listed:
        server, own = _server(where, entry)
        servers.append(server)
        ranks.append(own)
    check_servers(servers, where, halves=halves)
    expected = 0
    for server, own in sorted(zip(servers, ranks, strict=True), key=lambda x: x[0].server_id):
        for device, rank in zip(server.devices, own, strict=True):
            if rank != expected:
                raise InputError(
                    f"{where}: device {device.number} of server {server.server_id} has rank {rank}, expected "
                    f"{expected}: ranks follow the order of server_id as text, then of devices"
                )
            expected += 1
    return servers


def _server(where: str, entry: object) -> tuple[Server, list[int]]:
    if not isinstance(entry, dict) or not isinstance(entry.get("device"), list):
        raise InputError(f"{where}: server_list: expected servers with a list of devices, found {entry!r:.80}")
    name = address(where, str(entry.get("server_id")))
    found = []
    for d in entry["device"]:
        fields = [str(d.get(k)) for k in ("device_id", "rank_id")] if isinstance(d, dict) else [""]
        if not all(v.isdecimal() and len(v) < 9 for v in fields):
            raise InputError(f"{where}: server {name}: expected devices with device_id and rank_id, found {d!r:.80}")
        found.append((int(fields[0]), int(fields[1]), address(where, str(d.get("device_ip")))))
    found.sort()
    return Server(name, tuple(Device(n, ip) for n, _, ip in found)), [r for _, r, _ in found]
