#!/usr/bin/env bash
# Speed, memory and the simulator, built in release. Measures; it does not pass or fail.
# `make bench BENCH_ARGS="--only idle --json"`; `--help` tells the rest.
set -euo pipefail
cd "$(dirname "$0")/.."
CARGO="${CARGO:-cargo}"
"$CARGO" build --release --quiet -p braid -p braid-lab
"$CARGO" bench -p braid-lab --bench bench --no-run --quiet
case "$*" in
    *--only?tunnel*) wants_wireguard=1 ;;
    *--only*) wants_wireguard= ;;
    *) wants_wireguard=1 ;;
esac
# Without it, the tunnel is measured alone, which the benchmark says.
if [ -n "$wants_wireguard" ] && BRAID_WIREGUARD_GO=$(scripts/wireguard-go.sh); then
    export BRAID_WIREGUARD_GO
fi
run=(scripts/with-net.sh)
case "$*" in *--only?sim*) run=() ;; esac # in virtual time, without privileges
exec "${run[@]}" "$CARGO" bench -p braid-lab --bench bench --quiet -- "$@"
