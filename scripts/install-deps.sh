#!/usr/bin/env bash
# Installs by apt-get what the tests call and this machine lacks; with BRAID_DEMO=1, only what the demo
# calls. Quick when nothing is missing. Starts no service. Exits 0 also where only the network tools are
# missing and cannot be installed: then the callers say what they skip.
set -euo pipefail

# command:package
needed=(
    ip:iproute2 tc:iproute2 ss:iproute2 nft:nftables ethtool:ethtool
    curl:curl nginx:nginx-light unshare:util-linux sysctl:procps
)
# A few tests and benchmarks call these, and are skipped without them. Not every distribution has
# them; a browser is large.
optional=()
if [ "${BRAID_DEMO-}" != 1 ]; then
    needed+=(ping:iputils-ping tshark:tshark)
    optional+=(mptcpize:mptcpize)
fi
[ "${BRAID_RELAYS-}" = 1 ] &&
    optional+=(redsocks:redsocks microsocks:microsocks ss-redir:shadowsocks-libev ss-server:shadowsocks-libev)
[ "${BRAID_BROWSER-}" = 1 ] && optional+=(chromium:chromium)
PATH="$PATH:/usr/sbin:/sbin"

missing() {
    for entry in "$@"; do
        command -v "${entry%%:*}" >/dev/null 2>&1 || echo "${entry##*:}"
    done | sort -u
}
mapfile -t packages < <(missing "${needed[@]}")
mapfile -t extras < <(missing "${optional[@]}")
compiler=()
command -v cc >/dev/null 2>&1 || compiler=(gcc libc6-dev)
packages+=("${compiler[@]}")
[ $((${#packages[@]} + ${#extras[@]})) -eq 0 ] && exit 0

refuse() {
    echo "install-deps: missing: ${packages[*]} ${extras[*]}" >&2
    echo "install-deps: $1" >&2
    [ ${#compiler[@]} -eq 0 ] || exit 1
    exit 0
}
command -v apt-get >/dev/null 2>&1 || refuse "no apt-get here: install them by hand"
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
        as_root=(sudo)
    else
        refuse "not root: run 'apt-get install ${packages[*]} ${extras[*]}' as root"
    fi
fi

# A policy that forbids services to start while packages are installed (nginx would take port 80).
policy=/usr/sbin/policy-rc.d
made_policy=
cleanup() { [ -z "$made_policy" ] || "${as_root[@]}" rm -f "$policy"; }
trap cleanup EXIT
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
    "${as_root[@]}" chmod 755 "$policy"
    made_policy=yes
fi

apt() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -y \
        -o Acquire::Retries=3 -o Dpkg::Use-Pty=0 "$@" >&2
}
if [ ${#packages[@]} -gt 0 ]; then
    echo "install-deps: installing ${packages[*]}" >&2
    apt install --no-install-recommends "${packages[@]}" 2>/dev/null || {
        apt update
        apt install --no-install-recommends "${packages[@]}"
    }
fi
for package in "${extras[@]}"; do
    echo "install-deps: installing $package" >&2
    apt install --no-install-recommends "$package" 2>/dev/null ||
        echo "== NOT INSTALLED: $package (apt-get has none, or needs 'apt-get update'): some tests are skipped" >&2
done
# Nor after the next boot.
for entry in nginx-light:nginx redsocks:redsocks shadowsocks-libev:shadowsocks-libev; do
    if [[ " ${packages[*]} ${extras[*]} " == *" ${entry%%:*} "* ]] && [ -d /run/systemd/system ]; then
        "${as_root[@]}" systemctl disable --quiet "${entry##*:}" >&2 || true
    fi
done
