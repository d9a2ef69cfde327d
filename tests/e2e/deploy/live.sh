#!/usr/bin/env bash
# The guide's commands on a real API server, with the real sidecars and our own programs on this machine: all with the arguments,
# certificates and rights that the manifests give them. A claim is made, attached, expanded, cut, restored and deleted. Nothing
# may be forbidden on the way, and nothing be left. The hub dies meanwhile, and a provisioner in the middle of a create. There is no
# kubelet: pods are bound to their node and never run.
#
#   KUBECONFIG   an API server with controllers and a scheduler that authorizes by RBAC and knows snapshots; its admin
#   SIDECARS     a folder with csi-provisioner, csi-attacher, csi-resizer, csi-snapshotter and snapshot-controller
#   PROGRAMS     a folder with edge-hub, edge-agent, edge-csi-driver and hostpath-driver
#   OVERLAY      topology, or sockets, which neither attaches nor expands
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
: "${KUBECONFIG:?names the kubeconfig of an API server}" "${SIDECARS:?names a folder}" "${PROGRAMS:?names a folder}"
KUBECTL=${KUBECTL:-kubectl}
OVERLAY=${OVERLAY:-topology}
work=$(mktemp -d /tmp/edge-live.XXXXXX) || exit
export TMPDIR=$work
processes=()
declare -A process_of
# shellcheck source=steps.sh
source tests/e2e/deploy/steps.sh

