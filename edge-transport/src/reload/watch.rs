//! Periodic checks of files.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

#[cfg(feature = "runtime")]
use tokio::sync::Notify;
#[cfg(feature = "runtime")]
use tokio::sync::watch::Receiver;

use super::expiry::{Validity, WarnThrottle};
use super::{Expiry, Watched};
#[cfg(feature = "runtime")]
use crate::peer::PeerState;
use crate::tls::{ClientSource, ClientTls, ServerTls};

/// Shortest interval between two checks of the files.
#[cfg(feature = "runtime")]
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// Longest interval between two checks while there are no valid files, so that links are possible soon after there are.
#[cfg(feature = "runtime")]
const UNUSABLE_INTERVAL: Duration = Duration::from_secs(1);

/// A result of a check of the files.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReloadEvent {
    /// The files have changed and are in use for new links.
    Reloaded {
        /// The files.
        files: String,
    },
    /// The files have changed and are invalid: the old content stays in use. Reported once for each cause.
    Invalid {
        /// The files.
        files: String,
        /// What is wrong.
        cause: String,
    },
    /// The files are invalid, and no valid ones have been read yet: every handshake that needs them fails. Reported
    /// once for each cause.
    Unusable {
        /// The files.
        files: String,
        /// What is wrong.
        cause: String,
    },
    /// The invalid files match the content in use again.
    Recovered {
        /// The files.
        files: String,
    },
    /// A certificate expires within 30 days. Reported once a day.
    Expiring {
        /// The file of the certificate.
        file: PathBuf,
        /// Time until it expires.
        left: Duration,
    },
    /// The next update of a revocation list is overdue: the list stays in use, without the certificates that were revoked since.
    /// Reported once a day.
    RevocationListOverdue {
        /// The file of the list.
        file: PathBuf,
        /// Time since the next update was due.
        ago: Duration,
    },
    /// A certificate has expired: the other end refuses it. Reported once a day.
    Expired {
        /// The file of the certificate.
        file: PathBuf,
        /// Time since it expired.
        ago: Duration,
    },
}

impl ReloadEvent {
    /// Logs the event.
    #[cfg(feature = "runtime")]
    fn log(&self) {
        const DAY: u64 = 24 * 3600;
        match self {
            Self::Reloaded { files } => {
                tracing::info!(files, "files reloaded, new links use them");
            }
            Self::Invalid { files, cause } => {
                tracing::error!(files, cause, "changed files are invalid, keeping the old ones");
            }
            Self::Unusable { files, cause } => {
                tracing::error!(
                    files,
                    cause,
                    "files cannot be used, no links with them until they are valid"
                );
            }
            Self::Recovered { files } => tracing::info!(files, "files match the loaded ones again"),
            Self::Expiring { file, left } => {
                let (file, days) = (file.display(), left.as_secs() / DAY);
                tracing::warn!(%file, days, "certificate expires soon, renew it");
            }
            Self::RevocationListOverdue { file, ago } => {
                let (file, hours) = (file.display(), ago.as_secs() / 3600);
                tracing::error!(%file, hours, "the next update of a revocation list is overdue, keeping the list");
            }
            Self::Expired { file, ago } => {
                let (file, days) = (file.display(), ago.as_secs() / DAY);
                tracing::error!(%file, days, "certificate expired, new links will fail until it is renewed");
            }
        }
    }
}

