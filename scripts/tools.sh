# Sourced by scripts that call tools which are built from source. They are built once, by version, into
# the user's cache, so that a fresh clone need not build them again.

BRAID_CACHE=${BRAID_CACHE:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/braid}

# Puts a program of crates.io, by name and version, first on PATH. An unoptimised build of these tools
# is fast enough, and takes half as long.
cargo_tool() {
    local root=$BRAID_CACHE/$1-$2
    [ -x "$root/bin/$1" ] ||
        "${CARGO:-cargo}" install --quiet --locked --debug --root "$root" "$1@$2" || return
    PATH=$root/bin:$PATH
}
