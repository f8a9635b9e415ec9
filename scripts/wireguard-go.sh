#!/usr/bin/env bash
# Builds the current wireguard-go, with which `make bench` compares the tunnel, into the user's cache, and prints its
# path. Exits 77, after saying why, where it is not to be had.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh
program=$BRAID_CACHE/wireguard-go/wireguard

skip() {
    echo "wireguard-go: $1" >&2
    exit 77
}
PATH="$PATH:/usr/local/go/bin" # where Go's own packages install it
command -v go >/dev/null || skip "the command 'go' is missing (https://go.dev/dl)"
# An earlier build serves where Go's proxy of modules does not answer.
GOBIN=$(dirname "$program") go install golang.zx2c4.com/wireguard@latest >&2 || [ -x "$program" ] ||
    skip "it cannot be fetched or built"
echo "$program"
