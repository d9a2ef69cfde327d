#!/usr/bin/env bash
# Holds the manifests against an API server: every overlay and component is accepted, pods meet the level of their
# namespace, and the account of the sidecars may do what they do and no more.
#
#   KUBECONFIG   an API server that authorizes by RBAC, without edge-csi in it yet; its admin
#   CRDS         folders with the definitions of snapshots and of cert-manager, separated by colons
#
# Leaves behind: those definitions, two namespaces, roles. Ends with 0 if all holds.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../../deploy"
: "${KUBECONFIG:?names the kubeconfig of an API server}" "${CRDS:?names folders with CRDs, separated by colons}"
KUBECTL=${KUBECTL:-kubectl}
work=$(mktemp -d) || exit
trap 'rm -rf "$work"' EXIT
failed=0 checked=0

wrong() { echo "WRONG: $*"; failed=1; }

# Whether a file of objects would be taken as it is, without a warning.
accepted() { # name file
    checked=$((checked + 1))
    "$KUBECTL" apply --server-side --force-conflicts --field-manager=check --dry-run=server --warnings-as-errors -f "$2" >"$work/out" 2>&1 ||
        { wrong "$1 is not accepted"; grep -v 'serverside-applied' "$work/out"; }
}

# An overlay with components on top, in a folder of its own.
with_components() { # overlay component...
    local folder=$work/overlay overlay=$1 component
    shift
    mkdir -p "$folder"
    {
        printf 'apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [%s]\ncomponents:\n' \
            "$(realpath --relative-to="$folder" "overlays/$overlay")"
        for component in "$@"; do
            printf -- '- %s\n' "$(realpath --relative-to="$folder" "components/$component")"
        done
    } >"$folder/kustomization.yaml"
    "$KUBECTL" kustomize "$folder"
}

# The pods that an overlay's sets and deployments would make, as objects of their own.
pods_of() {
    "$KUBECTL" create --dry-run=client --output json --filename "$1" | python3 -c '
import json, sys
text, decoder, at = sys.stdin.read(), json.JSONDecoder(), 0
objects = []
while text[at:].strip():
    found, length = decoder.raw_decode(text[at:].lstrip())
    at += len(text[at:]) - len(text[at:].lstrip()) + length
    objects += found.get("items", [found])
pods = []
for owner in objects:
    if owner["kind"] not in ("StatefulSet", "Deployment", "DaemonSet"):
        continue
    pod = owner["spec"]["template"]
    pod.update(apiVersion="v1", kind="Pod")
    pod["metadata"].update(name=owner["metadata"]["name"], namespace=owner["metadata"]["namespace"])
    for claim in owner["spec"].get("volumeClaimTemplates", []):
        name = claim["metadata"]["name"]
        pod["spec"]["volumes"].append({"name": name, "persistentVolumeClaim": {"claimName": name}})
    pods.append(pod)
json.dump({"apiVersion": "v1", "kind": "List", "items": pods}, sys.stdout)
'
}

may() { # yes|no verb resource[/subresource] [namespace]
    local wanted=$1 verb=$2 resource=$3 namespace=${4:-} options=() answer end=$((SECONDS + 10))
    # A slash alone would be taken for the name of an object.
    [[ $resource != */* ]] || options+=("--subresource=${resource#*/}")
    [[ -z $namespace ]] || options+=(--namespace "$namespace")
    checked=$((checked + 1))
    while true; do
        answer=$("$KUBECTL" auth can-i "$verb" "${resource%/*}" "${options[@]}" \
            --as="system:serviceaccount:edge-csi:$account" 2>/dev/null)
        # The authorizer may learn of a role a moment after it was made; a right that nobody gave does not go by itself.
        [[ $wanted == yes && $answer != yes ]] && ((SECONDS < end)) || break
        sleep 0.2
    done
    [[ $answer == "$wanted" ]] || wrong "the account $account: $*: ${answer:-no answer} instead of $wanted"
}

# ---- what has to be there before ----

IFS=: read -ra folders <<<"$CRDS"
for folder in "${folders[@]}"; do
    for file in "$folder"/*.yaml; do
        [[ $file == */kustomization.yaml ]] && continue
        # cert-manager's are a chart's, with labels to be filled in.
        sed '/{{/d' "$file" | "$KUBECTL" apply --server-side --force-conflicts -f - >/dev/null ||
            { wrong "cannot define $file"; exit 1; }
    done
done
"$KUBECTL" wait --for=condition=Established crd --all --timeout=60s >/dev/null || { wrong "CRDs are not ready"; exit 1; }
"$KUBECTL" apply -k base/namespaces >/dev/null || { wrong "cannot make the namespaces"; exit 1; }
"$KUBECTL" label namespace edge-csi pod-security.kubernetes.io/warn=restricted --overwrite >/dev/null
for namespace in default edge-csi edge-csi-node; do
    for _ in {1..50}; do
        "$KUBECTL" get serviceaccount default --namespace "$namespace" >/dev/null 2>&1 && break
        sleep 0.2
    done
done

# ---- every overlay, every component, every example ----

