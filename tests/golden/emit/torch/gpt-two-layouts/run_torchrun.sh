#!/bin/bash
# 4 processes, 4 on each of 1 host(s).  usage: bash run_torchrun.sh SCRIPT.py|-m MODULE [ARGUMENT…]
# Of several hosts, on every one: NODE_RANK 0, 1, … and MASTER_ADDR, the address of the first.
set -euo pipefail
exec torchrun --nnodes=1 --nproc-per-node=4 --node-rank="${NODE_RANK:-0}" \
    --master-addr="${MASTER_ADDR:-127.0.0.1}" --master-port="${MASTER_PORT:-29500}" "$@"
