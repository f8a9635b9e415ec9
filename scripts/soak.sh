#!/usr/bin/env bash
# Runs each network test many times while other work takes all processors, and each test that judges
# rates or times of the wall clock (module `soak`) alone on an idle machine; prints failures out of tries.
#
# SOAK_MINUTES (60) bounds the run. A test is wanted SOAK_TRIES (5) times, one that ever failed
# SOAK_SUSPECT_TRIES (50) times. Tries of the same commit are kept in target/soak: a second run goes on
# where the first one stopped. SOAK_AT_ONCE (3) network tests run at a time, beside SOAK_LOAD (one for
# each processor) loops that compute. Arguments are names of tests, or parts of names, to run only those.
#
# Exit status: 0 when all tests were tried as often as wanted and never failed, 1 after a failure, 2 when
# time ran out before.
set -euo pipefail
cd "$(dirname "$0")/.."
CARGO="${CARGO:-cargo}"

if [ "${BRAID_SOAK-}" = "" ]; then
    # All below runs where namespaces may be made.
    export BRAID_SOAK=1
    "$CARGO" test --workspace --no-run --quiet
    exec scripts/with-net.sh "$0" "$@"
fi

# One try of a test, by its program and name: a line in the results, and its output where it failed.
if [ "${1-}" = --try ]; then
    program=$2 name=$3 begun=$EPOCHREALTIME verdict=ok
    [ "$(date +%s)" -lt "$SOAK_END" ] || exit 0
    log=$(mktemp -p "$SOAK_DIR/failed")
    # Tests run in the directories of their crates.
    directory=$(sed -n "s|^$program\t||p" "$SOAK_DIR/directories")
    if (cd "$directory" && timeout --kill-after=10 600 "$program" --exact "$name" --include-ignored) \
        </dev/null >"$log" 2>&1; then
        rm "$log"
    else
        verdict=FAILED
        mv "$log" "$SOAK_DIR/failed/$name.$(basename "$log")"
    fi
    seconds=$(awk "BEGIN { printf \"%.1f\", $EPOCHREALTIME - $begun }")
    # A short line is appended at once.
    printf '%s\t%s\t%s\n' "$verdict" "$seconds" "$name" >>"$SOAK_DIR/tries"
    echo "$verdict $name ($seconds s)"
    exit 0
fi

. scripts/network.sh
minutes=${SOAK_MINUTES:-60}
wanted=${SOAK_TRIES:-5}
suspects=${SOAK_SUSPECT_TRIES:-50}
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
key=$(git describe --always --dirty --abbrev=12)
export SOAK_DIR=$target/soak/$key
SOAK_END=$(($(date +%s) + minutes * 60))
export SOAK_END
mkdir -p "$SOAK_DIR/failed"
touch "$SOAK_DIR/tries"

# Every test binary with the directory it runs in, then every ignored test as "program<TAB>name".
"$CARGO" test --workspace --no-run --tests --message-format=json 2>/dev/null |
    sed -n 's|.*"manifest_path":"\([^"]*\)/Cargo.toml".*"executable":"\([^"]*\)".*|\2\t\1|p' |
    sort -u >"$SOAK_DIR/directories"
while IFS=$'\t' read -r program directory; do
    (cd "$directory" && "$program" --list --ignored --format terse "${skipped[@]}" "$@" 2>/dev/null) |
        sed -n "s|^\(.*\): test\$|$program\t\1|p"
done <"$SOAK_DIR/directories" >"$SOAK_DIR/tests"
[ -s "$SOAK_DIR/tests" ] || { echo "soak: no test is named like that: $*" >&2; exit 2; }

# Prints the tests that were tried less often than wanted.
pending() {
    awk -F'\t' -v wanted="$wanted" -v suspects="$suspects" '
        FILENAME == ARGV[1] { tries[$3]++; if ($1 != "ok") failed[$3] = 1; next }
        { if (tries[$2] < ($2 in failed ? suspects : wanted)) print }
    ' "$SOAK_DIR/tries" "$SOAK_DIR/tests"
}
in_time() { [ "$(date +%s)" -lt "$SOAK_END" ]; }

# Tries each pending test that `$1` selects (-e or -v: in the module `soak`, or not), `$2` at a time.
round() {
    { pending | grep "$1" 'soak::' || true; } | tr '\t\n' '\0\0' | xargs -0 -r -n 2 -P "$2" "$0" --try
}

load=()
rest() {
    [ ${#load[@]} -eq 0 ] || kill "${load[@]}" 2>/dev/null || true
    load=()
}
trap rest EXIT

echo "== soak of $key: $(wc -l <"$SOAK_DIR/tests") tests, $minutes minutes" >&2
while in_time && [ -n "$(pending)" ]; do
    # What measures has the machine for itself.
    round -e 1
    for _ in $(seq "${SOAK_LOAD:-$(nproc)}"); do
        (while :; do :; done) &
        load+=($!)
    done
    round -v "${SOAK_AT_ONCE:-3}"
    rest
done

left=$(pending | wc -l)
echo
awk -F'\t' '
    { tries[$3]++; seconds[$3] += $2; if ($1 != "ok") failed[$3]++ }
    END {
        for (name in tries) {
            printf "%3d failures of %3d tries, %6.1f s each: %s\n", failed[name], tries[name], seconds[name] / tries[name], name
            all += tries[name]; bad += failed[name]
        }
        printf "%d failures of %d tries\n", bad, all > "/dev/stderr"
    }
' "$SOAK_DIR/tries" | sort -k1,1nr -k7
if grep -q '^FAILED' "$SOAK_DIR/tries"; then
    echo "== output of what failed: ${SOAK_DIR#"$PWD/"}/failed" >&2
    exit 1
fi
if [ "$left" -gt 0 ]; then
    echo "== $left tests have fewer tries than wanted: run it again to go on" >&2
    exit 2
fi
