#!/usr/bin/env bash
# Runs a command where network namespaces, TUN and nftables may be used: as it is for root,
# otherwise in a user + network + mount namespace of its own if the kernel allows that.
# Exits 77 (after saying why) where neither is possible. `with-net.sh --check` only tells.
set -euo pipefail
PATH="$PATH:/usr/sbin:/sbin"

if [ "${1-}" = --inside ]; then
    # In the new namespaces: `ip netns` keeps its names under /run. The variable tells braid that
    # it need not make a user namespace of its own.
    shift
    export BRAID_USER_NAMESPACE="$1"
    shift
    mount -t tmpfs tmpfs /run
    mount -t sysfs sysfs /sys 2>/dev/null || true
    ip link set lo up
    exec "$@"
fi

skip() {
    echo "with-net: $1" >&2
    exit 77
}
for tool in ip nft ethtool curl nginx; do
    command -v "$tool" >/dev/null || skip "the command '$tool' is missing (make install-deps)"
done
[ -e /dev/net/tun ] || skip "/dev/net/tun does not exist (modprobe tun)"
if [ "$(id -u)" -eq 0 ]; then
    ip netns add "braid-probe-$$" 2>/dev/null \
        || skip "root here may not make network namespaces (a container without CAP_SYS_ADMIN?)"
    ip netns del "braid-probe-$$"
    enter=()
else
    { true <>/dev/net/tun; } 2>/dev/null \
        || skip "not root, and /dev/net/tun is not open to this user"
    enter=(unshare --user --map-root-user --net --mount --propagation private "$0" --inside "$(id -u)")
    "${enter[@]}" true 2>/dev/null \
        || skip "not root, and this kernel allows no unprivileged user namespaces"
fi
[ "${1-}" = --check ] && exit 0
exec "${enter[@]}" "$@"
