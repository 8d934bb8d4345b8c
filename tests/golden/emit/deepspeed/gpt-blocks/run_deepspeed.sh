#!/bin/bash
# 4 processes by DeepSpeed's launcher, 4 on each of 1 host(s), from one of them.
# usage: bash run_deepspeed.sh SCRIPT.py [ARGUMENT…]; the script calls deepspeed.add_config_arguments(parser)
# HOSTFILE: lines of HOST slots=4.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
script="${1:?name the training script}"; shift
hostfile="${HOSTFILE:-}"
options=(--num_gpus 4)
if [ -n "$hostfile" ]; then options+=(--hostfile "$hostfile" --num_nodes 1); fi
# One host: without a hostfile the launcher starts all processes here.
exec deepspeed "${options[@]}" --master_port "${MASTER_PORT:-29500}" "$script" \
    --deepspeed --deepspeed_config "$here/ds_config.json" "$@"
