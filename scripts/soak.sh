#!/usr/bin/env bash
# Runs each network test many times while other work takes all processors, and each test that judges
# rates or times of the wall clock (module `soak`) alone on an idle machine; prints failures out of tries.
#
# SOAK_MINUTES (60) bounds the run. A test is wanted SOAK_TRIES (5) times, one that ever failed
# SOAK_SUSPECT_TRIES (50) times, also after it was mended: target/soak/suspects has the names. Tries of the
# same source are kept in target/soak: a second run goes on where the first one stopped. SOAK_AT_ONCE (3)
# network tests run at a time, beside SOAK_LOAD (one for each processor) loops that compute. Arguments are
# names of tests, or parts of names, to run only those.
#
# Exit status: 0 when all tests were tried as often as wanted and never failed, 1 after a failure, 2 when
# time ran out before.
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C # numbers with a point
CARGO="${CARGO:-cargo}"

# One try of a test, by its program and name: a line in the results, and its output where it failed.
if [ "${1-}" = --try ]; then
    program=$2 name=$3 begun=$EPOCHREALTIME verdict=ok
    [ "$EPOCHSECONDS" -lt "$SOAK_END" ] || exit 0
    log=$(mktemp -p "$SOAK_DIR/failed")
    # Tests run in the directories of their crates.
    directory=$(awk -F'\t' -v program="$program" '$1 == program { print $2 }' "$SOAK_DIR/directories")
    if (cd "$directory" && timeout --kill-after=10 600 "$program" --exact "$name" --include-ignored) \
        </dev/null >"$log" 2>&1; then
        rm "$log"
    else
        verdict=FAILED
        mv "$log" "$SOAK_DIR/failed/$name.$(basename "$log")"
        echo "$name" >>"$SOAK_DIR/../suspects"
    fi
    seconds=$(awk "BEGIN { printf \"%.1f\", $EPOCHREALTIME - $begun }")
    # A short line is appended at once.
    printf '%s\t%s\t%s\n' "$verdict" "$seconds" "$name" >>"$SOAK_DIR/tries"
    echo "$verdict $name ($seconds s)"
    exit 0
fi

# All below runs where namespaces may be made.
if [ "${1-}" = --inside ]; then
    shift
else
    "$CARGO" test --workspace --no-run --quiet
    exec scripts/with-net.sh scripts/soak.sh --inside "$@"
fi
# Tests transfer more then.
export BRAID_SOAK=1
. scripts/network.sh
minutes=${SOAK_MINUTES:-60}
wanted=${SOAK_TRIES:-5}
suspect_tries=${SOAK_SUSPECT_TRIES:-50}
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
key=$(git describe --always --abbrev=12 2>/dev/null || echo source)
changes=$(git diff HEAD 2>/dev/null || true)
[ -z "$changes" ] || key=$key-$(sha256sum <<<"$changes" | cut -c1-12)
export SOAK_DIR=$target/soak/$key
SOAK_END=$((EPOCHSECONDS + minutes * 60))
export SOAK_END
mkdir -p "$SOAK_DIR/failed"
touch "$SOAK_DIR/tries" "$target/soak/suspects"

# Every test program with the directory it runs in, then every ignored test as "program<TAB>name". Other
# programs than those of tests are not in `deps`.
"$CARGO" test --workspace --no-run --tests --message-format=json 2>/dev/null |
    sed -n 's|.*"manifest_path":"\([^"]*\)/Cargo.toml".*"executable":"\([^"]*/deps/[^"]*\)".*|\2\t\1|p' |
    sort -u >"$SOAK_DIR/directories"
while IFS=$'\t' read -r program directory; do
    listed=$(cd "$directory" && "$program" --list --ignored --format terse "${skipped[@]}" "$@")
    sed -n "s|^\(.*\): test\$|$program\t\1|p" <<<"$listed"
done <"$SOAK_DIR/directories" >"$SOAK_DIR/tests"
[ -s "$SOAK_DIR/tests" ] || { echo "soak: no test is named like that: $*" >&2; exit 2; }

# Prints the tests that were tried less often than wanted.
pending() {
    awk -F'\t' -v wanted="$wanted" -v more="$suspect_tries" '
        FILENAME == ARGV[1] { suspect[$1] = 1; next }
        FILENAME == ARGV[2] { tries[$3]++; next }
        { if (tries[$2] < ($2 in suspect ? more : wanted)) print }
    ' "$target/soak/suspects" "$SOAK_DIR/tries" "$SOAK_DIR/tests"
}

# Tries each pending test that `$1` selects (-e or -v: in the module `soak`, or not), `$2` at a time.
runner=
round() {
    pending | { grep "$1" 'soak::' || true; } | tr '\t\n' '\0\0' |
        xargs -0 -r -n 2 -P "$2" scripts/soak.sh --try &
    runner=$!
    wait "$runner" || true
    runner=
}

load=()
rest() {
    [ ${#load[@]} -eq 0 ] || kill "${load[@]}" 2>/dev/null || true
    load=()
}
work() {
    for _ in $(seq "${SOAK_LOAD:-$(nproc)}"); do
        # It ends with this script however that ends.
        (while kill -0 $$ 2>/dev/null && [ "$EPOCHSECONDS" -lt $((SOAK_END + 600)) ]; do
            for ((i = 0; i < 100000; i++)); do :; done
        done) &
        load+=($!)
    done
}

# Prints failures out of tries, and exits accordingly.
report() {
    local left status=0
    trap - EXIT INT TERM
    rest
    # No further test begins; those that run end by themselves.
    [ -z "$runner" ] || kill "$runner" 2>/dev/null || true
    left=$(pending | wc -l)
    echo
    awk -F'\t' '
        FILENAME == ARGV[1] { wanted[$2] = 1; next }
        $3 in wanted { tries[$3]++; seconds[$3] += $2; if ($1 != "ok") failed[$3]++ }
        END {
            for (name in tries) {
                printf "%3d failures of %3d tries, %6.1f s each: %s\n", failed[name], tries[name], seconds[name] / tries[name], name
                all += tries[name]; bad += failed[name]
            }
            printf "  0 total: %d failures of %d tries\n", bad, all
            exit bad > 0
        }
    ' "$SOAK_DIR/tests" "$SOAK_DIR/tries" | sort -k1,1nr -k7 || status=1
    if [ "$status" -eq 1 ]; then
        echo "== output of what failed: ${SOAK_DIR#"$PWD/"}/failed" >&2
    elif [ "$left" -gt 0 ]; then
        echo "== $left tests have fewer tries than wanted: run it again to go on" >&2
        status=2
    fi
    exit "$status"
}
trap report EXIT
trap 'exit 130' INT TERM

echo "== soak of $key: $(wc -l <"$SOAK_DIR/tests") tests, $minutes minutes" >&2
while [ "$EPOCHSECONDS" -lt "$SOAK_END" ] && [ -n "$(pending)" ]; do
    # What measures has the machine for itself.
    round -e 1
    work
    round -v "${SOAK_AT_ONCE:-3}"
    rest
done
