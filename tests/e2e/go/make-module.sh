#!/usr/bin/env bash
# Writes go.mod and go.sum of a module in this folder. The module requires one Kubernetes release and the given versions
# of other modules, and has the given commands as its tools:
#   make-module.sh mockdriver v1.36.3
#   make-module.sh exampleplugin v1.36.3
#   make-module.sh kubernetes v1.36.3
#   make-module.sh sidecars v1.36.3 github.com/kubernetes-csi/external-provisioner/v6@v6.3.0 \
#       github.com/kubernetes-csi/external-attacher/v4@v4.12.0 \
#       github.com/kubernetes-csi/external-resizer/v2@v2.2.0 \
#       github.com/kubernetes-csi/external-snapshotter/v8@v8.6.0 \
#       github.com/kubernetes-csi/external-provisioner/v6/cmd/csi-provisioner \
#       github.com/kubernetes-csi/external-attacher/v4/cmd/csi-attacher \
#       github.com/kubernetes-csi/external-resizer/v2/cmd/csi-resizer \
#       github.com/kubernetes-csi/external-snapshotter/v8/cmd/csi-snapshotter \
#       github.com/kubernetes-csi/external-snapshotter/v8/cmd/snapshot-controller
# k8s.io/kubernetes requires its staging modules at v0.0.0, which is not published; each is replaced by the version of
# the release.
set -euo pipefail
usage="usage: make-module.sh MODULE v1.MINOR.PATCH [OTHER@VERSION ...] [COMMAND ...]"
module=${1:?${usage}}
release=${2:?${usage}}
shift 2
cd "$(dirname "${BASH_SOURCE[0]}")/${module}"
staging=v0.${release#v1.}
upstream=$(go mod download -json "k8s.io/kubernetes@${release}" | python3 -c 'import json, sys; print(json.load(sys.stdin)["GoMod"])')
rm -f go.mod go.sum
go mod init "example.invalid/edge-csi/${module}"
go mod edit -go "$(go mod edit -json "${upstream}" | python3 -c 'import json, sys; print(json.load(sys.stdin)["Go"])')"
go mod edit -require "k8s.io/kubernetes@${release}"
for other in "$@"; do
    case ${other} in
        *@*) go mod edit -require "${other}" ;;
        *) go mod edit -tool "${other}" ;;
    esac
done
go mod edit -json "${upstream}" |
    python3 -c '
import json, sys
for replace in json.load(sys.stdin)["Replace"]:
    if replace["New"]["Path"].startswith("./staging/"):
        print(replace["Old"]["Path"])
' | while read -r module; do
    go mod edit -replace "${module}=${module}@${staging}"
done
go mod tidy
