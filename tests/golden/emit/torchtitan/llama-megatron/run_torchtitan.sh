#!/bin/bash
# usage: TITAN_MODEL=llama3 TITAN_CONFIG=llama3_8b [LAUNCHER=run_mpirun.sh] bash run_torchtitan.sh [OPTION…]
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
: "${TITAN_MODEL:?name a model of torchtitan, as llama3}" "${TITAN_CONFIG:?name its configuration, as llama3_8b}"
export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}" TITAN_MODEL TITAN_CONFIG
export FORWARD="PYTHONPATH TITAN_MODEL TITAN_CONFIG ${FORWARD:-}"
exec bash "$here/${LAUNCHER:-run_torchrun.sh}" -m torchtitan.train --module planner_torchtitan --config planned "$@"
