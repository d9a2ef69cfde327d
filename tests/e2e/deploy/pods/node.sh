#!/usr/bin/env bash
# A node: containerd and kubelet, in a network namespace that has been made and a mount namespace of its own, where
# /var, /run and /etc are the node's. It runs until it is killed.
#
#   nsenter --net=... unshare --mount tests/e2e/deploy/pods/node.sh FOLDER NAME ADDRESS GATEWAY PODS [ARCHIVE...]
#
# PODS is the network of its pods, as 10.244.1; ARCHIVEs are the images that it has. SIDECARS has the program
# `kubernetes`; KUBECONFIG is an admin's. CGROUP names the control group of its containers.
set -euo pipefail
folder=$1 name=$2 address=$3 gateway=$4 pods=$5
shift 5
echo 1 >/proc/sys/net/ipv4/ip_forward
mkdir -p "$folder"/{var/{lib,log,tmp,cache},run,networks,images}
cp --archive /etc "$folder/etc"
echo "nameserver $gateway" >"$folder/resolv.conf"
ln -s /run "$folder/var/run"
# What a container mounts in /var is seen by others on the node.
for part in var run etc; do
    mount --bind "$folder/$part" "/$part"
    mount --make-shared "/$part"
done

# Every pod has a line of its own to the node, so that all packets between pods pass where services become pods.
cat >"$folder/networks/10-pods.conflist" <<NETWORK
{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "ptp", "ipMasq": false, "ipam": {
  "type": "host-local", "ranges": [[{"subnet": "$pods.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
NETWORK
# Without restrict_oom_score_adj, runc dies where root lacks CAP_SYS_RESOURCE.
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
# A machine may have control groups of the first version, and swap. Reports each second save waiting for attachments.
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
