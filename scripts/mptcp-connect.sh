#!/usr/bin/env bash
# Builds mptcp_connect, the test client of Multipath TCP that comes with Linux, from Debian's package
# of the kernel's source (150 MB, which is fetched but not installed) into the user's cache, once for each
# version. Exits 77, after saying why, where it is not to be had. `mptcp-connect.sh --built` builds nothing:
# it prints the path of the newest one that was built, and exits 1 where there is none.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh
source=tools/testing/selftests/net/mptcp/mptcp_connect.c

if [ "${1-}" = --built ]; then
    newest=$(find "$BRAID_CACHE" -path '*/mptcp_connect-linux-source-*/mptcp_connect' -executable 2>/dev/null |
        sort -V | tail -1)
    [ -n "$newest" ] || exit 1
    echo "$newest"
    exit 0
fi

skip() {
    echo "mptcp-connect: $1" >&2
    exit 77
}
for tool in apt-get apt-cache dpkg-deb xz cc; do
    command -v "$tool" >/dev/null || skip "the command '$tool' is missing"
done
package=$(apt-cache search --names-only '^linux-source-[0-9.]+$' | awk '{ print $1 }' | sort -V | tail -1)
[ -n "$package" ] || skip "apt-get knows no package of the kernel's source"
program=$BRAID_CACHE/mptcp_connect-$package/mptcp_connect
[ -x "$program" ] && exit 0
# In the cache, so that the last step is a rename: another run sees all of the program or nothing.
mkdir -p "$BRAID_CACHE"
work=$(mktemp -d -p "$BRAID_CACHE")
trap 'rm -rf "$work"' EXIT
echo "mptcp-connect: fetching $package" >&2
(cd "$work" && apt-get -qq download "$package" 2>&1) || skip "$package cannot be fetched"
# One file of an archive in an archive. tar ends before its input does, which all before it may notice.
{ dpkg-deb --fsys-tarfile "$work"/*.deb 2>/dev/null || true; } \
    | { tar -xO --wildcards './usr/src/linux-source-*.tar.xz' 2>/dev/null || true; } \
    | { tar -xJO --occurrence=1 --wildcards "*/$source" 2>/dev/null || true; } >"$work/mptcp_connect.c"
[ -s "$work/mptcp_connect.c" ] || skip "there is no $source in $package"
cc -O2 -o "$work/mptcp_connect" "$work/mptcp_connect.c" || skip "it does not compile here"
mkdir -p "$(dirname "$program")"
mv "$work/mptcp_connect" "$program"
