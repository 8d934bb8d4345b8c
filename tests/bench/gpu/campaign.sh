#!/usr/bin/env bash
# Measures one GPU: campaign.sh smoke|main|more FOLDER [--cpu].  Results go to FOLDER (at most eight files), all output to
# FOLDER/log.txt too.  Every part has a limit of its own, and one that fails stops no other.  `--cpu` tries every part
# without a GPU, in small sizes.  Nothing of the GPU's settings is changed.
set -uo pipefail
cd "$(dirname "$0")/../../.."
mode=${1:?smoke, main or more} out=${2:?folder for the results} trial=()
[ "${3:-}" = --cpu ] && trial=(--device cpu --tiny)
python=${PYTHON:-python3}
export PYTHONUNBUFFERED=1 PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$PWD"
mkdir -p "$out"

part() { # seconds, words
  local limit=$1 begin=$SECONDS
  shift
  echo "== $* (at most $limit s)"
  timeout --kill-after=5 "$limit" "$python" -m "$@"
  local rc=$?
  echo "== rc $rc after $((SECONDS - begin)) s, $SECONDS s in all"
  return $rc
}

steps() { # seconds, words; goes on behind a configuration that ends the process
  local end=$((SECONDS + $1)) left
  for _ in 1 2 3; do
    left=$((end - SECONDS))
    [ $left -gt 20 ] || return
    part $((left + 25)) tests.bench.gpu.steps --out "$out/steps.jsonl" --traces "$out" --seconds $left --resume \
      "${@:2}" "${trial[@]}" && return
  done
}

campaign() {
  nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,power.draw,temperature.gpu --format=csv 2>&1
  "$python" -V
  if [ "$mode" = smoke ]; then
    # These only show what works: they may share the device.
    part 50 tests.bench.gpu.runtime --out "$out" --seconds 40 --quick --only operators,models "${trial[@]}" &
    part 50 tests.bench.gpu.runtime --out "$out" --quick --only calibration "${trial[@]}" &
    part 50 tests.bench.gpu.steps --out "$out/steps.jsonl" --traces "$out" --seconds 35 --smoke "${trial[@]}"
    wait
    part 62 tests.bench.gpu.kernels --out "$out/kernels.jsonl" --seconds 50 --quiet "${trial[@]}"
  elif [ "$mode" = more ]; then
    part 50 tests.bench.gpu.kernels --out "$out/kernels.jsonl" --seconds 42 --quiet \
      --only "aligned products,mixed types,cores of attention" "${trial[@]}"
    part 75 tests.bench.gpu.breakdown --out "$out/breakdown.jsonl" --seconds 60 "${trial[@]}"
    steps 60 --more
    part 40 tests.bench.gpu.sustained --out "$out/sustained.jsonl" --seconds 8 "${trial[@]}"
  else
    part 80 tests.bench.gpu.runtime --out "$out" --only calibration "${trial[@]}"
    part 40 tests.bench.gpu.runtime --out "$out" --seconds 28 --only models "${trial[@]}"
    steps 350
    # What the shorter run leaves out.
    part 35 tests.bench.gpu.kernels --out "$out/kernels.jsonl" --seconds 28 --quiet \
      --only "compiled,copies,products of other types" "${trial[@]}"
  fi
}

campaign 2>&1 | tee -a "$out/log.txt"
