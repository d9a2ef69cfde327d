# What live.sh and pods.sh do on their clusters; to be sourced. A script ends with `failed`.
failed=0

wrong() { echo "WRONG: $*"; failed=1; }

# What waits by itself is not asked again when the time is over.
until_true() { # what command...
    local what=$1 end=$((SECONDS + 180))
    shift
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < end)) || { wrong "not within three minutes: $what"; return; }
        sleep 0.2
    done
    echo "good: $what"
}

says() { [[ $("$KUBECTL" get "$1" "$2" --output "jsonpath=$3" 2>/dev/null) == "$4" ]]; } # kind name path value

# A claim with a pod, both of that name.
claim() {
    sed "s/name: data\$/name: $1/; s/claimName: data\$/claimName: $1/; s/name: writer\$/name: $1/" deploy/examples/dynamic.yaml |
        "$KUBECTL" apply -f - >/dev/null || wrong "cannot make the claim $1"
}

# Ends processes of this shell. One that does not hear is killed after half a minute, and wrong.
end() { # process...
    local process limit=$((SECONDS + 30))
    kill "$@" 2>/dev/null
    for process in "$@"; do
        while kill -0 "$process" 2>/dev/null; do
            if ((SECONDS >= limit)); then
                wrong "$(cat "/proc/$process/comm") does not end on SIGTERM"
                kill -KILL "$process"
                break
            fi
            sleep 0.1
        done
    done
    wait "$@" 2>/dev/null
}

# Who cannot ask does not know that there is none.
no() {
    local found
    found=$("$KUBECTL" get "$1" --output name 2>/dev/null) && [[ -z $found ]]
}
