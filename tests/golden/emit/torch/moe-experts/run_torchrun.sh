#!/bin/bash
# 4 processes, 4 on each of 1 node(s).  Of several, on every node: MASTER_ADDR, NODE_RANK 0, 1, …
set -euo pipefail
exec torchrun --nnodes=1 --nproc-per-node=4 --node-rank="${NODE_RANK:-0}" \
    --master-addr="${MASTER_ADDR:-127.0.0.1}" --master-port="${MASTER_PORT:-29500}" "$@"
