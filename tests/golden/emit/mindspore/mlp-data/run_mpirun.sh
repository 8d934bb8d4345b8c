#!/bin/bash
# All devices by mpirun
# usage: bash run_mpirun.sh SCRIPT.py [ARGUMENT…]
set -euo pipefail
script="$(realpath "$1")"; shift
cd "$(dirname "$0")"
# HCCL without a rank table, OpenMPI starts the processes.
export GRAPH_OP_RUN=1
export HCCL_WHITELIST_DISABLE=1
hosts=(-x PATH )
if [ -n "${HOSTFILE:-}" ]; then hosts=(-x PATH --hostfile "$HOSTFILE"); fi  # lines of HOST slots=N
exec mpirun -n 8 "${hosts[@]}" --allow-run-as-root --output-filename log_output --merge-stderr-to-stdout \
    -x GRAPH_OP_RUN -x HCCL_WHITELIST_DISABLE python "$script" "$@"
