#!/usr/bin/env bash
# Benchmarks, built in release. They measure; they fail only where a transfer does. Arguments:
# the number of interleaved pairs of the speed benchmark.
set -euo pipefail
cd "$(dirname "$0")/.."
CARGO="${CARGO:-cargo}"
"$CARGO" bench -p braid --bench speed --bench memory --no-run --quiet
scripts/with-net.sh "$CARGO" bench -p braid --bench speed --quiet -- "$@"
scripts/with-net.sh "$CARGO" bench -p braid --bench memory --quiet
