//! `--node-signer`: the signer of Kubernetes that issues the certificates of nodes.

use std::fmt;
use std::str::FromStr;

use crate::kubernetes::node_name::is_subdomain;
use edge_csi_common::excerpt::excerpt;

/// The name of a signer, such as `issuers.cert-manager.io/edge-csi.edge-csi`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSigner(String);

/// The maximum length of a name in bytes, which the API server enforces.
const MAX_BYTES: usize = 571;

/// The domain of the signers of kube-controller-manager, which use the authority of the cluster unless they are given others.
const BUILT_IN: &str = "kubernetes.io";

/// A text is not a name of a signer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{found:?} is not a name of a signer; expected DOMAIN/PATH, as in issuers.cert-manager.io/edge-csi.edge-csi"
)]
pub struct InvalidSigner {
    /// The text, cut to 100 bytes.
    found: String,
}

impl NodeSigner {
    /// Returns the name as text.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether kube-controller-manager signs for this name.
    pub(crate) fn is_built_in(&self) -> bool {
        let domain = self.0.split('/').next().unwrap_or_default();
        domain == BUILT_IN || domain.strip_suffix(BUILT_IN).is_some_and(|above| above.ends_with('.'))
    }
}

impl FromStr for NodeSigner {
    type Err = InvalidSigner;

    fn from_str(text: &str) -> Result<Self, InvalidSigner> {
        let parts = text.split_once('/').filter(|(domain, path)| {
            // An issuer of cert-manager is a namespace and a name, so the path is a subdomain too.
            domain.contains('.') && is_subdomain(domain) && is_subdomain(path) && text.len() <= MAX_BYTES
        });
        match parts {
            Some(_) => Ok(Self(text.to_owned())),
            None => Err(InvalidSigner { found: excerpt(text, 100).to_owned() }),
        }
    }
}

impl fmt::Display for NodeSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_the_signers_of_the_cluster() {
        for (name, is_built_in) in [
            ("issuers.cert-manager.io/edge-csi.edge-csi", false),
            ("example.com/kubernetes.io", false),
            ("notkubernetes.io/a", false),
            ("kubernetes.io/kube-apiserver-client", true),
            ("a.kubernetes.io/b", true),
        ] {
            assert_eq!(name.parse::<NodeSigner>().unwrap().is_built_in(), is_built_in, "{name}");
        }
        for bad in ["", "a", "a/b", "example.com/", "/b", "example.com/B", "Example.com/b", "example.com/a/b"]
        {
            assert!(bad.parse::<NodeSigner>().unwrap_err().to_string().contains("DOMAIN/PATH"), "{bad}");
        }
    }
}
