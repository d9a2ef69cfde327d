#!/usr/bin/env bash
# The overlay `topology` as it is, as real pods under real kubelets, and the guide's commands on it, those for nodes too: word by word,
# page after page. The machine becomes a control plane, a node in the cloud and a node at the edge, each with a network, /var, /run and
# /etc of its own, in namespaces that all goes with. The images are made here and pulled from nowhere (pods/images.sh).
#
#   SIDECARS   a folder with what the test `manifests` builds: the sidecars, the programs kubernetes and pod, and registrar, which stands
#              for node-driver-registrar; and with livenessprobe of tests/e2e/go/kubernetes, which stands for the one of that name
#   PROGRAMS   a folder with edge-hub, edge-agent, edge-csi-driver and hostpath-driver
#   CRDS       a folder with the definitions of snapshots
#
# What does not run here: the commands of static.md for nodes, which want a kernel with NFS and a server; those with docker, which want
# a builder. Nothing enforces the network policies.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
: "${SIDECARS:?names a folder}" "${PROGRAMS:?names a folder}" "${CRDS:?names a folder}"
# shellcheck source=steps.sh
source tests/e2e/deploy/steps.sh

# ---- outside: the namespaces, and what no namespace holds ----

# Kubelet has a loop device of its own over a block volume, so that it stays what it is.
detach() { # file
    local device
    for device in $(losetup --noheadings --output NAME --associated "$1"); do
        wrong "$device is left"
        detach "$device"
        losetup --detach "$device"
    done
}

