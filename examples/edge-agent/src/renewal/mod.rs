//! Renews the certificate of this node through the hub before it ends.
//!
//! The [`schedule`] says when. The agent generates a [`key`], requests its certificate from the service `certificates` of the
//! hub, checks the answer, and replaces one file with key and certificate in the state directory. The next link uses it. A
//! failure is a condition that the log and the status page name; the present certificate stays in use.

mod key;
mod schedule;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use edge_transport::advanced::Backoff;
use edge_transport::tls::{ClientTls, Identity};
use edge_transport::{CallError, Failure, InvalidName, Peer, Reason, ReplyEvent, ServiceName};
use prost::{DecodeError, Message as _};
use tokio::time::sleep;

use self::key::{AnswerRefused, NewKey, Present};
use edge_csi_common::certificates::SERVICE;
use edge_csi_common::certificates::message::{Answer, Request};
use edge_csi_common::security::ClientSecurity;
use edge_csi_common::state::{self, PathError};
use edge_csi_common::status::Fact;
use edge_csi_common::uplink::LinkFiles;

/// The file in the state directory with the renewed certificate and its key.
pub(super) const FILE: &str = "renewed.pem";

/// The maximum wait for the answer. Longer than the hub waits for a signature.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(45);

/// The longest first delay after a failure, and the longest delay.
const RETRY_DELAYS: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(600));

