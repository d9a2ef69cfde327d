//! The rights that accounts must have, and those that they must not have.

use std::fmt;

use serde_json::json;

use crate::error::E2eError;
use crate::kubernetes::Api;

/// The sidecars' requests according to their sources: verbs, a resource and, if the resource has one, a namespace.
pub(super) const SIDECARS_NEED: &str = "\
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
";

/// Requests that the sidecars must not be allowed to make.
pub(super) const SIDECARS_ARE_REFUSED: &str = "\
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
";

/// The requests of edge-csi-driver with `--placements kubernetes`, and of the provisioner beside it.
pub(super) const PROXY_NEEDS: &str = "\
get,list,create,update,delete placements.edge-csi.io edge-csi
get,list,create,update,delete drivernodes.edge-csi.io edge-csi
get,create,update leases.coordination.k8s.io edge-csi
get replicasets.apps edge-csi
";

/// Requests that such an edge-csi-driver must not be allowed to make.
pub(super) const PROXY_IS_REFUSED: &str = "\
get,list,create,update,delete placements.edge-csi.io default
patch,deletecollection placements.edge-csi.io edge-csi
get,list,create,update,delete drivernodes.edge-csi.io default
delete leases.coordination.k8s.io edge-csi
get leases.coordination.k8s.io kube-system
create,update,patch,delete replicasets.apps edge-csi
create,update,delete customresourcedefinitions.apiextensions.k8s.io
";

/// The requests of a hub with `--kubeconfig`.
pub(super) const HUB_NEEDS: &str = "\
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
";

/// Requests that a hub must not be allowed to make.
pub(super) const HUB_IS_REFUSED: &str = "\
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
";

/// The requests of a hub with `--node-signer`, besides the approval for one signer.
pub(super) const RENEWAL_NEEDS: &str = "\
get,create certificatesigningrequests.certificates.k8s.io
patch certificatesigningrequests.certificates.k8s.io/approval
";

/// Requests that such a hub must not be allowed to make. `approve` is for all signers.
pub(super) const RENEWAL_IS_REFUSED: &str = "\
list,watch,update,patch,delete certificatesigningrequests.certificates.k8s.io
patch,update certificatesigningrequests.certificates.k8s.io/status
approve,sign,attest signers.certificates.k8s.io
reference signers.cert-manager.io edge-csi
create certificaterequests.cert-manager.io edge-csi
";

/// The API server's resource that reports whether an account has a right.
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

/// A service account.
#[derive(Debug, Clone, Copy)]
pub(super) struct Account {
    pub(super) namespace: &'static str,
    pub(super) name: &'static str,
}

/// One verb on one resource.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Right<'a> {
    verb: &'a str,
    group: &'a str,
    resource: &'a str,
    subresource: &'a str,
    /// `None`: all namespaces.
    namespace: Option<&'a str>,
}

impl<'a> Right<'a> {
    /// Creates a right from a verb and a resource of the form `RESOURCE[.GROUP][/SUBRESOURCE]`.
    pub(super) fn new(verb: &'a str, resource: &'a str, namespace: Option<&'a str>) -> Self {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let (resource, group) = resource.split_once('.').unwrap_or((resource, ""));
        Self { verb, group, resource, subresource, namespace }
    }
}

impl fmt::Display for Right<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verb, group, resource, subresource, namespace } = self;
        write!(f, "{verb} {resource}.{group}/{subresource} in {}", namespace.unwrap_or("all namespaces"))
    }
}

/// Parses lines into one right for each verb.
pub(super) fn list(lines: &str) -> Vec<Right<'_>> {
    let rights = lines.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let (verbs, resource) = (words.next()?, words.next()?);
        let namespace = words.next();
        Some(verbs.split(',').map(move |verb| Right::new(verb, resource, namespace)))
    });
    rights.flatten().collect()
}

impl Account {
    /// Returns true if the account has the right.
    pub(super) fn may(self, api: &Api, right: &Right<'_>) -> Result<bool, E2eError> {
        let Self { namespace, name } = self;
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": format!("system:serviceaccount:{namespace}:{name}"),
                "groups": [
                    "system:serviceaccounts",
                    format!("system:serviceaccounts:{namespace}"),
                    "system:authenticated",
                ],
                "resourceAttributes": {
                    "verb": right.verb,
                    "group": right.group,
                    "resource": right.resource,
                    "subresource": right.subresource,
                    "namespace": right.namespace,
                },
            },
        });
        Ok(api.ask_with(REVIEWS, &review)?["status"]["allowed"] == true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_right_for_each_verb() {
        let rights = list("get,list pods default\npatch a.b.c/status\n");
        let pods =
            |verb| Right { verb, group: "", resource: "pods", subresource: "", namespace: Some("default") };
        let status =
            Right { verb: "patch", group: "b.c", resource: "a", subresource: "status", namespace: None };
        assert_eq!(rights, [pods("get"), pods("list"), status]);
        assert_eq!(list(SIDECARS_NEED).len(), 61);
    }
}
