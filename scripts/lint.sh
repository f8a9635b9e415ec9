#!/usr/bin/env bash
# Formatting, clippy, documentation, the published crates and the rules of the house.
set -euo pipefail
cd "$(dirname "$0")/.."
CARGO="${CARGO:-cargo}"
. scripts/steps.sh
. scripts/published.sh

# Makes the archives that would be published, and builds them from nothing else.
packages() {
    local dirty=(--allow-dirty)
    # CI judges what is committed.
    [ -z "${CI-}" ] || dirty=()
    # Each is built with the archives before it. Cargo unpacks and builds an archive once for each version, so one
    # whose version stayed would still be as it was in the last run.
    local built=target/packages crate
    rm -rf $built
    for crate in "${PUBLISHED[@]}"; do
        rm -rf "${CARGO_HOME:-$HOME/.cargo}/registry/src"/-*/"$crate"-[0-9]*
    done
    "$CARGO" package --quiet --locked --target-dir $built "${dirty[@]}" "${PUBLISHED[@]/#/--package=}"
}

# Builds with the oldest compiler that Cargo.toml promises.
oldest_rust() {
    local version
    version=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    if ! rustup run "$version" cargo --version >/dev/null 2>&1 &&
        ! rustup toolchain install --profile minimal --no-self-update "$version" >/dev/null 2>&1; then
        echo "== NOT BUILT WITH RUST $version (rustup cannot install it; clippy looks for newer functions)" >&2
        return
    fi
    rustup run "$version" cargo check --workspace --quiet --locked
}

if ! "$CARGO" fmt --version >/dev/null 2>&1 || ! "$CARGO" clippy --version >/dev/null 2>&1; then
    step "install rustfmt and clippy" rustup component add rustfmt clippy
fi
step "formatting" "$CARGO" fmt --all --check
step "clippy" "$CARGO" clippy --workspace --all-targets --quiet -- -D warnings
step "documentation" env RUSTDOCFLAGS="-D warnings" "$CARGO" doc --workspace --no-deps --quiet
step "packages" packages
step "the oldest Rust" oldest_rust
# With the features of `make test`: nothing is built where that ran.
step "rules of the house" "$CARGO" test --workspace --quiet --test tidy