/// Watches the files of TLS material and tokens, reloads changed ones, and reports expiring certificates.
///
/// Add files, then either spawn [`FileWatch::run`] or call [`FileWatch::check`] periodically.
///
/// ```no_run
/// # #[cfg(feature = "ws")]
/// # async fn hub() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// use edge_transport::Hub;
/// use edge_transport::reload::FileWatch;
/// use edge_transport::tls::{ClientAuth, ServerTls, TlsPaths};
/// use edge_transport::token::TokenFile;
///
/// let paths = TlsPaths::default().with_certificate("hub.pem", "hub.key").with_authorities("ca.pem");
/// let tls = ServerTls::open(paths, ClientAuth::Optional)?;
/// let tokens = TokenFile::open("tokens")?;
/// let watch = Arc::new(FileWatch::new().server(&tls).tokens(&tokens));
/// tokio::spawn(watch.run(Duration::from_secs(10)));
///
/// let builder = Hub::builder().listen("wss://0.0.0.0:10000".parse()?, &tls).await?;
/// let hub = builder.token_verifier(tokens).start()?;
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
#[must_use]
pub struct FileWatch {
    parts: Vec<Arc<dyn Watched>>,
    throttles: Mutex<HashMap<PathBuf, WarnThrottle>>,
    /// Notified when the files are to be checked ahead of the interval.
    #[cfg(feature = "runtime")]
    asked: Notify,
}

impl FileWatch {
    /// Creates an empty watch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Watches the files of an accepting end, if it has any.
    pub fn server(mut self, tls: &ServerTls) -> Self {
        if let Some(files) = tls.files() {
            self.parts.push(files.reloading());
            self.parts.extend(files.lists().map(|lists| lists as Arc<dyn Watched>));
        }
        self
    }

    /// Watches the files of a dialing end, if it has any. Of an end that renews its own certificate, metrics and warnings are
    /// about the certificate in use, and have the path of the given one.
    pub fn client(mut self, tls: &ClientTls) -> Self {
        match tls.source() {
            ClientSource::Fixed(..) => {}
            ClientSource::Files(files) => self.parts.push(files.reloading()),
            ClientSource::Renewable(files) => self.parts.push(Arc::new(files.clone())),
        }
        self
    }

    /// Watches a token file.
    #[cfg(feature = "runtime")]
    pub fn tokens(mut self, tokens: &crate::token::TokenFile) -> Self {
        self.parts.push(Arc::clone(&tokens.digests) as Arc<dyn Watched>);
        self
    }

    /// Watches a deny list.
    #[cfg(feature = "runtime")]
    pub fn deny(mut self, list: &crate::hub::DenyList) -> Self {
        self.parts.push(Arc::clone(&list.entries) as Arc<dyn Watched>);
        self
    }

    /// Whether there is nothing to watch.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Returns why files cannot be used, if no valid ones have been read since the start. Links that need them cannot be
    /// established.
    #[must_use]
    pub fn unusable(&self) -> Option<String> {
        self.parts.iter().find_map(|part| part.unusable())
    }

    /// Checks all files once. Blocks on file I/O. `now` is the wall clock, for the expiry of certificates.
    pub fn check(&self, now: SystemTime) -> Vec<ReloadEvent> {
        let mut events = Vec::new();
        for part in &self.parts {
            events.extend(part.check());
        }
        let mut throttles = self.throttles.lock().unwrap_or_else(PoisonError::into_inner);
        for expiry in self.parts.iter().flat_map(|part| part.expiries()) {
            let (file, end, is_list) = match expiry {
                Expiry::Certificate { file, end } => (file, end, false),
                Expiry::RevocationList { file, end } => (file, end, true),
            };
            let validity = match Validity::at(now, end) {
                // A list is valid for days only.
                Validity::Expiring { .. } if is_list => Validity::Valid,
                validity => validity,
            };
            if throttles.entry(file.clone()).or_default().due(validity, now) {
                events.push(match validity {
                    Validity::Expired { ago } if is_list => ReloadEvent::RevocationListOverdue { file, ago },
                    Validity::Expired { ago } => ReloadEvent::Expired { file, ago },
                    Validity::Expiring { left } => ReloadEvent::Expiring { file, left },
                    Validity::Valid => continue,
                });
            }
        }
        #[cfg(feature = "metrics")]
        {
            for event in &events {
                let outcome = match event {
                    ReloadEvent::Reloaded { .. } => "renewed",
                    ReloadEvent::Invalid { .. } | ReloadEvent::Unusable { .. } => "broken",
                    _ => continue,
                };
                metrics::counter!("edge_transport_file_reloads_total", "outcome" => outcome).increment(1);
            }
            drop(throttles);
            self.publish(now);
        }
        events
    }

