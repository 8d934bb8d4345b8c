#!/bin/bash
# Starts a command with what torch.distributed reads of its environment, from what OpenMPI tells a process.
set -euo pipefail
export RANK="${OMPI_COMM_WORLD_RANK:?run_mpirun.sh starts this script}"
export WORLD_SIZE="$OMPI_COMM_WORLD_SIZE"
export LOCAL_RANK="$OMPI_COMM_WORLD_LOCAL_RANK"
export LOCAL_WORLD_SIZE="$OMPI_COMM_WORLD_LOCAL_SIZE"
exec "$@"
