#!/usr/bin/env bash
# The whole test suite. Network tests are marked #[ignore] in the code, so that a plain
# `cargo test` works everywhere; they run here one at a time, because they share two cores with
# the link emulator whose timing they rely on.
set -euo pipefail
cd "$(dirname "$0")/.."
CARGO="${CARGO:-cargo}"

echo "== build" >&2
"$CARGO" test --workspace --no-run --quiet
echo "== unit, property and pair tests" >&2
"$CARGO" test --workspace --quiet
echo "== tests of captures" >&2
if command -v tshark >/dev/null; then
    "$CARGO" test -p braid-sim --quiet --test pair -- --ignored tshark
else
    echo "== TESTS OF CAPTURES SKIPPED (the command 'tshark' is missing: make install-deps)" >&2
fi
echo "== tests of pictures" >&2
if command -v ffmpeg >/dev/null; then
    "$CARGO" test -p braid-lab --quiet --lib -- --ignored ffmpeg::
else
    echo "== TESTS OF PICTURES SKIPPED (the command 'ffmpeg' is missing: install the package ffmpeg)" >&2
fi
echo "== network tests" >&2
status=0
scripts/with-net.sh --check || status=$?
skipped=(--skip tshark:: --skip ffmpeg:: --skip all_pairs)
without() {
    command -v "$1" >/dev/null && return
    echo "== $2 SKIPPED (the command '$1' is missing: $4)" >&2
    skipped+=(--skip "$3")
}
without mptcpize "TESTS OF CLIENTS WITHOUT A BOX" stock:: "make install-deps"
without chromium "TESTS WITH A BROWSER" browser:: "BRAID_BROWSER=1 make install-deps"
# Tests run in the directories of their crates.
BRAID_MPTCP_CONNECT=$(realpath -m "${CARGO_TARGET_DIR:-target}/mptcp_connect")
export BRAID_MPTCP_CONNECT
if [ ! -x "$BRAID_MPTCP_CONNECT" ]; then
    echo "== TESTS WITH mptcp_connect SKIPPED (it is not built: scripts/mptcp-connect.sh)" >&2
    skipped+=(--skip mptcp_connect::)
fi
case $status in
    0) scripts/with-net.sh "$CARGO" test --workspace --quiet --tests -- --ignored --test-threads=1 \
        "${skipped[@]}" ;;
    77) echo "== NETWORK TESTS SKIPPED (see the reason above)" >&2 ;;
    *) exit "$status" ;;
esac
echo "== all tests passed" >&2
