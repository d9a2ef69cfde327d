#!/usr/bin/env bash
# Writes go.mod and go.sum of the module `kubeedge` in this folder:
#   make-kubeedge.sh v1.23.0
# KubeEdge is built with a fork of Kubernetes that the checksum database does not have. The sums of the fork are in
# KubeEdge's own go.sum, which arrives in a module that the checksum database has. So go.sum starts as a copy of it.
# `kubeedge/api` and `kubeedge/beehive` are folders in KubeEdge's repository and published as modules of the same version.
set -euo pipefail
release=${1:?usage: make-kubeedge.sh v1.MINOR.PATCH}
cd "$(dirname "${BASH_SOURCE[0]}")/kubeedge"
kubeedge=github.com/kubeedge/kubeedge
source=$(go mod download -json "${kubeedge}@${release}" | python3 -c 'import json, sys; print(json.load(sys.stdin)["Dir"])')
rm -f go.mod
cp --no-preserve=mode "${source}/go.sum" go.sum
go mod init example.invalid/edge-csi/kubeedge
go mod edit -json "${source}/go.mod" |
    python3 -c '
import json, sys
upstream = json.load(sys.stdin)
print("-go=" + upstream["Go"])
for replace in upstream["Replace"]:
    old, new = replace["Old"], replace["New"]
    if new["Path"].startswith("./staging/"):
        new = {"Path": old["Path"], "Version": sys.argv[1]}
    name = lambda module: module["Path"] + ("@" + module["Version"] if "Version" in module else "")
    print("-replace=" + name(old) + "=" + name(new))
' "${release}" | xargs go mod edit
go mod edit -require "${kubeedge}@${release}"
go mod tidy
