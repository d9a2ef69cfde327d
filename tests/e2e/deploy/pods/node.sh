#!/usr/bin/env bash
# Runs a node, until it is killed: containerd and kubelet, in an existing network namespace and a separate mount
# namespace, in which /var, /run and /etc belong to the node.
#
#   nsenter --net=... unshare --mount tests/e2e/deploy/pods/node.sh FOLDER NAME ADDRESS GATEWAY PODS [ARCHIVE...]
#
# PODS is the first three octets of the pods' addresses, such as 10.244.1. Each ARCHIVE is an image to import. The
# variables: SIDECARS is the folder of the program `kubernetes`, KUBECONFIG is an admin's, and CGROUP is the control group
# of the containers.
set -euo pipefail
folder=$1 name=$2 address=$3 gateway=$4 pods=$5
shift 5
echo 1 >/proc/sys/net/ipv4/ip_forward
mkdir -p "$folder"/{var/{lib,log,tmp,cache},run,networks,images}
cp --archive /etc "$folder/etc"
echo "nameserver $gateway" >"$folder/resolv.conf"
ln -s /run "$folder/var/run"
# Shared, so that mounts that a container makes in /var are visible to the node and its other containers.
for part in var run etc; do
    mount --bind "$folder/$part" "/$part"
    mount --make-shared "/$part"
done

# Every pod has a point-to-point link to the node, so that all packets between pods pass the node, where kube-proxy
# translates the addresses of services.
cat >"$folder/networks/10-pods.conflist" <<NETWORK
{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "ptp", "ipMasq": false, "ipam": {
  "type": "host-local", "ranges": [[{"subnet": "$pods.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
NETWORK
# Without restrict_oom_score_adj, runc fails on hosts where root lacks CAP_SYS_RESOURCE.
cat >"$folder/containerd.toml" <<CONTAINERD
version = 2
root = "$folder/images"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "edge-csi.invalid/pause:1"
  disable_apparmor = true
  restrict_oom_score_adj = true
  disable_tcp_service = true
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/usr/lib/cni"
  conf_dir = "$folder/networks"
CONTAINERD
# A host may have cgroup v1, and swap. With the default interval, each attachment waits up to ten seconds for the node's
# next status report.
cat >"$folder/kubelet.yaml" <<KUBELET
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $address
readOnlyPort: 0
healthzPort: 0
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
clusterDNS: [$gateway]
clusterDomain: cluster.local
resolvConf: $folder/resolv.conf
failCgroupV1: false
failSwapOn: false
cgroupDriver: cgroupfs
cgroupRoot: /$CGROUP
cgroupsPerQOS: false
enforceNodeAllocatable: []
localStorageCapacityIsolation: false
volumePluginDir: /var/lib/kubelet-plugins
syncFrequency: 1s
nodeStatusUpdateFrequency: 1s
imageMinimumGCAge: 24h
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: "0%", nodefs.available: "0%", imagefs.available: "0%", nodefs.inodesFree: "0%", imagefs.inodesFree: "0%"}
KUBELET

containerd --config "$folder/containerd.toml" >"$folder/containerd.log" 2>&1 &
for _ in {1..100}; do
    ctr version >/dev/null 2>&1 && break
    sleep 0.1
done
for archive in "$@"; do
    ctr --namespace k8s.io images import "$archive" >"$folder/import.log"
done
exec "$SIDECARS/kubernetes" kubelet --config "$folder/kubelet.yaml" --kubeconfig "$KUBECONFIG" --hostname-override "$name" \
    --node-ip "$address" --v 2 >"$folder/kubelet.log" 2>&1
