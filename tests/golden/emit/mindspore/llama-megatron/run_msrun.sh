#!/bin/bash
# All devices by msrun, without a rank table
# usage: bash run_msrun.sh SCRIPT.py [ARGUMENT…]
set -euo pipefail
script="$(realpath "$1")"; shift
if [ -n "${HOSTFILE:-}" ]; then HOSTFILE="$(realpath "$HOSTFILE")"; fi  # as the caller names it
cd "$(dirname "$0")"
# 1 server(s), 8 devices each.  On every server: MASTER_ADDR is the address of the first,
# NODE_RANK 0, 1, …
master="${MASTER_ADDR:-127.0.0.1}"
node="${NODE_RANK:-0}"
exec msrun --worker_num=8 --local_worker_num=8 --node_rank="$node" \
    --master_addr="$master" --master_port="${MASTER_PORT:-8118}" --log_dir=msrun_log --join=True \
    --cluster_time_out=300 "$script" "$@"