for overlay in overlays/*/; do
    overlay=$(basename "$overlay")
    "$KUBECTL" kustomize "overlays/$overlay" >"$work/$overlay.yaml" || { wrong "overlay $overlay"; continue; }
    accepted "overlay $overlay" "$work/$overlay.yaml"
    untagged=$(grep -E '^ *-? *image: ' "$work/$overlay.yaml" | grep -vE 'image: [^ ]+:v?[0-9.]+$')
    [[ -z $untagged ]] || wrong "overlay $overlay has images without a version: $untagged"
    # A name that kustomize looks for is taken for a part of another as well.
    grep -q 'path: /var/lib/kubelet/plugins$' "$work/$overlay.yaml" || wrong "overlay $overlay hides the drivers' sockets from the agent"
done
for component in cert-manager secrets without-snapshots; do
    with_components topology "$component" >"$work/component.yaml" || { wrong "component $component"; continue; }
    # Its own namespace cannot be tried, as long as nothing has made it.
    [[ $component == secrets ]] && "$KUBECTL" create namespace edge-csi-secrets --save-config >/dev/null 2>&1
    accepted "component $component" "$work/component.yaml"
done
grep -q 'csi-snapshotter\|VolumeSnapshotClass' "$work/component.yaml" && wrong "without-snapshots leaves some behind"
accepted node-certificate components/cert-manager/node-certificate.yaml
for example in examples/*.yaml; do
    accepted "$example" "$example"
done
with_components topology secrets hub-kubernetes >"$work/component.yaml" || wrong "components of the hub"
accepted "components of the hub" "$work/component.yaml"

# ---- pods, as their namespaces demand ----

# A pod is admitted only if its account exists.
for name in edge-csi/edge-hub edge-csi/edge-csi-controller edge-csi-node/edge-csi-node; do
    "$KUBECTL" create serviceaccount "${name#*/}" --namespace "${name%/*}" >/dev/null 2>&1
done
for overlay in topology sockets; do
    pods_of "$work/$overlay.yaml" >"$work/pods.json" || wrong "pods of $overlay"
    [[ $(grep -o '"kind": "Pod"' "$work/pods.json" | wc -l) == 3 ]] || wrong "$overlay has not three kinds of pods"
    accepted "pods of $overlay" "$work/pods.json"
done

# ---- what the sidecars may do: what their sources ask for ----

account=edge-csi-controller
"$KUBECTL" apply -f base/controller/rbac-provisioner.yaml -f base/controller/rbac-attacher.yaml \
    -f base/controller/rbac-resizer.yaml -f base/controller/rbac-snapshotter.yaml \
    -f base/controller/rbac-leader-election.yaml >/dev/null || wrong "cannot make the roles"
nobody=$("$KUBECTL" auth can-i get nodes --as=system:serviceaccount:default:nobody 2>/dev/null)
[[ $nobody == no ]] || wrong "this API server lets everybody do everything: it must authorize by RBAC"

# Reads lines of verbs, a resource and, if it has one, a namespace.
all_may() { # yes|no
    local verbs resource namespace verb
    while read -r verbs resource namespace; do
        for verb in ${verbs//,/ }; do
            may "$1" "$verb" "$resource" "$namespace"
        done
    done
}

all_may yes <<'NEEDED'
get,list,watch,update persistentvolumeclaims default
get,list,watch,create,patch,delete persistentvolumes
get,list,watch storageclasses.storage.k8s.io
get,list,watch volumeattributesclasses.storage.k8s.io
list,watch,create,update,patch events default
create,update,patch events edge-csi
get,list,watch csinodes.storage.k8s.io
get,list,watch nodes
get,list,watch,patch volumeattachments.storage.k8s.io
patch volumeattachments.storage.k8s.io/status
get,list,watch,update volumesnapshots.snapshot.storage.k8s.io default
get,list,watch,update,patch volumesnapshotcontents.snapshot.storage.k8s.io
update,patch volumesnapshotcontents.snapshot.storage.k8s.io/status
get,list,watch volumesnapshotclasses.snapshot.storage.k8s.io
patch persistentvolumeclaims/status default
get,list,watch,create,update,patch,delete csistoragecapacities.storage.k8s.io edge-csi
get pods edge-csi
get,create,update leases.coordination.k8s.io edge-csi
NEEDED

all_may no <<'REFUSED'
get,list,watch,create secrets default
get,list,watch,create secrets edge-csi
get,list secrets kube-system
create,delete,patch pods default
create,delete,patch pods edge-csi
create pods/exec edge-csi
list,watch pods default
create,delete persistentvolumeclaims default
create,delete volumeattachments.storage.k8s.io
update,patch,delete nodes
create,update,delete storageclasses.storage.k8s.io
create,delete volumesnapshotcontents.snapshot.storage.k8s.io
delete leases.coordination.k8s.io edge-csi
get,create,update leases.coordination.k8s.io kube-system
create,delete csistoragecapacities.storage.k8s.io default
create clusterrolebindings.rbac.authorization.k8s.io
impersonate users
create serviceaccounts/token edge-csi
REFUSED

"$KUBECTL" apply -f components/secrets/rbac-secrets.yaml >/dev/null || wrong "cannot make the role for secrets"
may yes get secrets edge-csi-secrets
may no list secrets edge-csi-secrets
may no get secrets edge-csi

# ---- what a hub with --kubeconfig may do ----

account=edge-hub
"$KUBECTL" apply -f components/hub-kubernetes/rbac-hub.yaml >/dev/null || wrong "cannot make the roles of the hub"
all_may yes <<'NEEDED'
list,watch pods
get,list,watch persistentvolumeclaims
patch persistentvolumeclaims/status default
list,watch persistentvolumes
list,watch volumeattachments.storage.k8s.io
list,watch csidrivers.storage.k8s.io
get,list,watch,patch nodes
patch nodes/status
get,create,patch csinodes.storage.k8s.io
create,patch events default
get secrets edge-csi-secrets
NEEDED
all_may no <<'REFUSED'
get,list,watch secrets default
list,watch secrets edge-csi-secrets
create serviceaccounts/token default
create,patch,delete pods default
patch,update,delete persistentvolumeclaims default
create,patch,delete persistentvolumes
create,patch volumeattachments.storage.k8s.io
create,delete nodes
get,list,delete events default
delete csinodes.storage.k8s.io
REFUSED

echo "$checked checks, $([[ $failed == 0 ]] && echo all good || echo some FAILED)"
exit "$failed"
