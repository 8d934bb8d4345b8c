"""Scripts that start one process per device: `msrun`, the loop over a rank table, and `mpirun`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from string import Template
from typing import Final

from planner.emit.launch import Hosts, meeting_of, mpirun_hosts, mpirun_network

__all__ = ["launch_scripts"]

_HEAD: Final = """#!/bin/bash
# $title
# usage: bash $name SCRIPT.py [ARGUMENT…]
set -euo pipefail
script="$$(realpath "$$1")"; shift
if [ -n "$${HOSTFILE:-}" ]; then HOSTFILE="$$(realpath "$$HOSTFILE")"; fi  # as the caller names it
cd "$$(dirname "$$0")"
"""

_MSRUN: Final = """# $servers server(s), $per devices each.  On every server: MASTER_ADDR is the address of the first,
# NODE_RANK 0, 1, …
master="$${MASTER_ADDR$meeting}"
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
here="$$PWD"
options=(-x PATH)  # bash before 4.4 takes an empty array for an unset one
$hosts
exec mpirun -n $devices "$${options[@]}" --allow-run-as-root --output-filename log_output --merge-stderr-to-stdout \\
    -x GRAPH_OP_RUN -x HCCL_WHITELIST_DISABLE python "$$script" "$$@"
"""

_MPI_GPU: Final = """# NCCL_SOCKET_IFNAME: the interface that servers reach each other through; one server needs none.
here="$$PWD"
options=(-x PATH)  # bash before 4.4 takes an empty array for an unset one
$hosts
$network
exec mpirun -n $devices "$${options[@]}" --allow-run-as-root --output-filename log_output --merge-stderr-to-stdout \\
    python "$$script" "$$@"
"""


def launch_scripts(hosts: Hosts, *, numbers: Sequence[int], gpu: bool, table: bool) -> Mapping[str, str]:
    """File name → script, and the hostfile where hosts are known.

    `hosts`: in the order of ranks; `numbers`: the devices of each; `gpu`: NCCL rather than HCCL; `table`: a rank table
    is written beside, which the loop over it and the cluster script read.
    """
    values = {
        "devices": str(hosts.devices),
        "per": str(hosts.per_host),
        "servers": str(hosts.count),
        "numbers": " ".join(map(str, numbers)),
        "addresses": " ".join(shlex.quote(a) for a in hosts.names),
        "hosts": mpirun_hosts(hosts),
        "network": mpirun_network(hosts),
        "meeting": meeting_of(hosts),
    }
    parts = {"run_msrun.sh": ("All devices by msrun, without a rank table", _MSRUN)}
    if gpu:
        parts["run_mpirun.sh"] = ("All GPUs by mpirun", _MPI_GPU)
    else:
        parts["run_mpirun.sh"] = ("All devices by mpirun", _MPI_ASCEND)
        if table:
            parts["run_rank_table.sh"] = ("One process per device of this server, by rank_table.json", _LOOP)
            if hosts.count > 1:
                parts["run_cluster.sh"] = ("All servers of the rank table", _CLUSTER)
    scripts = {
        name: Template(_HEAD + body).substitute(values, title=title, name=name) for name, (title, body) in parts.items()
    }
    return scripts | ({"hostfile": hosts.hostfile} if hosts.names else {})