ended() {
    local status=$?
    ((${#processes[@]})) && end "${processes[@]}"
    if [[ $failed == 0 ]]; then rm -rf "$work"; else echo "logs are in $work"; fi
    [[ $status != 0 || $failed == 0 ]] || exit 1
}
trap ended EXIT

begin() { # name program argument...
    local name=$1
    shift
    "$@" >>"$work/$name.log" 2>&1 </dev/null &
    processes+=("$!")
    process_of[$name]=$!
}

killed() { # name
    kill -KILL "${process_of[$1]}"
    wait "${process_of[$1]}" 2>/dev/null
}

# The commands of a page. The hub is on this machine.
guide() {
    tests/e2e/deploy/guide.sh "$@" | sed "s/hub\.example\.org/localhost/g; s|overlays/topology|overlays/$OVERLAY|g" | bash -euo pipefail >"$work/$1.log" 2>&1 && { echo "good: the commands of $*"; return; }
    wrong "the commands of $*: $(tail -5 "$work/$1.log")"
}

# What the overlay has of its containers: with `args`, those of one container, one a line, with its variables filled in; with
# `value`, that of one variable; with `names`, the names of all containers.
container() { # args|value|names kind [container [variable[=value]...]]
    "$KUBECTL" kustomize "deploy/overlays/$OVERLAY" | "$KUBECTL" create --dry-run=client --output json --filename - | python3 -c '
import json, sys
text, decoder, at = sys.stdin.read(), json.JSONDecoder(), 0
asked, kind, *more = sys.argv[1:]
given = dict(variable.partition("=")[::2] for variable in more[1:])
while text[at:].strip():
    at += len(text[at:]) - len(text[at:].lstrip())
    found, length = decoder.raw_decode(text[at:])
    at += length
    for owner in found.get("items", [found]):
        for container in owner["spec"]["template"]["spec"]["containers"] if owner["kind"] == kind else []:
            values = {v["name"]: v.get("value", "") for v in container.get("env", [])}
            if asked == "names":
                print(container["name"])
            elif container["name"] != more[0]:
                continue
            elif asked == "value":
                print(values.get(more[1], ""))
            else:
                for argument in container["args"]:
                    for name, value in (values | given).items():
                        argument = argument.replace(f"$({name})", value)
                    print(argument)
' "$@"
}

# The files that a secret is in a pod.
secret_files() { # secret folder
    local key
    mkdir -p "$2"
    for key in tls.crt tls.key ca.crt; do
        "$KUBECTL" get secret "$1" --namespace edge-csi --output "jsonpath={.data['${key/./\\.}']}" | base64 -d >"$2/$key"
        [[ -s $2/$key ]] || wrong "the secret $1 has no $key"
    done
}

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# ---- a node without a kubelet ----

"$KUBECTL" apply -f - >/dev/null <<'NODE' || wrong "cannot make a node"
apiVersion: v1
kind: Node
metadata:
  name: edge-1
  annotations:
    volumes.kubernetes.io/controller-managed-attach-detach: "true"
  labels:
    kubernetes.io/hostname: edge-1
    node-role.kubernetes.io/edge: ""
    topology.csi-hostpath/node: edge-1
---
apiVersion: storage.k8s.io/v1
kind: CSINode
metadata:
  name: edge-1
spec:
  drivers:
    - name: csi-hostpath
      nodeID: edge-1
      topologyKeys: [topology.csi-hostpath/node]
NODE
"$KUBECTL" patch node edge-1 --subresource=status --type=merge --patch '{"status": {
    "allocatable": {"cpu": "8", "memory": "8Gi", "pods": "100", "ephemeral-storage": "8Gi"},
    "capacity": {"cpu": "8", "memory": "8Gi", "pods": "100", "ephemeral-storage": "8Gi"},
    "conditions": [{"type": "Ready", "status": "True", "reason": "Test"}]}}' >/dev/null || wrong "cannot make the node ready"
"$KUBECTL" patch node edge-1 --type=merge --patch '{"spec": {"taints": []}}' >/dev/null

# ---- our programs, as their pods start them ----

guide install.md
ws=$(free_port) quic=$(free_port)
plugins=$work/plugins
mkdir -p "$work/csi" "$work/state" "$work/run" "$work/node" "$plugins/csi-hostpath" "$work/volumes"
secret_files edge-hub-tls "$work/hub-tls"
secret_files edge-csi-driver-tls "$work/proxy-tls"
mkdir "$work/node-tls"
for pair in edge-1.pem=tls.crt edge-1.key=tls.key ca.pem=ca.crt; do
    cp "$work"/tmp.*/"${pair%=*}" "$work/node-tls/${pair#*=}" || wrong "the guide has made no ${pair%=*}"
done

mapfile -t given < <(container args Deployment edge-hub | sed "s|/run/edge-csi|$work/run|; s|/tls/|$work/hub-tls/|
    s|0.0.0.0:10000|127.0.0.1:$ws|; s|0.0.0.0:10001|127.0.0.1:$quic|; s|0.0.0.0:9808|127.0.0.1:0|")
hub=("$PROGRAMS/edge-hub" "${given[@]}")
begin edge-hub "${hub[@]}"
mapfile -t given < <(container args DaemonSet hostpath-driver KUBE_NODE_NAME=edge-1 |
    sed "s|/plugin/|$plugins/csi-hostpath/|; s|=/state|=$work/volumes|")
begin hostpath-driver "$PROGRAMS/hostpath-driver" "${given[@]}"
mapfile -t given < <(container args DaemonSet edge-agent KUBE_NODE_NAME=edge-1 HUB_HOST=localhost |
    sed "s|/var/lib/kubelet/plugins|$plugins|; s|/var/lib/edge-csi|$work/node|; s|/etc/edge-csi|$work/node-tls|
        s|localhost:10000|localhost:$ws|; s|localhost:10001|localhost:$quic|; s|127.0.0.1:9810|127.0.0.1:0|")
begin edge-agent "$PROGRAMS/edge-agent" "${given[@]}"
if [[ $OVERLAY == sockets ]]; then socket=$work/csi/edge-1/csi.sock; else socket=$work/csi/csi.sock; fi
mapfile -t given < <(container args StatefulSet edge-csi-driver |
    sed "s|/state/|$work/state/|; s|/tls/|$work/proxy-tls/|; s|=/csi$|=$work/csi|; s|0.0.0.0:9808|127.0.0.1:0|")
CSI_DRIVERNAME=csi-hostpath CSI_ENDPOINT=unix://$socket \
    KUBEEDGE_ENDPOINT=quic://localhost:$quic,wss://localhost:$ws begin edge-csi-driver "$PROGRAMS/edge-csi-driver" "${given[@]}"
until_true "the proxy's socket is there" test -S "$socket"
until_true "the agent's socket for kubelet is there" test -S "$work/node/shim/csi-hostpath.sock"

# ---- the sidecars, with the account's token and nothing else ----

token=$("$KUBECTL" create token edge-csi-controller --namespace edge-csi --duration=1h) || { wrong "no token"; exit 1; }
"$KUBECTL" config view --raw --minify --output json | TOKEN=$token python3 -c '
import json, os, sys
config = json.load(sys.stdin)
config["users"][0]["user"] = {"token": os.environ["TOKEN"]}
json.dump(config, sys.stdout)' >"$work/kubeconfig" || wrong "no kubeconfig"
until_true "the pod that owns capacities is there" "$KUBECTL" get pod edge-csi-controller-0 --namespace edge-csi
mapfile -t sidecars < <(container names StatefulSet | grep '^csi-' | grep -v 'edge-2$')
for sidecar in "${sidecars[@]}"; do
    mapfile -t given < <(container args StatefulSet "$sidecar" NAMESPACE=edge-csi |
        sed "s|=/csi/|=$work/csi/|; s|http-endpoint=:.*|http-endpoint=127.0.0.1:0|")
    ((${#given[@]} > 3)) || wrong "no arguments for $sidecar"
    NAMESPACE=edge-csi POD_NAME=edge-csi-controller-0 NODE_NAME=$(container value StatefulSet "$sidecar" NODE_NAME) \
        begin "$sidecar" "$SIDECARS/${sidecar%-edge-1}" "${given[@]}" "--kubeconfig=$work/kubeconfig" -v=5
done
((${#sidecars[@]} >= 2)) || wrong "the overlay has no sidecars"
distributed=$([[ $OVERLAY == sockets ]] && echo true || echo false)
begin snapshot-controller "$SIDECARS/snapshot-controller" "--kubeconfig=$KUBECONFIG" "--enable-distributed-snapshotting=$distributed"

# ---- a claim's life, as the guide has it ----

capacities() { [[ $("$KUBECTL" get csistoragecapacities --namespace edge-csi --output name 2>/dev/null) ]]; }
attached() { [[ $("$KUBECTL" get volumeattachments --output 'jsonpath={.items[*].status.attached}' 2>/dev/null) == *true* ]]; }
owned() { [[ $("$KUBECTL" get csistoragecapacities --namespace edge-csi --output 'jsonpath={.items[0].metadata.ownerReferences[0].kind}') == StatefulSet ]]; }
expanded() { [[ $("$KUBECTL" get pv --output 'jsonpath={.items[*].spec.capacity.storage}') == *2Gi* ]]; }

until_true "the room on the node is published" capacities
until_true "and belongs to the StatefulSet" owned
guide dynamic.md
until_true "the claim is bound" says pvc data '{.status.phase}' Bound
[[ $OVERLAY == sockets ]] || until_true "the volume is attached" attached
says pv "$("$KUBECTL" get pvc data --output 'jsonpath={.spec.volumeName}')" \
    '{.spec.nodeAffinity.required.nodeSelectorTerms[0].matchExpressions[0].values[0]}' edge-1 || wrong "the volume is not bound to its node"
guide snapshots.md
until_true "the snapshot is ready" says volumesnapshot data-before '{.status.readyToUse}' true
until_true "the restored claim is bound" says pvc data-restored '{.status.phase}' Bound
if [[ $OVERLAY != sockets ]]; then
    guide expansion.md
    until_true "the volume has grown" expanded
fi
guide block.md
until_true "the block claim is bound" says pvc raw '{.status.phase}' Bound
guide static.md
guide upgrading.md

# ---- drills of the guide's page on recovery ----

all_run() { for sidecar in "${sidecars[@]}"; do kill -0 "${process_of[$sidecar]}" || return; done; }
made() { find "$work/volumes/data" -mindepth 1 -maxdepth 1 | wc -l; }
asked() { grep -q "CreateVolume.*$("$KUBECTL" get pvc "$1" --output 'jsonpath={.metadata.uid}')" "$work/$2.log"; }

killed edge-hub
claim hub-dies
until_true "a volume is asked for while the hub is away" asked hub-dies "${sidecars[0]}"
begin edge-hub "${hub[@]}"
until_true "the hub is back, and the claim is bound" says pvc hub-dies '{.status.phase}' Bound
all_run || wrong "a sidecar has ended with the hub"

if [[ $OVERLAY != sockets ]]; then
    mapfile -t given < <(container args StatefulSet csi-provisioner NAMESPACE=edge-csi |
        sed "s|=/csi/|=$work/csi/|; s|http-endpoint=:.*|http-endpoint=127.0.0.1:0|")
    NAMESPACE=edge-csi POD_NAME=edge-csi-controller-0 begin next-provisioner "$SIDECARS/csi-provisioner" "${given[@]}" \
        "--kubeconfig=$work/kubeconfig" -v=5
    # It asks whether the driver is ready before it waits, and a stopped driver is not.
    until_true "the next provisioner waits for the lease" grep -q "Attempting to acquire leader lease" "$work/next-provisioner.log"
    before=$(made)
    kill -STOP "${process_of[hostpath-driver]}"
    claim lease-lost
    until_true "the first provisioner asks for the volume" asked lease-lost csi-provisioner
    killed csi-provisioner
    until_true "the next provisioner has the lease, and asks for the same" asked lease-lost next-provisioner
    kill -CONT "${process_of[hostpath-driver]}"
    until_true "its claim is bound" says pvc lease-lost '{.status.phase}' Bound
    [[ $(made) == $((before + 1)) ]] || wrong "the driver has made $(($(made) - before)) volumes for one claim"
fi

"$KUBECTL" delete pod writer reader block hub-dies lease-lost --force --grace-period=0 >/dev/null 2>&1
until_true "all is detached" no volumeattachments
"$KUBECTL" delete -f deploy/examples/snapshot.yaml --wait=false >/dev/null
until_true "the snapshot is gone" no volumesnapshotcontents
"$KUBECTL" delete pvc --all --wait=false >/dev/null
until_true "the volumes are gone" no pv
left=$(find "$work/volumes" -mindepth 2)
[[ -z $left ]] || wrong "the driver has something left: $left"

for log in "$work"/{csi-*,edge-*,hostpath-driver}.log; do
    grep -iE 'forbidden|unauthorized|unknown flag|flag provided but not defined|panic' "$log" | head -5 >"$work/found"
    [[ ! -s $work/found ]] || wrong "$(basename "$log"): $(cat "$work/found")"
done
"$KUBECTL" delete node edge-1 >/dev/null 2>&1
[[ $failed == 0 ]] && echo "all good"
exit "$failed"
