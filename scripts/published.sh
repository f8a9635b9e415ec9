# Sourced by scripts that judge the crates which are published; each stands after those that it depends on.
PUBLISHED=(braid-mptcp-wire braid-mptcp-engine braid-mptcp-strategy)
