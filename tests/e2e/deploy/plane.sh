#!/usr/bin/env bash
# A control plane of Kubernetes for nodes with kubelets, for one command: etcd, API server by RBAC, controllers, scheduler.
#
#   tests/e2e/deploy/plane.sh BIN COMMAND...
#
# BIN has the program `kubernetes` that the test `manifests` builds. COMMAND gets KUBECONFIG, of an admin, and KUBECTL.
#
#   ADDRESS   where the API server listens, for nodes and for pods on them
set -uo pipefail
(($# > 1)) || { echo "plane.sh: give the folder with the program kubernetes, and a command" >&2; exit 2; }
program=$(realpath "$1")/kubernetes
shift
[[ -x $program ]] || { echo "plane.sh: there is no $program; the test manifests builds it" >&2; exit 2; }
: "${ADDRESS:?names an address of this machine}"
work=$(mktemp -d "${TMPDIR:-/tmp}/edge-plane.XXXXXX") || exit
processes=()

ended() {
    # Nothing is kept, and an API server that is asked to end waits for its etcd.
    ((${#processes[@]})) && kill -KILL "${processes[@]}" 2>/dev/null && wait "${processes[@]}" 2>/dev/null
    rm -rf "$work"
}
trap ended EXIT

begin() { # name command...
    local name=$1
    shift
    "$@" >"$work/$name.log" 2>&1 </dev/null &
    processes+=("$!")
}

until_ready() { # name command...
    local name=$1
    shift
    for _ in {1..300}; do
        "$@" >/dev/null 2>&1 && return
        sleep 0.2
    done
    echo "plane.sh: $name is not ready within a minute:" >&2
    tail -20 "$work/$name.log" >&2
    exit 1
}

read -r client peer api < <(python3 -c '
import socket
sockets = [socket.socket() for _ in range(3)]
for one in sockets:
    one.bind(("127.0.0.1", 0))
print(*(one.getsockname()[1] for one in sockets))')

openssl genrsa -out "$work/accounts.key" 2048 2>/dev/null
token=$(openssl rand -hex 16)
printf '%s,admin,admin,"system:masters"\n' "$token" >"$work/tokens.csv"
export KUBECONFIG=$work/kubeconfig
cat >"$KUBECONFIG" <<CONFIG
apiVersion: v1
kind: Config
current-context: it
contexts: [{name: it, context: {cluster: it, user: admin}}]
clusters: [{name: it, cluster: {server: "https://$ADDRESS:$api", insecure-skip-tls-verify: true}}]
users: [{name: admin, user: {token: $token}}]
CONFIG
# By this name the program is kubectl.
mkdir "$work/bin" && ln -s "$program" "$work/bin/kubectl"
export KUBECTL=$work/bin/kubectl PATH=$work/bin:$PATH

begin etcd etcd --name it --data-dir "$work/etcd" --unsafe-no-fsync --log-level warn \
    --listen-client-urls "http://127.0.0.1:$client" --advertise-client-urls "http://127.0.0.1:$client" \
    --listen-peer-urls "http://127.0.0.1:$peer" --initial-advertise-peer-urls "http://127.0.0.1:$peer" \
    --initial-cluster "it=http://127.0.0.1:$peer"
begin apiserver "$program" kube-apiserver --etcd-servers "http://127.0.0.1:$client" \
    --bind-address "$ADDRESS" --advertise-address "$ADDRESS" --secure-port "$api" --cert-dir "$work/certificates" \
    --token-auth-file "$work/tokens.csv" --authorization-mode RBAC --anonymous-auth=false --allow-privileged=true \
    --service-account-issuer https://kubernetes.default.svc --service-cluster-ip-range 10.96.0.0/16 \
    --service-account-key-file "$work/accounts.key" --service-account-signing-key-file "$work/accounts.key" \
    --kubelet-preferred-address-types InternalIP
until_ready apiserver "$KUBECTL" get --raw /readyz
begin controllers "$program" kube-controller-manager --kubeconfig "$KUBECONFIG" --leader-elect=false --secure-port=0 \
    --service-account-private-key-file "$work/accounts.key" --root-ca-file "$work/certificates/apiserver.crt" \
    --controllers='*,-node-ipam-controller' --attach-detach-reconcile-sync-period 10s
begin scheduler "$program" kube-scheduler --kubeconfig "$KUBECONFIG" --leader-elect=false --secure-port=0
until_ready controllers "$KUBECTL" get serviceaccount default

"$@"
