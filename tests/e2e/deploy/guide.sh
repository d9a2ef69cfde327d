#!/usr/bin/env bash
# Prints the commands of pages of the guide that an API server is enough for, in their order: the blocks marked `run` and
# `cluster`. With --nodes those for nodes that run pods too. What stands below a heading "Away with it" would take from the next
# page what it begins with, and is printed with --away alone. To run them, from the root of the repository:
#
#   tests/e2e/deploy/guide.sh install.md dynamic.md | bash -euo pipefail
set -euo pipefail
marks='run|cluster' away=0
while [[ ${1:-} == --* ]]; do
    case $1 in
        --nodes) marks+='|nodes' ;;
        --away) away=1 ;;
        *) echo "guide.sh: there is no option $1" >&2; exit 2 ;;
    esac
    shift
done
pages=$(dirname "${BASH_SOURCE[0]}")/../../../docs/src
for page in "$@"; do
    awk -v begin="^\`\`\`sh ($marks)\$" -v away="$away" '
        /^## / { below = ($0 == "## Away with it") }
        $0 ~ begin { on = (below == away); next }
        /^```$/ { on = 0 }
        on' "$pages/$page"
done