    /// Sets the gauges of the installed recorder: for each certificate file the seconds until it expires
    /// (`edge_transport_tls_expires_seconds`, negative afterwards), for each file of revocation lists the seconds until the next
    /// update is due (`edge_transport_crl_next_update_seconds`, negative afterwards), and for each group of files whether they
    /// were invalid when they were last read (`edge_transport_file_reload_failed`). [`FileWatch::check`] sets them too.
    #[cfg(feature = "metrics")]
    pub fn publish(&self, now: SystemTime) {
        for part in &self.parts {
            let invalid = if part.is_invalid() { 1.0 } else { 0.0 };
            metrics::gauge!("edge_transport_file_reload_failed", "files" => part.files()).set(invalid);
            for expiry in part.expiries() {
                let (gauge, file, end) = match expiry {
                    Expiry::Certificate { file, end } => ("edge_transport_tls_expires_seconds", file, end),
                    Expiry::RevocationList { file, end } => {
                        ("edge_transport_crl_next_update_seconds", file, end)
                    }
                };
                let seconds = super::expiry::seconds_left(now, end);
                metrics::gauge!(gauge, "file" => file.display().to_string()).set(seconds);
            }
        }
    }

    /// Checks the files at once and then at every interval, at most ten times a second, and logs the results. While there are
    /// no valid files, the interval is at most one second. Runs until dropped.
    ///
    /// # Panics
    /// Outside of a tokio runtime with time.
    #[cfg(feature = "runtime")]
    pub async fn run(self: Arc<Self>, interval: Duration) {
        loop {
            let wait = self.check_and_log(interval).await;
            let _ = tokio::time::timeout(wait, self.asked()).await;
        }
    }

    /// Makes [`run`](Self::run) and [`run_for`](Self::run_for) check the files now, at most ten times a second, such as when
    /// an operator asks for the state of the certificates.
    #[cfg(feature = "runtime")]
    pub fn check_soon(&self) {
        self.asked.notify_one();
    }

    #[cfg(feature = "runtime")]
    async fn asked(&self) {
        self.asked.notified().await;
        tokio::time::sleep(MIN_INTERVAL).await;
    }

    /// Like [`run`](Self::run), and checks the files also at each change of a [peer's state](crate::Peer::watch), so that a long
    /// interval suffices: a device sleeps most of the time, and its link needs the files when it is lost. Runs until the peer is
    /// closed.
    ///
    /// # Panics
    /// Outside of a tokio runtime with time.
    #[cfg(feature = "runtime")]
    pub async fn run_for(self: Arc<Self>, mut peer: Receiver<PeerState>, interval: Duration) {
        loop {
            let wait = self.check_and_log(interval).await;
            tokio::select! {
                changed = peer.changed() => if changed.is_err() {
                    return;
                },
                _ = tokio::time::timeout(wait, self.asked()) => {}
            }
        }
    }

    /// Checks the files and logs the results. Returns the time until the next check.
    #[cfg(feature = "runtime")]
    async fn check_and_log(self: &Arc<Self>, interval: Duration) -> Duration {
        let watch = Arc::clone(self);
        // A file system that hangs blocks only a thread of the blocking pool, no link.
        let events = tokio::task::spawn_blocking(move || watch.check(SystemTime::now())).await;
        events.iter().flatten().for_each(ReloadEvent::log);
        let interval = interval.max(MIN_INTERVAL);
        if self.unusable().is_none() { interval } else { interval.min(UNUSABLE_INTERVAL) }
    }
}

impl fmt::Debug for FileWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.parts.iter().map(|part| part.files())).finish()
    }
}
