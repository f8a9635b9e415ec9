#!/usr/bin/env bash
# What Braid is built from: licences, duplicates, sources and known vulnerabilities by cargo-deny, and a
# list of all of it (SBOM, CycloneDX 1.5) in target/sbom. The two tools are built into target/tools, which
# takes some minutes once.
set -euo pipefail
cd "$(dirname "$0")/.."
CARGO="${CARGO:-cargo}"
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
PATH="$target/tools/bin:$PATH"

# Its name, its version.
tool() {
    [[ $("$1" "${1#cargo-}" --version 2>/dev/null) == *" $2" ]] && return
    "$CARGO" install "$1" --version "$2" --locked --root "$target/tools"
}
tool cargo-deny 0.20.2
tool cargo-cyclonedx 0.5.9

# It is written beside the manifest; where that lies on this machine is nobody's business.
rm -f crates/*/*.cdx.json
"$CARGO" cyclonedx --quiet --format json --spec-version 1.5 --describe binaries
mkdir -p "$target/sbom"
sed "s|file://$PWD|file://|g" crates/braid/braid_bin.cdx.json >"$target/sbom/braid.cdx.json"
rm -f crates/*/*.cdx.json
echo "== what braid is made of: ${target#"$PWD/"}/sbom/braid.cdx.json" >&2

"$CARGO" deny check --hide-inclusion-graph licenses bans sources
if "$CARGO" deny fetch db >/dev/null 2>&1; then
    "$CARGO" deny check --hide-inclusion-graph advisories
else
    echo "== ADVISORIES NOT CHECKED (cannot fetch https://github.com/rustsec/advisory-db)" >&2
fi
