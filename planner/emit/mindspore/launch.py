"""Scripts that start one process per device: `msrun`, the loop over a rank table, and `mpirun`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from string import Template
from typing import Final

from planner.emit.hosts import Server
from planner.emit.mindspore.rank_table import PER_SERVER
from planner.errors import InputError
from planner.planning.document import PlanDocument

__all__ = ["devices_per_server", "launch_scripts"]

_HEAD: Final = """#!/bin/bash
# $title
# usage: bash $name SCRIPT.py [ARGUMENT…]
set -euo pipefail
script="$$(realpath "$$1")"; shift
cd "$$(dirname "$$0")"
"""

_MSRUN: Final = """# $servers server(s), $per devices each.  On every server: MASTER_ADDR is the address of the first,
# NODE_RANK 0, 1, …
master="$${MASTER_ADDR:-127.0.0.1}"
node="$${NODE_RANK:-0}"
exec msrun --worker_num=$devices --local_worker_num=$per --node_rank="$$node" \\
    --master_addr="$$master" --master_port="$${MASTER_PORT:-8118}" --log_dir=msrun_log --join=True \\
    --cluster_time_out=300 "$$script" "$$@"
"""

_LOOP: Final = """# Ranks $$RANK_START to $$RANK_START + $per - 1 on this server; on the n-th server of rank_table.json
# (from 0) RANK_START is n * $per.
export RANK_TABLE_FILE="$$PWD/rank_table.json"
export RANK_SIZE=$devices
start="$${RANK_START:-0}"
pids=()
i=0
for device in $numbers; do
    export DEVICE_ID="$$device"
    export RANK_ID=$$((start + i))
    mkdir -p "device$$DEVICE_ID"
    (cd "device$$DEVICE_ID" && env > env.log && exec python "$$script" "$$@" > train.log 2>&1) &
    pids+=("$$!")
    i=$$((i + 1))
done
status=0
for pid in "$${pids[@]}"; do wait "$$pid" || status=$$?; done
exit "$$status"
"""

_CLUSTER: Final = """# From one host, over ssh, on every server; this folder lies at the same path on all.
rank=0
pids=()
for server in $addresses; do
    arguments="$$(printf ' %q' "$$script" "$$@")"
    ssh "$$server" "cd $$(printf %q "$$PWD") && RANK_START=$$rank bash run_rank_table.sh$$arguments" &
    pids+=("$$!")
    rank=$$((rank + $per))
done
status=0
for pid in "$${pids[@]}"; do wait "$$pid" || status=$$?; done
exit "$$status"
"""

_MPI_ASCEND: Final = """# HCCL without a rank table, OpenMPI starts the processes.
export GRAPH_OP_RUN=1
export HCCL_WHITELIST_DISABLE=1
$hosts
exec mpirun -n $devices "$${hosts[@]}" --allow-run-as-root --output-filename log_output --merge-stderr-to-stdout \\
    -x GRAPH_OP_RUN -x HCCL_WHITELIST_DISABLE python "$$script" "$$@"
"""

_MPI_GPU: Final = """# NCCL_SOCKET_IFNAME: the interface that servers reach each other through.
interface="$${NCCL_SOCKET_IFNAME:?name the network interface, as ip addr shows it}"
$hosts
exec mpirun -n $devices "$${hosts[@]}" --allow-run-as-root --output-filename log_output --merge-stderr-to-stdout \\
    -x NCCL_SOCKET_IFNAME="$$interface" -mca btl_tcp_if_include "$$interface" python "$$script" "$$@"
"""

# bash before 4.4 takes an empty array for an unset one: -x is set in any case.
_HOSTS: Final = """hosts=(-x PATH {})
if [ -n "${{HOSTFILE:-}}" ]; then hosts=(-x PATH --hostfile "$HOSTFILE"); fi  # lines of HOST slots=N"""


def launch_scripts(
    *, devices: int, per_server: int, numbers: Sequence[int], addresses: Sequence[str], gpu: bool, table: bool
) -> Mapping[str, str]:
    """File name → script, for `devices` processes, `per_server` on each server.

    `numbers`: the devices of a server; `addresses`: the servers where they are known; `gpu`: NCCL rather than HCCL;
    `table`: a rank table is written beside, which the loop over it and the cluster script read.
    """
    servers = devices // per_server
    slots = ",".join(f"{a}:{per_server}" for a in addresses)
    values = {
        "devices": str(devices),
        "per": str(per_server),
        "servers": str(servers),
        "numbers": " ".join(map(str, numbers)),
        "addresses": " ".join(shlex.quote(a) for a in addresses),
        "hosts": _HOSTS.format(f"-H {slots}" if slots else ""),
    }
    parts = {"run_msrun.sh": ("All devices by msrun, without a rank table", _MSRUN)}
    if gpu:
        parts["run_mpirun.sh"] = ("All GPUs by mpirun", _MPI_GPU)
    else:
        parts["run_mpirun.sh"] = ("All devices by mpirun", _MPI_ASCEND)
        if table:
            parts["run_rank_table.sh"] = ("One process per device of this server, by rank_table.json", _LOOP)
            if servers > 1:
                parts["run_cluster.sh"] = ("All servers of the rank table", _CLUSTER)
    return {
        name: Template(_HEAD + body).substitute(values, title=title, name=name) for name, (title, body) in parts.items()
    }


def devices_per_server(plan: PlanDocument, servers: Sequence[Server]) -> int:
    """`servers`: from a hosts file; none: as the plan's cluster has them.

    InputError where the servers do not hold the plan's devices, or each another number.
    """
    devices = plan.devices
    if not servers:
        per_server = min(plan.cluster.devices_per_server or PER_SERVER, devices)
        if devices % per_server:
            raise InputError(
                f"plan: {devices} devices do not fill servers of {per_server}; search with --nodes, or give --hosts"
            )
        return per_server
    if len({len(s.devices) for s in servers}) > 1:
        raise InputError("--hosts: the servers hold different numbers of devices; give each as many")
    held = sum(len(s.devices) for s in servers)
    if held != devices:
        raise InputError(f"--hosts: the plan is for {devices} devices, the servers hold {held}")
    return len(servers[0].devices)
