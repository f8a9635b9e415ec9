#!/usr/bin/env bash
# Builds the program of the last release, which compat/previous names by its commit, into the user's cache, once
# for each commit. Exits 77, after saying why, where the history is not here. `previous.sh --built` builds
# nothing: it prints the path of the program, and exits 1 where it is not built.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh
commit=$(grep -v '^#' compat/previous)
program=$BRAID_CACHE/braid-$commit/braid

if [ "${1-}" = --built ]; then
    [ -x "$program" ] || exit 1
    echo "$program"
    exit 0
fi
[ -x "$program" ] && exit 0
git cat-file -e "$commit^{commit}" 2>/dev/null || {
    echo "previous: commit $commit is not in this clone (git fetch --unshallow)" >&2
    exit 77
}
# In the cache, so that the last step is a rename: another run sees all of the program or nothing.
mkdir -p "$BRAID_CACHE"
work=$(mktemp -d -p "$BRAID_CACHE")
trap 'rm -rf "$work"' EXIT
git archive "$commit" | tar -x -C "$work"
# A target of its own: in the same one it would take the place of the program of today.
(cd "$work" && CARGO_TARGET_DIR=$work/target CARGO_PROFILE_DEV_DEBUG=0 CARGO_INCREMENTAL=0 \
    "${CARGO:-cargo}" build --quiet --locked -p braid --bin braid)
mkdir -p "$(dirname "$program")"
mv "$work/target/debug/braid" "$program"