/// Why the certificate was not renewed.
#[derive(Debug, thiserror::Error)]
enum RenewalError {
    /// The key cannot be generated, or the name cannot be in a request.
    #[error("cannot make a request for a certificate: {0}")]
    Request(#[from] rcgen::Error),
    /// The request was not sent.
    #[error("the hub is not connected: {0}")]
    NotSent(#[from] CallError),
    /// The hub does not renew certificates.
    #[error("the hub does not renew certificates; it needs --node-signer")]
    NotOffered,
    /// The hub, or the link to it, has failed.
    #[error("the hub's service for certificates failed: {0}")]
    Failed(Failure),
    /// The answer cannot be decoded.
    #[error("cannot decode the hub's answer: {0}")]
    Malformed(#[from] DecodeError),
    /// There was no answer.
    #[error("the hub ended the request without an answer")]
    Empty,
    /// The hub gives no certificate.
    #[error("the hub gave no certificate: {0}")]
    Refused(String),
    /// The answer is not used.
    #[error(transparent)]
    Answer(#[from] AnswerRefused),
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] PathError),
    /// The written certificate is not in use.
    #[error("{} was written and cannot be used", .0.display())]
    NotUsed(PathBuf),
    /// The present certificate cannot be used any more.
    #[error("there is no certificate to renew")]
    NoCertificate,
    /// The task that writes the file has ended.
    #[error("the certificate was not written: {0}")]
    Stopped(#[from] tokio::task::JoinError),
}

/// Returns the certificate in use, if it can be used.
fn used(files: &ClientTls) -> Option<Identity> {
    files.identity().ok().flatten()
}

/// The certificate of this node, for the status page.
#[derive(Debug, Clone)]
pub(super) struct RenewalView {
    files: ClientTls,
    failure: Arc<Mutex<Option<String>>>,
}

impl RenewalView {
    /// Returns the rows of the status page.
    pub(super) fn facts(&self) -> Vec<Fact> {
        let origin = if self.files.is_renewed() { "renewed by the agent" } else { "from --tls-cert" };
        let expires = used(&self.files).and_then(|identity| identity.expires());
        let left = expires.map(|end| end.duration_since(SystemTime::now()).unwrap_or_default().as_secs());
        let text = left.map_or_else(
            || "cannot be used".to_owned(),
            |left| format!("{origin}, ends in {} h {} min", left / 3600, left / 60 % 60),
        );
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let failure = failure.map(|failure| Fact::new("certificate not renewed", failure));
        std::iter::once(Fact::new("certificate", text)).chain(failure).collect()
    }

    /// Sets the failure that the page shows. Returns whether it is new.
    fn set_failure(&self, failure: Option<String>) -> bool {
        let mut shown = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = *shown != failure;
        *shown = failure;
        is_new
    }
}

/// Renews the certificate of this node.
pub(super) struct Renewal {
    files: ClientTls,
    links: LinkFiles,
    peer: Peer,
    service: ServiceName,
    /// The file of the renewed certificate.
    path: PathBuf,
    given: PathBuf,
    authorities: PathBuf,
    share: f64,
    backoff: Backoff,
    /// The key of a request that may still succeed.
    pending: Option<NewKey>,
    view: RenewalView,
}

impl Renewal {
    /// Prepares renewal; `None` without a certificate that can be renewed. `seed` spreads the nodes.
    pub(super) fn new(
        links: &LinkFiles,
        peer: &Peer,
        (security, path): (&ClientSecurity, PathBuf),
        seed: u64,
    ) -> Result<Option<Self>, InvalidName> {
        let paths = security.tls_cert.clone().zip(security.tls_ca.clone());
        let Some(((given, authorities), files)) = paths.zip(links.renewable()) else { return Ok(None) };
        let (first, cap) = RETRY_DELAYS;
        Ok(Some(Self {
            view: RenewalView { files: files.clone(), failure: Arc::default() },
            files,
            links: links.clone(),
            peer: peer.clone(),
            service: ServiceName::new(SERVICE)?,
            path,
            given,
            authorities,
            share: (seed % 1024) as f64 / 1024.0,
            backoff: Backoff::new(first, cap, seed),
            pending: None,
        }))
    }

    /// What the status page shows.
    pub(super) fn view(&self) -> RenewalView {
        self.view.clone()
    }

    /// Renews the certificate whenever it is due, until the peer is closed.
    pub(super) async fn run(mut self) {
        loop {
            let used = used(&self.files);
            let validity = used.and_then(|identity| identity.valid_from().zip(identity.expires()));
            let wait = validity.map_or(Some(schedule::NO_CERTIFICATE_INTERVAL), |validity| {
                schedule::wait(SystemTime::now(), validity, self.share)
            });
            if let Some(wait) = wait {
                self.pending = None;
                self.view.set_failure(None);
                sleep(wait).await;
                continue;
            }
            if self.peer.connected().await.is_err() {
                return;
            }
            match self.renew().await {
                Ok(expires) => {
                    count("renewed");
                    let days =
                        expires.duration_since(SystemTime::now()).unwrap_or_default().as_secs() / 86_400;
                    tracing::info!(days, file = %self.path.display(), "the certificate was renewed");
                    self.backoff.reset();
                    // The hub ends the session of the old certificate when that ends.
                    self.peer.redial();
                }
                Err(error) => {
                    count("failed");
                    let text = error.to_string();
                    match (self.view.set_failure(Some(text.clone())), error) {
                        (true, RenewalError::NotOffered) => {
                            tracing::info!("the certificate is not renewed: {text}");
                        }
                        (true, _) => tracing::warn!("the certificate was not renewed, trying again: {text}"),
                        (false, _) => {}
                    }
                    sleep(self.backoff.next_wait()).await;
                }
            }
        }
    }

    /// Requests a certificate and replaces the file. Returns when the new certificate ends.
    async fn renew(&mut self) -> Result<SystemTime, RenewalError> {
        let name = self.peer.name().clone();
        let key = match self.pending.take() {
            Some(key) => key,
            None => NewKey::generate(&name)?,
        };
        let chain = match self.request(&key).await {
            Ok(Answer { chain, .. }) if !chain.is_empty() => chain,
            Ok(Answer { reason, again, .. }) => {
                // The request continues at the hub: the next one joins it.
                self.pending = again.then_some(key);
                return Err(RenewalError::Refused(reason));
            }
            Err(error) => {
                self.pending = Some(key);
                return Err(error);
            }
        };
        let present = used(&self.files).and_then(|identity| identity.expires());
        let expires = present.ok_or(RenewalError::NoCertificate)?;
        let certificate = if self.files.is_renewed() { self.path.clone() } else { self.given.clone() };
        let (path, authorities, links) = (self.path.clone(), self.authorities.clone(), self.links.clone());
        let files = self.files.clone();
        let replaced = tokio::task::spawn_blocking(move || {
            let read = |path: &PathBuf| std::fs::read(path).map_err(state::failed("read", path));
            let present = Present { chain: read(&certificate)?, authorities: read(&authorities)?, expires };
            let (text, expires) = key.accept(&chain, &name, &present, SystemTime::now())?;
            state::replace(&path, text.as_bytes())?;
            links.reload();
            if files.is_renewed() { Ok(expires) } else { Err(RenewalError::NotUsed(path)) }
        });
        replaced.await?
    }

    async fn request(&self, key: &NewKey) -> Result<Answer, RenewalError> {
        let body = Request { certificate_request: key.request().to_vec().into() }.encode_to_vec();
        let request = edge_transport::Request::new(self.service.clone(), body).remaining(ANSWER_TIMEOUT);
        let mut replies = self.peer.call(self.peer.hub()?, request).await?;
        let mut answer = None;
        loop {
            match replies.next().await {
                Some(Ok(ReplyEvent::Message(bytes))) => answer = Some(Answer::decode(bytes)?),
                Some(Ok(_)) | None => return answer.ok_or(RenewalError::Empty),
                Some(Err(failure)) if failure.reason() == Reason::NoSuchService => {
                    return Err(RenewalError::NotOffered);
                }
                Some(Err(failure)) => return Err(RenewalError::Failed(failure)),
            }
        }
    }
}

fn count(outcome: &'static str) {
    metrics::counter!("edge_csi_certificate_renewals_total", "outcome" => outcome).increment(1);
}
