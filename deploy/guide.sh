#!/usr/bin/env bash
# Prints the commands of pages of the guide that an API server is enough for, in their order: the blocks marked `run` and
# `cluster`. With --nodes those for nodes that run pods too. To run them, from the root of the repository:
#
#   deploy/guide.sh install.md dynamic.md | bash -euo pipefail
set -euo pipefail
marks='run|cluster'
[[ ${1:-} != --nodes ]] || { marks+='|nodes'; shift; }
pages=$(dirname "${BASH_SOURCE[0]}")/../docs/src
for page in "$@"; do
    awk -v begin="^\`\`\`sh ($marks)\$" '$0 ~ begin { on = 1; next } /^```$/ { on = 0 } on' "$pages/$page"
done
