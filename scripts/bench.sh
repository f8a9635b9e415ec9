#!/usr/bin/env bash
# Benchmarks, built in release. They measure; they do not pass or fail.
set -euo pipefail
cd "$(dirname "$0")/.."
CARGO="${CARGO:-cargo}"
"$CARGO" bench --workspace --no-run --quiet
exec scripts/with-net.sh "$CARGO" bench --workspace --quiet -- "$@"
