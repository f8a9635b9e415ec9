#!/usr/bin/env bash
# Runs every fuzz target for FUZZ_SECONDS on random input (all at once, one thread each).
set -euo pipefail
cd "$(dirname "$0")/.."
seconds="${FUZZ_SECONDS:-60}"
# The profile keeps overflow checks and debug assertions, which an optimised build would drop.
BOLERO_RANDOM_TEST_TIME_MS=$((seconds * 1000)) cargo test --profile fuzz -p braid-fuzz
