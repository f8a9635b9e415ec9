# Sourced by scripts that run network tests: what those tests need besides with-net.sh.

# Filters of tests that cannot run here, or that are no network tests though they are ignored.
skipped=(--skip tshark:: --skip ffmpeg:: --skip all_pairs)
skip_without() { # command, what is skipped, filter, remedy
    command -v "$1" >/dev/null && return
    echo "== $2 SKIPPED (the command '$1' is missing: $4)" >&2
    skipped+=(--skip "$3")
}
skip_without mptcpize "TESTS OF CLIENTS WITHOUT A BOX" stock:: "make install-deps"
skip_without chromium "TESTS WITH A BROWSER" browser:: "BRAID_BROWSER=1 make install-deps"
# CI builds it beforehand; here it is looked up only, since a newcomer need not wait for 150 MB.
if BRAID_MPTCP_CONNECT=$(scripts/mptcp-connect.sh --built); then
    export BRAID_MPTCP_CONNECT
else
    echo "== TESTS WITH mptcp_connect SKIPPED (it is not built: scripts/mptcp-connect.sh)" >&2
    skipped+=(--skip mptcp_connect::)
fi
# The same goes for the program of the last release.
if BRAID_PREVIOUS=$(scripts/previous.sh --built); then
    export BRAID_PREVIOUS
else
    echo "== TESTS WITH THE LAST RELEASE SKIPPED (it is not built: scripts/previous.sh)" >&2
    skipped+=(--skip compat::)
fi
