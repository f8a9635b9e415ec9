#!/usr/bin/env bash
# Runs the experiments of the simulator and writes docs/results.md and its figures, from these
# results and from what else is in the directory RESULTS (default target/results): results of
# `braid-lab run ID… --backend links --out RESULTS`, and of `grid`, which takes longer than all others.
# Arguments go to `braid-lab run`, such as `--runs 2` for a look.
set -euo pipefail
cd "$(dirname "$0")/.."
CARGO="${CARGO:-cargo}"
RESULTS="${RESULTS:-target/results}"

"$CARGO" build --release --quiet -p braid-lab
lab="${CARGO_TARGET_DIR:-target}/release/braid-lab"
mapfile -t ids < <("$lab" list --backend sim | awk '$1 != "grid" { print $1 }')
"$lab" run "${ids[@]}" --backend sim --out "$RESULTS" "$@"
rm -f docs/figures/*.svg # those of experiments that are no more
"$lab" report "$RESULTS" --markdown docs/results.md --figures docs/figures
