#!/usr/bin/env bash
# Repeats lines of docs/results.md, drawn at random, and compares their values with the page: DRAWS lines (default
# 3) in the simulator, where every value must be equal, and as many over emulated links, where the 95 % intervals of
# both must overlap. One of twenty values over links may differ by chance. SEED draws the same lines again.
set -euo pipefail
cd "$(dirname "$0")/.."
CARGO="${CARGO:-cargo}"
PAGE="${PAGE:-docs/results.md}"
SEED="${SEED:-$RANDOM}"
DRAWS="${DRAWS:-3}"

"$CARGO" build --release --quiet -p braid-lab
lab="${CARGO_TARGET_DIR:-target}/release/braid-lab"
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
echo "results-check: SEED=$SEED draws the lines" >&2

# Prints what a page has measured of an experiment on a backend, as `claim<TAB>values`.
# shellcheck disable=SC2016
values='
    { gsub(/\\\|/, "/") }
    /^## / { inside = $2 == id; column = 0; next }
    !inside { next }
    /^\*\*/ { own = $1 == "**" backend "**:"; next }
    /^\| must hold / {
        column = 0
        for (n = split($0, head, / *\| */); n > 0; n--) if (head[n] == "measured (" backend ")") column = n
        next
    }
    /^\| claim \| with / { column = own ? -1 : 0; next }
    /^\| --- / || !/^\|/ { next }
    {
        n = split($0, cell, / *\| */)
        if (column > 0 && cell[column] != "") print cell[2] "\t" cell[column]
        if (column < 0) for (k = 4; k < n; k++) print cell[2] ", " cell[3] ", " k - 3 "\t" cell[k]
    }'

# Compares two such lists: prints what differs, and fails if too much does. Values without an interval are skipped.
# shellcheck disable=SC2016
overlap='
    function read(text, mean, half,    n) {
        for (n = 0; match(text, /-?[0-9.]+ ± [0-9.]+/); text = substr(text, RSTART + RLENGTH)) {
            split(substr(text, RSTART, RLENGTH), pair, / ± /)
            mean[++n] = pair[1]; half[n] = pair[2]
        }
        return n
    }
    NR == FNR { published[$1] = $2; next }
    {
        n = read(published[$1], mean, half); m = read($2, again, wide)
        for (k = 1; k <= n && k <= m; k++) {
            compared++
            gap = mean[k] - again[k]; if (gap < 0) gap = -gap
            if (gap > half[k] + wide[k]) { differing++; print "  " $1 ": published " published[$1] ", now " $2 }
        }
    }
    END {
        printf "  %d of %d values with an interval agree\n", compared - differing, compared
        exit compared == 0 || differing > compared / 20
    }'

# Repeats drawn lines of a backend.
check() {
    local backend=$1 status=0 checked=0 line id
    local pattern="^\*\*$backend\*\*: \`braid-lab (run [^\`]+)\`.*"
    while IFS= read -r line <&3; do
        id=$(cut -d ' ' -f 2 <<<"$line")
        checked=$((checked + 1))
        echo "== braid-lab $line" >&2
        # shellcheck disable=SC2086
        "${@:2}" "$lab" $line --out "$out/$id-$backend" >/dev/null || { status=1; continue; }
        "$lab" report "$out/$id-$backend" >/dev/null || { status=1; continue; }
        awk -v id="$id" -v backend="$backend" "$values" "$PAGE" >"$out/published"
        awk -v id="$id" -v backend="$backend" "$values" "$out/$id-$backend/report.md" >"$out/now"
        if [ ! -s "$out/published" ] || [ ! -s "$out/now" ]; then
            echo "  no values to compare: $PAGE or the new page has no table for this line" >&2
            status=1
        elif [ "$backend" = sim ]; then
            diff "$out/published" "$out/now" && echo "  all $(wc -l <"$out/now") lines are equal" || status=1
        else
            awk -F '\t' "$overlap" "$out/published" "$out/now" || status=1
        fi
    done 3< <(sed -nE "s/$pattern/\1/p" "$PAGE" |
        awk -v seed="$SEED" 'BEGIN { srand(seed) } { print rand() "\t" $0 }' | sort | head -n "$DRAWS" | cut -f 2-)
    [ "$checked" -gt 0 ] || { echo "$PAGE has no line for $backend" >&2; status=1; }
    return "$status"
}

status=0
check sim || status=1
if scripts/with-net.sh --check; then
    check links scripts/with-net.sh || status=1
else
    echo "== LINKS SKIPPED (see the reason above)" >&2
fi
exit "$status"
