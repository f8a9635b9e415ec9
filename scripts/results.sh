#!/usr/bin/env bash
# Runs the experiments of the simulator and writes docs/results.md and its figures, from these
# results and from what else is in the directory RESULTS (default target/results): results of
# `braid lab run ID… --arm links --out RESULTS`, and of `grid`, which takes longer than all others.
# Arguments go to `braid lab run`, such as `--runs 2` for a look.
set -euo pipefail
cd "$(dirname "$0")/.."
CARGO="${CARGO:-cargo}"
RESULTS="${RESULTS:-target/results}"

"$CARGO" build --release --quiet -p braid
braid="${CARGO_TARGET_DIR:-target}/release/braid"
mapfile -t ids < <("$braid" lab list --arm sim | awk '$1 != "grid" { print $1 }')
"$braid" lab run "${ids[@]}" --arm sim --out "$RESULTS" "$@"
rm -f docs/figures/*.svg # those of experiments that are no more
"$braid" lab report "$RESULTS" --markdown docs/results.md --figures docs/figures
