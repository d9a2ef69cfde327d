//! A certificate for each process.

use std::path::Path;

use edge_csi_tests::certificates::{Authority, Files};
use edge_csi_tests::stand::NODE;

use super::stack::PROXY;

/// PEM files.
#[derive(Debug)]
pub(crate) struct Certificates {
    pub(crate) hub: Files,
    pub(crate) agent: Files,
    pub(crate) endpoint: Files,
    issuer: Authority,
}

impl Certificates {
    /// Makes them all in `folder`.
    pub(crate) fn make(folder: &Path) -> Self {
        let issuer = Authority::new(folder, "ca");
        Self {
            hub: issuer.issue(&["localhost", "127.0.0.1"]),
            agent: issuer.issue(&[NODE]),
            endpoint: issuer.issue(&[PROXY]),
            issuer,
        }
    }

    /// One for the agent of a further node.
    pub(crate) fn agent_of(&self, node: &str) -> Files {
        self.issuer.issue(&[node])
    }
}
