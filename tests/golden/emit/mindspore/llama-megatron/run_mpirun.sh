#!/bin/bash
# All devices by mpirun
# usage: bash run_mpirun.sh SCRIPT.py [ARGUMENT…]
set -euo pipefail
script="$(realpath "$1")"; shift
if [ -n "${HOSTFILE:-}" ]; then HOSTFILE="$(realpath "$HOSTFILE")"; fi  # as the caller names it
cd "$(dirname "$0")"
# HCCL without a rank table, OpenMPI starts the processes.
export GRAPH_OP_RUN=1
export HCCL_WHITELIST_DISABLE=1
here="$PWD"
options=(-x PATH)  # bash before 4.4 takes an empty array for an unset one
# One host: mpirun starts all processes here.
if [ -n "${HOSTFILE:-}" ]; then options+=(--hostfile "$HOSTFILE"); fi
exec mpirun -n 8 "${options[@]}" --allow-run-as-root --output-filename log_output --merge-stderr-to-stdout \
    -x GRAPH_OP_RUN -x HCCL_WHITELIST_DISABLE python "$script" "$@"
