#!/bin/bash
# 4 processes by mpirun (OpenMPI), 4 on each of 1 host(s), from one of them; this folder lies at the same
# path on all.  usage: bash run_mpirun.sh SCRIPT.py|-m MODULE [ARGUMENT…]
# HOSTFILE: lines of HOST slots=4, in place of the hosts known here.
# NCCL_SOCKET_IFNAME: the interface that hosts reach each other through, as `ip addr` shows it.
# FORWARD: names of further variables that processes on other hosts are to have.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
options=(--map-by slot --bind-to none --allow-run-as-root)
master=127.0.0.1
# One host: mpirun starts all processes here.
if [ -n "${HOSTFILE:-}" ]; then options+=(--hostfile "$HOSTFILE"); fi
if [ -n "${HOSTFILE:-}" ]; then
    master="$(awk '!/^[[:space:]]*(#|$)/ { print $1; exit }' "$HOSTFILE")"
fi
if [ -n "${NCCL_SOCKET_IFNAME:-}" ]; then
    options+=(-x NCCL_SOCKET_IFNAME="$NCCL_SOCKET_IFNAME" -mca btl_tcp_if_include "$NCCL_SOCKET_IFNAME")
fi
for name in ${FORWARD:-}; do options+=(-x "$name"); done
export MASTER_ADDR="${MASTER_ADDR:-$master}"
export MASTER_PORT="${MASTER_PORT:-29500}"
exec mpirun -n 4 "${options[@]}" -x PATH -x MASTER_ADDR -x MASTER_PORT \
    bash "$here/mpi_rank.sh" python "$@"
