#!/usr/bin/env bash
# Speed and memory, built in release. Measures; it does not pass or fail.
# `make bench BENCH_ARGS="--only idle --json"`; `--help` tells the rest.
set -euo pipefail
cd "$(dirname "$0")/.."
CARGO="${CARGO:-cargo}"
"$CARGO" bench -p braid --bench bench --no-run --quiet
exec scripts/with-net.sh "$CARGO" bench -p braid --bench bench --quiet -- "$@"
