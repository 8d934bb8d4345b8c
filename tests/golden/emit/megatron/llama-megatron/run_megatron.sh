#!/bin/bash
# usage: [LAUNCHER=run_mpirun.sh] bash run_megatron.sh PRETRAIN.py [ARGUMENT…], on hosts as the launcher says
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
source "$here/megatron_arguments.sh"
script="${1:?name the pretraining script, as pretrain_gpt.py}"; shift
export CUDA_DEVICE_MAX_CONNECTIONS="${CUDA_DEVICE_MAX_CONNECTIONS:-1}"  # overlap of collectives, before Blackwell
export FORWARD="CUDA_DEVICE_MAX_CONNECTIONS ${FORWARD:-}"
exec bash "$here/${LAUNCHER:-run_torchrun.sh}" "$script" "${MEGATRON_ARGS[@]}" "$@"
