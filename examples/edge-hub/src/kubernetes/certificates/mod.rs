//! `--node-signer`: nodes renew their certificates through the hub.
//!
//! A node sends a certificate request for its own name, the one that it has proved to the hub. The hub checks the
//! [`request`], limits how often a node may ask ([`limits`]), and has it [signed](sign) by a signer of the cluster. The key
//! stays on the node.

mod der;
mod limits;
mod request;
mod sign;
mod signer;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use async_trait::async_trait;
use bytes::Bytes;
use edge_transport::hub::{HubBuilder, Rules};
use edge_transport::{PeerId, Reason, ReplySender, Service, ServiceName};
use kube::Client;
use prost::Message;
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;

use self::limits::{Digest, Limited, Limits};
use self::request::RequestRefused;
use self::sign::{SignFailure, Signing};
pub use self::signer::{InvalidSigner, NodeSigner};
use super::node_name::{InvalidNodeName, NodeName};
use super::warn_limits::WarnLimits;
use edge_csi_common::certificates::SERVICE;
use edge_csi_common::certificates::message::{Answer, Request};
use edge_csi_common::process::Fatal;

/// The maximum number of requests that are being signed; further ones wait.
const MAX_SIGNING: usize = 16;

/// Why a node gets no certificate.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    /// The name of the peer cannot be that of a Node.
    #[error(transparent)]
    Name(#[from] InvalidNodeName),
    /// The request asks for something else than the name of the node.
    #[error(transparent)]
    Request(#[from] RequestRefused),
    /// The node asks too often.
    #[error(transparent)]
    Limited(#[from] Limited),
    /// The request was not signed.
    #[error(transparent)]
    Sign(#[from] SignFailure),
}

impl Refusal {
    const fn may_succeed_later(&self) -> bool {
        match self {
            Self::Name(_) | Self::Request(_) => false,
            Self::Limited(_) => true,
            Self::Sign(failure) => failure.may_succeed_later(),
        }
    }

    /// The label of the metric.
    const fn outcome(&self) -> &'static str {
        match self {
            Self::Name(_) | Self::Request(_) => "refused",
            Self::Limited(_) => "limited",
            Self::Sign(_) => "failed",
        }
    }
}

/// Answers the requests of nodes for certificates.
#[derive(Clone)]
struct CertificateService {
    signing: Arc<Signing>,
    limits: Arc<Mutex<Limits>>,
    slots: Arc<Semaphore>,
    warnings: WarnLimits,
}

/// Adds the service to a hub.
pub(super) fn serve(
    hub: HubBuilder,
    client: Client,
    signer: NodeSigner,
    authorities: PathBuf,
    warnings: WarnLimits,
) -> Result<HubBuilder, Fatal> {
    tracing::info!(%signer, "nodes can renew their certificates");
    let service = CertificateService {
        signing: Arc::new(Signing { client, signer, authorities }),
        limits: Arc::default(),
        slots: Arc::new(Semaphore::new(MAX_SIGNING)),
        warnings,
    };
    let name = ServiceName::new(SERVICE).map_err(Fatal::runtime)?;
    Ok(hub.service(name, Rules::nodes_only(), service))
}

#[async_trait]
impl Service for CertificateService {
    async fn call(&self, source: PeerId, request: edge_transport::Request, replies: ReplySender) {
        // In a task of its own, since the API server must not delay other nodes.
        tokio::spawn(self.clone().answer(source, request.body, replies));
    }
}

impl CertificateService {
    async fn answer(self, source: PeerId, body: Bytes, replies: ReplySender) {
        let request = match Request::decode(body) {
            Ok(request) => request.certificate_request,
            Err(cause) => {
                // Fails if the node has disconnected.
                let _ = replies.fail(Reason::Protocol, format!("cannot decode the request: {cause}")).await;
                return;
            }
        };
        let answer = match self.issue(&source, &request).await {
            Ok(chain) => {
                count("issued");
                tracing::info!(node = %source, "a node has renewed its certificate");
                Answer { chain, ..Answer::default() }
            }
            Err(refusal) => {
                count(refusal.outcome());
                let node = NodeName::new(source.as_str()).ok();
                if self.warnings.permits("certificate", node.as_ref(), Instant::now()) {
                    tracing::warn!(node = %source, %refusal, "a node got no certificate");
                }
                Answer {
                    reason: refusal.to_string(),
                    again: refusal.may_succeed_later(),
                    ..Answer::default()
                }
            }
        };
        let _ = replies.send_and_finish(answer.encode_to_vec().into(), Bytes::new()).await;
    }

    async fn issue(&self, source: &PeerId, request: &[u8]) -> Result<String, Refusal> {
        let node = NodeName::new(source.as_str())?;
        let digest = digest(&self.signing.signer, &node, request);
        // First of all, since the check of a signature takes time too.
        let _open = OpenRequest::begin(&self.limits, &node, digest)?;
        let checked = request::check(request, &node)?;
        // The semaphore is never closed.
        let _slot = self.slots.acquire().await;
        Ok(self.signing.sign(&node, (request, &digest), checked).await?)
    }
}

/// The open request of a node, until dropped.
struct OpenRequest<'a> {
    limits: &'a Mutex<Limits>,
    node: &'a NodeName,
}

impl<'a> OpenRequest<'a> {
    fn begin(limits: &'a Mutex<Limits>, node: &'a NodeName, digest: Digest) -> Result<Self, Limited> {
        lock(limits).begin(node, digest, Instant::now())?;
        Ok(Self { limits, node })
    }
}

impl Drop for OpenRequest<'_> {
    fn drop(&mut self) {
        lock(self.limits).end(self.node, Instant::now());
    }
}

fn lock(limits: &Mutex<Limits>) -> MutexGuard<'_, Limits> {
    limits.lock().unwrap_or_else(PoisonError::into_inner)
}

fn count(outcome: &'static str) {
    metrics::counter!("edge_csi_node_certificates_total", "outcome" => outcome).increment(1);
}

/// Identifies a request: an equal one of the same node to the same signer has the same digest.
fn digest(signer: &NodeSigner, node: &NodeName, request: &[u8]) -> Digest {
    let mut digest = Sha256::new();
    for part in [signer.as_str().as_bytes(), node.as_str().as_bytes(), request] {
        digest.update(part.len().to_be_bytes());
        digest.update(part);
    }
    digest.finalize().into()
}
