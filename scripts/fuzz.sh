#!/usr/bin/env bash
# Runs every fuzz target for FUZZ_SECONDS: guided by coverage where cargo-bolero and a nightly
# toolchain are installed, otherwise on random input.
set -euo pipefail
cd "$(dirname "$0")/.."
CARGO="${CARGO:-cargo}"
seconds="${FUZZ_SECONDS:-60}"

if command -v cargo-bolero >/dev/null && rustup toolchain list 2>/dev/null | grep -q nightly; then
    "$CARGO" test -p braid-fuzz --test wire -- --list --format terse \
        | sed -n 's/: test$//p' \
        | while read -r target; do
            echo "== $target" >&2
            "$CARGO" +nightly bolero test -p braid-fuzz --test wire --profile fuzz \
                --time "${seconds}s" "$target" </dev/null
        done
else
    echo "fuzz: random input only; guided by coverage with: rustup toolchain install nightly &&" >&2
    echo "fuzz: cargo install cargo-bolero" >&2
    BOLERO_RANDOM_TEST_TIME_MS=$((seconds * 1000)) \
        "$CARGO" test -p braid-fuzz --profile fuzz -- --test-threads=1
fi
