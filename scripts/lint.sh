#!/usr/bin/env bash
# Formatting, clippy, documentation and the rules of the house.
set -euo pipefail
cd "$(dirname "$0")/.."
CARGO="${CARGO:-cargo}"
. scripts/steps.sh

if ! "$CARGO" fmt --version >/dev/null 2>&1 || ! "$CARGO" clippy --version >/dev/null 2>&1; then
    step "install rustfmt and clippy" rustup component add rustfmt clippy
fi
step "formatting" "$CARGO" fmt --all --check
step "clippy" "$CARGO" clippy --workspace --all-targets --quiet -- -D warnings
step "documentation" env RUSTDOCFLAGS="-D warnings" "$CARGO" doc --workspace --no-deps --quiet
# With the features of `make test`: nothing is built where that ran.
step "rules of the house" "$CARGO" test --workspace --quiet --test tidy
