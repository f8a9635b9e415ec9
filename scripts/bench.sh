#!/usr/bin/env bash
# Speed, memory and the simulator, built in release. Measures; it does not pass or fail.
# `make bench BENCH_ARGS="--only idle --json"`; `--help` tells the rest.
set -euo pipefail
cd "$(dirname "$0")/.."
CARGO="${CARGO:-cargo}"
"$CARGO" build --release --quiet -p braid -p braid-lab
"$CARGO" bench -p braid-lab --bench bench --no-run --quiet
run=(scripts/with-net.sh)
case "$*" in *--only?sim*) run=() ;; esac # in virtual time, without privileges
exec "${run[@]}" "$CARGO" bench -p braid-lab --bench bench --quiet -- "$@"
