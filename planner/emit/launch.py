"""The hosts of a job, and scripts that start one PyTorch process per device: `torchrun` on every host, or `mpirun` on
one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Template
from typing import Final

from planner.emit.hosts import Server
from planner.errors import InputError
from planner.planning.document import PlanDocument

__all__ = ["Hosts", "filled", "hosts_of", "launch_scripts", "meeting_of", "mpirun_hosts", "mpirun_network"]

_PER_HOST: Final = 8

_TORCHRUN: Final = Template("""#!/bin/bash
# $devices processes, $per on each of $nodes host(s).  usage: bash run_torchrun.sh SCRIPT.py|-m MODULE [ARGUMENT…]
# Of several hosts, on every one: NODE_RANK 0, 1, … and MASTER_ADDR, the address of the first.
set -euo pipefail
exec torchrun --nnodes=$nodes --nproc-per-node=$per --node-rank="$${NODE_RANK:-0}" \\
    --master-addr="$${MASTER_ADDR$meeting}" --master-port="$${MASTER_PORT:-29500}" "$$@"
""")

# Ranks count host by host (--map-by slot), as torchrun has them; processes are not bound to single cores, which
# OpenMPI does by itself and data loaders suffer from.  bash before 4.4 takes an empty array for an unset one: `options`
# is never empty.
_MPIRUN: Final = Template("""#!/bin/bash
# $devices processes by mpirun (OpenMPI), $per on each of $nodes host(s), from one of them; this folder lies at the same
# path on all.  usage: bash run_mpirun.sh SCRIPT.py|-m MODULE [ARGUMENT…]
# HOSTFILE: lines of HOST slots=$per, in place of the hosts known here.
# NCCL_SOCKET_IFNAME: the interface that hosts reach each other through, as `ip addr` shows it.
# FORWARD: names of further variables that processes on other hosts are to have.
set -euo pipefail
here="$$(cd "$$(dirname "$$0")" && pwd)"
options=(--map-by slot --bind-to none --allow-run-as-root)
master=$master
$hosts
if [ -n "$${HOSTFILE:-}" ]; then
    master="$$(awk '!/^[[:space:]]*(#|$$)/ { print $$1; exit }' "$$HOSTFILE")"
fi
$network
for name in $${FORWARD:-}; do options+=(-x "$$name"); done
export MASTER_ADDR="$${MASTER_ADDR:-$$master}"
export MASTER_PORT="$${MASTER_PORT:-29500}"
exec mpirun -n $devices "$${options[@]}" -x PATH -x MASTER_ADDR -x MASTER_PORT \\
    bash "$$here/mpi_rank.sh" python "$$@"
""")

_NEEDED: Final = """: "${NCCL_SOCKET_IFNAME:?name the network interface, as ip addr shows it}"
"""
_NETWORK: Final = """if [ -n "${NCCL_SOCKET_IFNAME:-}" ]; then
    options+=(-x NCCL_SOCKET_IFNAME="$NCCL_SOCKET_IFNAME" -mca btl_tcp_if_include "$NCCL_SOCKET_IFNAME")
fi"""

_RANK: Final = """#!/bin/bash
# Starts a command with what torch.distributed reads of its environment, from what OpenMPI tells a process.
set -euo pipefail
export RANK="${OMPI_COMM_WORLD_RANK:?run_mpirun.sh starts this script}"
export WORLD_SIZE="$OMPI_COMM_WORLD_SIZE"
export LOCAL_RANK="$OMPI_COMM_WORLD_LOCAL_RANK"
export LOCAL_WORLD_SIZE="$OMPI_COMM_WORLD_LOCAL_SIZE"
exec "$@"
"""


@dataclass(frozen=True, slots=True)
class Hosts:
    """`devices` processes, `per_host` on each host; `names`: the hosts where they are known, the first has rank 0."""

    devices: int
    per_host: int
    names: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        return self.devices // self.per_host

    @property
    def hostfile(self) -> str:
        """Lines of HOST slots=N, as OpenMPI and DeepSpeed read them; empty where the hosts are not known."""
        return "".join(f"{name} slots={self.per_host}\n" for name in self.names)


def hosts_of(plan: PlanDocument, servers: Sequence[Server]) -> Hosts:
    """`servers`: from a hosts file; without them the plan's cluster says how many devices a host has, 8 where it does
    not know.

    InputError where the devices do not fill the hosts.
    """
    devices = plan.devices
    if not servers:
        return filled(devices, plan.cluster.devices_per_server)
    if len({len(s.devices) for s in servers}) > 1:
        raise InputError("--hosts: the servers hold different numbers of devices; give each as many")
    per = len(servers[0].devices)
    if per * len(servers) != devices:
        raise InputError(f"--hosts: the plan is for {devices} devices, the servers hold {per * len(servers)}")
    return Hosts(devices, per, tuple(s.server_id for s in servers))


def filled(devices: int, per_server: int | None) -> Hosts:
    """So many devices on full hosts.  InputError where they do not fill them."""
    per = min(per_server or _PER_HOST, devices)
    if devices % per:
        raise InputError(f"plan: {devices} devices do not fill hosts of {per}; search with --nodes, or give --hosts")
    return Hosts(devices, per)


def meeting_of(hosts: Hosts) -> str:
    """What bash puts for MASTER_ADDR where it is not set: of several hosts that are not known it has to be."""
    if hosts.count > 1 and not hosts.names:
        return ":?set it to the address of the first host, on all of them"
    return f":-{hosts.names[0] if hosts.count > 1 else '127.0.0.1'}"


def launch_scripts(hosts: Hosts) -> Mapping[str, bytes]:
    """`run_torchrun.sh` and `run_mpirun.sh`, which take a script and its arguments, and what the latter needs."""
    several = hosts.count > 1
    first = hosts.names[0] if several and hosts.names else "127.0.0.1"
    values = {
        "devices": str(hosts.devices),
        "per": str(hosts.per_host),
        "nodes": str(hosts.count),
        "master": first,
        "meeting": meeting_of(hosts),
        "hosts": mpirun_hosts(hosts),
        "network": mpirun_network(hosts),
    }
    files = {
        "run_torchrun.sh": _TORCHRUN.substitute(values).encode(),
        "run_mpirun.sh": _MPIRUN.substitute(values).encode(),
        "mpi_rank.sh": _RANK.encode(),
    }
    return files | ({"hostfile": hosts.hostfile.encode()} if hosts.names else {})


def mpirun_network(hosts: Hosts) -> str:
    """Lines of bash that add to `options` the interface that hosts reach each other through; several cannot do without,
    one may name it."""
    return (_NEEDED if hosts.count > 1 else "") + _NETWORK


def mpirun_hosts(hosts: Hosts) -> str:
    """Lines of bash that add to `options` what tells mpirun the hosts: those of HOSTFILE, else those known here, of
    which `$here/hostfile` has the list; hosts that are not known have to be given."""
    command = 'if [ -n "${HOSTFILE:-}" ]; then options+=(--hostfile "$HOSTFILE"); fi'
    if hosts.names:
        listed = "-H " + ",".join(f"{name}:{hosts.per_host}" for name in hosts.names)
        if any(":" in name for name in hosts.names):  # an IPv6 address cannot be told from its number of slots
            listed = '--hostfile "$here/hostfile"'
        return f'if [ -z "${{HOSTFILE:-}}" ]; then options+=({listed}); fi\n{command}'
    if hosts.count > 1:
        return f': "${{HOSTFILE:?name a file of the hosts, lines of HOST slots=N}}"\n{command}'
    return f"# One host: mpirun starts all processes here.\n{command}"
