#!/usr/bin/env bash
# What Braid is built from: licences, duplicates, sources and known vulnerabilities by cargo-deny, and a
# list of all of it (SBOM, CycloneDX 1.5) in target/sbom. Builds the two tools once, into the user's cache.
set -euo pipefail
cd "$(dirname "$0")/.."
CARGO="${CARGO:-cargo}"
. scripts/steps.sh
. scripts/tools.sh
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")

# cargo-cyclonedx writes the list beside the manifest, with the paths of this machine.
sbom() {
    rm -f crates/*/*.cdx.json
    "$CARGO" cyclonedx --quiet --format json --spec-version 1.5 --describe binaries || return
    mkdir -p "$target/sbom" || return
    sed "s|file://$PWD|file://|g" crates/braid/braid_bin.cdx.json >"$target/sbom/braid.cdx.json" || return
    rm -f crates/*/*.cdx.json
    echo "== what braid is made of: ${target#"$PWD/"}/sbom/braid.cdx.json" >&2
}

dependencies() {
    "$CARGO" deny check --hide-inclusion-graph licenses bans sources || return
    if "$CARGO" deny fetch db >/dev/null 2>&1; then
        "$CARGO" deny check --hide-inclusion-graph advisories
    else
        echo "== ADVISORIES NOT CHECKED (cannot fetch https://github.com/rustsec/advisory-db)" >&2
    fi
}

step "cargo-deny, built once" cargo_tool cargo-deny 0.20.2
step "cargo-cyclonedx, built once" cargo_tool cargo-cyclonedx 0.5.9
step "SBOM" sbom
step "dependencies" dependencies
