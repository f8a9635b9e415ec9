#!/usr/bin/env bash
# Compares the interfaces of the published crates with those of the last release, which compat/previous names:
# an incompatible change needs a version that says so. Builds cargo-semver-checks once, into the user's cache.
# That takes minutes, and the comparison documents everything twice, so it is no part of `make lint`.
set -euo pipefail
cd "$(dirname "$0")/.."
CARGO="${CARGO:-cargo}"
. scripts/steps.sh
. scripts/tools.sh
. scripts/published.sh
commit=$(grep -v '^#' compat/previous)

skip() {
    echo "== INTERFACES NOT COMPARED ($1)" >&2
    exit 0
}
git cat-file -e "$commit^{commit}" 2>/dev/null || skip "commit $commit is not in this clone: git fetch --unshallow"
for crate in "${PUBLISHED[@]}"; do
    git grep -q "^name = \"$crate\"" "$commit" -- '*/Cargo.toml' || skip "the last release had no crate $crate"
done
step "cargo-semver-checks, built once" cargo_tool cargo-semver-checks 0.51.0
step "interfaces" "$CARGO" semver-checks --baseline-rev "$commit" "${PUBLISHED[@]/#/--package=}"
