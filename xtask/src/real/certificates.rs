//! A certificate for each process.

use std::path::{Path, PathBuf};

use super::stack::{NODE, PROXY};
use crate::authority::{Authority, CertificateError, Pair, Usage};

/// PEM files.
#[derive(Debug)]
pub(crate) struct Certificates {
    pub(crate) authority: PathBuf,
    pub(crate) hub: Pair,
    pub(crate) agent: Pair,
    pub(crate) endpoint: Pair,
    issuer: Authority,
}

impl Certificates {
    /// Makes them all in `folder`.
    pub(crate) fn make(folder: &Path) -> Result<Self, CertificateError> {
        let authority = Authority::new(folder)?;
        Ok(Self {
            hub: authority.issue("hub", &["localhost", "127.0.0.1"], Usage::Server)?,
            agent: authority.issue("agent", &[NODE], Usage::Client)?,
            endpoint: authority.issue("endpoint", &[PROXY], Usage::Client)?,
            authority: authority.root(),
            issuer: authority,
        })
    }

    /// One for the agent of a further node.
    pub(crate) fn agent_of(&self, node: &str) -> Result<Pair, CertificateError> {
        self.issuer.issue(&format!("agent-{node}"), &[node], Usage::Client)
    }
}
