#!/usr/bin/env bash
# Runs every fuzz target for FUZZ_SECONDS.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds="${FUZZ_SECONDS:-60}"
if ! command -v cargo-fuzz >/dev/null || ! rustup toolchain list 2>/dev/null | grep -q nightly; then
    echo "fuzz: needs cargo-fuzz and a nightly toolchain:" >&2
    echo "fuzz:   rustup toolchain install nightly && cargo install cargo-fuzz" >&2
    exit 1
fi
for target in $(cargo +nightly fuzz list); do
    echo "== $target" >&2
    cargo +nightly fuzz run "$target" -- -max_total_time="$seconds"
done
