#!/usr/bin/env bash
# The test suite that judges behaviour: everything in virtual time, then the network tests, several at
# a time. Network tests are marked #[ignore = "network"], so that a plain `cargo test` works everywhere.
# What judges rates or times of the wall clock is in `make soak`. One feature set for all steps: each
# runs what the first one has built.
set -euo pipefail
cd "$(dirname "$0")/.."
CARGO="${CARGO:-cargo}"
. scripts/steps.sh

step "build the tests" "$CARGO" test --workspace --no-run --quiet
step "tests in virtual time" "$CARGO" test --workspace --quiet
if command -v tshark >/dev/null; then
    step "tests of captures" "$CARGO" test --workspace --quiet --test pair -- --ignored tshark::
else
    echo "== TESTS OF CAPTURES SKIPPED (the command 'tshark' is missing: make install-deps)" >&2
fi
if command -v ffmpeg >/dev/null; then
    step "tests of pictures" "$CARGO" test --workspace --quiet --lib -- --ignored ffmpeg::
else
    echo "== TESTS OF PICTURES SKIPPED (the command 'ffmpeg' is missing: install the package ffmpeg)" >&2
fi
status=0
scripts/with-net.sh --check || status=$?
. scripts/network.sh
# They wait more than they compute: two a processor.
threads=${BRAID_TEST_THREADS:-$((2 * $(nproc)))}
case $status in
    # Each wait in them is bounded; the time-out is for what hangs all the same.
    0) step "network tests, $threads at a time" timeout --foreground --kill-after=30 2700 scripts/with-net.sh \
        "$CARGO" test --workspace --quiet --tests -- \
        --ignored --test-threads="$threads" --skip soak:: "${skipped[@]}" ;;
    77) echo "== NETWORK TESTS SKIPPED (see the reason above)" >&2 ;;
    *) exit "$status" ;;
esac
echo "== all tests passed" >&2
