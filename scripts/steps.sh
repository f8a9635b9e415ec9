# Sourced by scripts that time their steps. The outermost one prints a table of all steps when it
# exits, also where a step failed. A script that it calls adds its steps to the same table.

# Runs a command as a step of this name; its exit status is that of the command.
step() {
    local name=$1 begun=$SECONDS status=0
    shift
    echo "== $name" >&2
    "$@" || status=$?
    printf '%s\t%s\t%s\n' "$((SECONDS - begun))" "$status" "$name" >>"$BRAID_STEPS"
    return "$status"
}

print_steps() {
    local seconds status name
    {
        printf '\n%-52s %8s\n' step seconds
        while IFS=$'\t' read -r seconds status name; do
            [ "$status" -eq 0 ] || name="$name: FAILED (exit $status)"
            printf '%-52s %8s\n' "$name" "$seconds"
        done <"$BRAID_STEPS"
        printf '%-52s %8s\n' total "$SECONDS"
    } >&2
    rm -f "$BRAID_STEPS"
}

if [ -z "${BRAID_STEPS-}" ]; then
    BRAID_STEPS=$(mktemp)
    export BRAID_STEPS
    trap print_steps EXIT
fi
