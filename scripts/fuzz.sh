#!/usr/bin/env bash
# Runs every fuzz target for FUZZ_SECONDS each: guided by coverage if cargo-bolero is installed
# (cargo install cargo-bolero --no-default-features), else on random input.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds="${FUZZ_SECONDS:-60}"
# The profile keeps overflow checks and debug assertions, which an optimised build would drop.
if command -v cargo-bolero >/dev/null; then
    for target in $(cargo test -q -p braid-fuzz -- --list | sed -n 's/: test$//p'); do
        echo "== $target" >&2
        # Coverage instrumentation is unstable in rustc; the flag lets a stable toolchain use it.
        # Inputs may be long from the start: a sequence of steps is.
        cargo bolero test --rustc-bootstrap --sanitizer NONE -T "${seconds}s" \
            --max-input-length 4096 --engine-args=-len_control=0 -p braid-fuzz "$target"
    done
else
    BOLERO_RANDOM_TEST_TIME_MS=$((seconds * 1000)) cargo test --profile fuzz -p braid-fuzz
fi