# A file that is gone from its folder is known by its volume alone, and all that mounts it has ended: the path is not below WORK.
held() {
    local device file id
    for device in /sys/block/loop*/loop; do
        file=$(cat "$device/backing_file" 2>/dev/null) || continue
        file=${file%' (deleted)'}
        id=${file%/disk.img}
        [[ $file == "$WORK"/* ]] || { [[ $id != "$file" ]] && grep -Fqs -- "^${id##*/}" "$WORK"/*/kubelet.log; } || continue
        device=/dev/$(basename "${device%/loop}")
        wrong "$device is left, over $file"
        detach "$device"
        losetup --detach "$device"
    done
}

ended() {
    local image
    # All that runs goes with it.
    kill -KILL "$inside" 2>/dev/null && wait "$inside" 2>/dev/null
    while read -r image; do detach "$image"; done < <(find "$WORK" -name disk.img)
    held
    find /sys/fs/cgroup -depth -type d -path "*/${WORK##*/}*" -exec rmdir {} + 2>/dev/null
    if [[ $failed == 0 ]]; then rm -rf "$WORK"; else echo "logs are in $WORK"; fi
    exit "$failed"
}

if [[ $# == 0 ]]; then
    WORK=$(mktemp -d /tmp/edge-pods.XXXXXX) || exit
    SIDECARS=$(realpath "$SIDECARS")
    PROGRAMS=$(realpath "$PROGRAMS")
    export WORK SIDECARS PROGRAMS CGROUP=${WORK##*/} TMPDIR=$WORK
    setpriv --pdeathsig KILL unshare --mount --net --pid --fork --kill-child --mount-proc "$0" network &
    inside=$!
    trap ended EXIT
    trap 'failed=1; exit' TERM INT
    wait "$inside"
    failed=$?
    exit
fi

# ---- a network: the control plane in the middle, with the addresses of both nodes' pods and of the load balancer behind theirs ----

export ADDRESS=10.20.0.1
declare -A address_of=([cloud-1]=10.20.0.2 [edge-1]=10.20.0.3) pods_of=([cloud-1]=10.244.0 [edge-1]=10.244.1)
balancer=192.0.2.10

if [[ $1 == network ]]; then
    set -e
    mount -t tmpfs tmpfs /run
    ip link set lo up
    ip link add nodes type bridge
    ip address add "$ADDRESS/24" dev nodes
    ip link set nodes up
    for node in cloud-1 edge-1; do
        ip netns add "$node"
        ip link add "$node" type veth peer name eth0 netns "$node"
        ip link set "$node" master nodes up
        ip -n "$node" link set lo up
        ip -n "$node" address add "${address_of[$node]}/24" dev eth0
        ip -n "$node" link set eth0 up
        ip -n "$node" route add default via "$ADDRESS"
        nsenter --net="/run/netns/$node" bash -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'
        ip route add "${pods_of[$node]}.0/24" via "${address_of[$node]}"
    done
    ip route add "$balancer" via "${address_of[cloud-1]}"
    echo 1 >/proc/sys/net/ipv4/ip_forward
    # Not exec: the first process of a namespace has to take up what its children leave.
    tests/e2e/deploy/plane.sh "$SIDECARS" "$0" cluster
    exit
fi

# ---- a cluster: names, nodes, a load balancer, a disk in the cloud, snapshots ----

declare -A node_of
begin() { # log command...
    "${@:2}" >>"$WORK/$1.log" 2>&1 </dev/null &
}

node() { # name image...
    local name=$1 images=("${@:2}")
    images=("${images[@]/#/$WORK/archives/}")
    begin "$name" nsenter --net="/run/netns/$name" unshare --mount tests/e2e/deploy/pods/node.sh "$WORK/$name" "$name" "${address_of[$name]}" \
        "$ADDRESS" "${pods_of[$name]}" "${images[@]/%/.tar}"
    node_of[$name]=$!
    echo $! >"$WORK/$name.pid"
}

on() { # node command...
    nsenter --target "${node_of[$1]}" --mount --net -- "${@:2}"
}

guide() { # option... page
    said=$WORK/guide-${*//[^a-z]/}.log
    tests/e2e/deploy/guide.sh "$@" | PATH=$WORK/bin:$PATH bash -euo pipefail >"$said" 2>&1 && { step "the commands of $*"; return; }
    wrong "the commands of $*: $(tail -5 "$said")"
}

ready() { says node "$1" '{.status.conditions[?(@.type=="Ready")].status}' True; }

step() { echo "good: $* ($SECONDS s)"; }

tests/e2e/deploy/pods/images.sh "$WORK/archives" || { wrong "cannot make the images"; exit 1; }
step "images are made"
node cloud-1 pause edge-hub edge-csi-driver csi-provisioner csi-attacher csi-resizer csi-snapshotter
node edge-1 pause edge-agent csi-node-driver-registrar livenessprobe hostpath-driver busybox
begin names python3 tests/e2e/deploy/pods/names.py "$ADDRESS" "$KUBECTL" hub.example.org=edge-csi/edge-hub
begin kube-proxy nsenter --net=/run/netns/cloud-1 "$SIDECARS/kubernetes" kube-proxy --kubeconfig "$KUBECONFIG" --hostname-override cloud-1 \
    --proxy-mode nftables --cluster-cidr 10.244.0.0/16 --conntrack-max-per-core 0
for file in "$CRDS"/*.yaml; do
    [[ $file == */kustomization.yaml ]] || "$KUBECTL" apply --server-side -f "$file" >/dev/null || wrong "cannot define $file"
done
begin snapshot-controller "$SIDECARS/snapshot-controller" "--kubeconfig=$KUBECONFIG"
until_true "the node in the cloud is ready" ready cloud-1
until_true "the node at the edge is ready" ready edge-1
"$KUBECTL" label node edge-1 node-role.kubernetes.io/edge= >/dev/null || wrong "cannot label the node"
mkdir -p "$WORK/cloud-1/var/lib/disk"
"$KUBECTL" apply -f - >/dev/null <<'DISK' || wrong "cannot make a disk in the cloud"
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: cloud
  annotations:
    storageclass.kubernetes.io/is-default-class: "true"
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: v1
kind: PersistentVolume
metadata:
  name: disk
spec:
  accessModes: [ReadWriteOnce]
  capacity:
    storage: 1Gi
  storageClassName: cloud
  local:
    path: /var/lib/disk
  nodeAffinity:
    required:
      nodeSelectorTerms:
        - matchExpressions:
            - {key: kubernetes.io/hostname, operator: In, values: [cloud-1]}
DISK
balance() {
    until "$KUBECTL" patch service edge-hub --namespace edge-csi --subresource=status --type=merge \
        --patch "{\"status\": {\"loadBalancer\": {\"ingress\": [{\"ip\": \"$balancer\"}]}}}"; do
        sleep 0.3
    done
}
begin balancer balance

# To get to a node as its root, from the machine where the guide is followed.
mkdir -p "$WORK/bin"
cat >"$WORK/bin/ssh" <<SSH
#!/usr/bin/env bash
exec nsenter --target "\$(cat "$WORK/\${1#*@}.pid")" --mount -- "\${@:2}"
SSH
cat >"$WORK/bin/scp" <<SCP
#!/usr/bin/env bash
to=\${2%%:*}
exec nsenter --target "\$(cat "$WORK/\${to#*@}.pid")" --mount -- install --mode "\$(stat --format %a "\$1")" /dev/stdin "\${2#*:}" <"\$1"
SCP
chmod +x "$WORK/bin"/*
step "the cluster is ready"

# ---- the guide, page after page ----

found() { grep -Eq "$1" "$said" || wrong "not found: $1 in what the page's commands said: $(tail -3 "$said")"; } # pattern

# Pods with containers that have been started again, a line each, or that there are no pods.
restarts() {
    local pods
    pods=$("$KUBECTL" get pods --all-namespaces --output \
        'jsonpath={range .items[*]}{.metadata.name} {.metadata.uid} {.status.containerStatuses[*].restartCount}{"\n"}{end}')
    if [[ -z $pods ]]; then echo "no pods"; else grep -Ev '^[^ ]+ [^ ]+[ 0]*$' <<<"$pods"; fi
}

# Kubelet starts a container again that has crashed, and all that comes next may go well.
steady() { # [line that is known]
    local found
    found=$(restarts | grep -Fxv -e "${1:-none}")
    [[ -z $found ]] || wrong "containers were started again: $found"
}

guide --nodes install.md
found '^edge-1 +csi-hostpath$'
steady
guide --nodes dynamic.md
found ' UTC [0-9]{4}$'
guide --nodes snapshots.md
found ' UTC [0-9]{4}$'
guide --nodes expansion.md
guide --nodes block.md
found '^edge'
guide static.md
guide --nodes operating.md
found '^ok'

steady

# ---- pods that are killed ----

mounts() { on edge-1 grep -F csi-hostpath /proc/self/mountinfo | cut -d' ' -f1,5; }
written() { "$KUBECTL" exec writer -- cat /data/written; }
rolled() { "$KUBECTL" rollout status "$2" --namespace "$1" --timeout=1m; } # namespace set
before=$(mounts; written)
[[ $(wc -l <<<"$before") -gt 1 ]] || wrong "the pod has no volume: $before"
killed() { # namespace pod set
    local lost
    "$KUBECTL" delete pod "$2" --namespace "$1" --grace-period=0 --force >/dev/null 2>&1
    until_true "$2 was killed, and $3 is there again" rolled "$1" "$3"
    lost=$(grep -Fxv -f <(mounts; written) <<<"$before")
    [[ -z $lost ]] || wrong "the volume is not what it was; gone is $lost"
    claim "after-${3#*/}"
    until_true "the next claim works" "$KUBECTL" wait --for=condition=Ready "pod/after-${3#*/}" --timeout=1m
}
killed edge-csi-node "$("$KUBECTL" get pod --namespace edge-csi-node --output name | cut -d/ -f2)" daemonset/edge-csi-node
killed edge-csi edge-csi-controller-0 statefulset/edge-csi-controller
"$KUBECTL" delete pod,pvc after-edge-csi-node after-edge-csi-controller >/dev/null || wrong "cannot delete what was claimed meanwhile"
# What takes the place of a killed one may meet it still, on the ports of its node.
known=$(restarts)

# ---- and away with it ----

guide --nodes upgrading.md
steady "$known"
guide --nodes --away dynamic.md
gone() {
    local drivers
    drivers=$("$KUBECTL" get pv --output 'jsonpath={.items[*].spec.csi.driver}') && [[ -z $drivers ]]
}
until_true "the volumes are gone" gone
left=$(find "$WORK/edge-1/var/lib/csi-hostpath" -mindepth 2 2>/dev/null; mounts)
[[ -z $left ]] || wrong "there is something left on the node: $left"
guide --nodes --away install.md
until_true "what the controller kept is given back" says pv disk '{.status.phase}' Released
if left=$("$KUBECTL" get clusterroles,clusterrolebindings,csidrivers,storageclasses --output name); then
    left=$(grep -E 'edge-csi|csi-hostpath' <<<"$left")
    [[ -z $left ]] || wrong "something of the overlay is left: $left"
else
    wrong "cannot ask what is left of the overlay"
fi
[[ $failed == 0 ]] && echo "all good ($SECONDS s)"
exit "$failed"
