//! Looking at files again and again.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use super::Watched;
use super::expiry::{Standing, Told};

/// Shortest time between two looks at the files.
#[cfg(feature = "runtime")]
const SHORTEST: Duration = Duration::from_millis(100);

/// What a look at the files has to tell.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// The files have changed, and what they hold is in use for new links.
    Renewed {
        /// The files.
        files: String,
    },
    /// The files have changed and cannot be used: what they held before stays in use. Told once for each cause.
    Broken {
        /// The files.
        files: String,
        /// What is wrong.
        cause: String,
    },
    /// The files, which were broken, are what is in use again.
    Mended {
        /// The files.
        files: String,
    },
    /// A certificate ends within 30 days. Told once a day.
    Ending {
        /// Where it comes from.
        file: PathBuf,
        /// How long it is still good.
        left: Duration,
    },
    /// A certificate has ended: the other end refuses it. Told once a day.
    Ended {
        /// Where it comes from.
        file: PathBuf,
        /// How long ago.
        ago: Duration,
    },
}

impl Notice {
    /// Writes it to the log.
    #[cfg(feature = "runtime")]
    fn log(&self) {
        const DAY: u64 = 24 * 3600;
        match self {
            Self::Renewed { files } => {
                tracing::info!(files, "files have changed; new links use what they hold now");
            }
            Self::Broken { files, cause } => {
                tracing::error!(
                    files,
                    cause,
                    "files have changed and cannot be used; the old ones stay in use"
                );
            }
            Self::Mended { files } => tracing::info!(files, "files are again what is in use"),
            Self::Ending { file, left } => {
                let (file, days) = (file.display(), left.as_secs() / DAY);
                tracing::warn!(%file, days, "a certificate ends soon: renew it");
            }
            Self::Ended { file, ago } => {
                let (file, days) = (file.display(), ago.as_secs() / DAY);
                tracing::error!(%file, days, "a certificate has expired: no new link can use it until it is renewed");
            }
        }
    }
}

/// Looks at the files of TLS material and tokens, takes over what has changed, and says when a certificate ends.
///
/// Put it together, then either let [`FileWatch::run`] look from time to time, or call [`FileWatch::check`] oneself.
///
/// ```no_run
/// # #[cfg(feature = "ws")]
/// # async fn hub() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// use edge_transport::Hub;
/// use edge_transport::link::{Limits, ws};
/// use edge_transport::reload::FileWatch;
/// use edge_transport::tls::{ClientAuth, ServerFiles, TlsPaths};
/// use edge_transport::token::TokenFile;
///
/// let paths = TlsPaths::default().with_certificate("hub.pem", "hub.key").with_authorities("ca.pem");
/// let tls = ServerFiles::server(paths, ClientAuth::Optional)?;
/// let tokens = TokenFile::open("tokens")?;
/// let watch = Arc::new(FileWatch::new().tls(&tls).tokens(&tokens));
/// tokio::spawn(watch.run(Duration::from_secs(10)));
///
/// let listener = ws::bind("0.0.0.0:10000", Some(tls.into()), Limits::default()).await?;
/// let hub = Hub::builder().listener(Box::new(listener)).tokens(tokens).start()?;
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
#[must_use]
pub struct FileWatch {
    parts: Vec<Arc<dyn Watched>>,
    told: Mutex<HashMap<PathBuf, Told>>,
}

impl FileWatch {
    /// Watches nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Watches the files of a TLS configuration.
    pub fn tls<C: Send + Sync + 'static>(mut self, files: &crate::tls::TlsFiles<C>) -> Self {
        self.parts.push(files.reloading());
        self
    }

    /// Watches a token file.
    #[cfg(feature = "runtime")]
    pub fn tokens(mut self, tokens: &crate::token::TokenFile) -> Self {
        self.parts.push(Arc::clone(&tokens.digests) as Arc<dyn Watched>);
        self
    }

    /// Whether there is nothing to watch.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Looks at all files once. Blocks for as long as reading them takes. `now` is the wall clock, against which the certificates'
    /// ends are held.
    pub fn check(&self, now: SystemTime) -> Vec<Notice> {
        let mut notices = Vec::new();
        for part in &self.parts {
            notices.extend(part.check());
        }
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        for (file, end) in self.parts.iter().flat_map(|part| part.ends()) {
            let standing = Standing::at(now, end);
            if told.entry(file.clone()).or_default().due(standing, now) {
                notices.push(match standing {
                    Standing::Over { ago } => Notice::Ended { file, ago },
                    Standing::Ending { left } => Notice::Ending { file, left },
                    Standing::Good => continue,
                });
            }
        }
        #[cfg(feature = "metrics")]
        {
            for notice in &notices {
                let outcome = match notice {
                    Notice::Renewed { .. } => "renewed",
                    Notice::Broken { .. } => "broken",
                    _ => continue,
                };
                metrics::counter!("edge_transport_file_reloads_total", "outcome" => outcome).increment(1);
            }
            drop(told);
            self.publish(now);
        }
        notices
    }

    /// Sets the gauges of the installed recorder: for each certificate file the seconds until it ends
    /// (`edge_transport_tls_expires_seconds`, negative afterwards), and for all files that belong together whether they are broken
    /// (`edge_transport_files_broken`). [`FileWatch::check`] does it too.
    #[cfg(feature = "metrics")]
    pub fn publish(&self, now: SystemTime) {
        for part in &self.parts {
            let broken = if part.is_broken() { 1.0 } else { 0.0 };
            metrics::gauge!("edge_transport_files_broken", "files" => part.files()).set(broken);
            for (file, end) in part.ends() {
                let seconds = super::expiry::seconds_left(now, end);
                metrics::gauge!("edge_transport_tls_expires_seconds", "file" => file.display().to_string())
                    .set(seconds);
            }
        }
    }

    /// Looks at the files now and every so often, but not more than ten times a second, and logs what there is to tell. Runs until it
    /// is dropped.
    ///
    /// # Panics
    /// Outside of a tokio runtime with time.
    #[cfg(feature = "runtime")]
    pub async fn run(self: Arc<Self>, every: Duration) {
        let mut times = tokio::time::interval(every.max(SHORTEST));
        times.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            times.tick().await;
            let watch = Arc::clone(&self);
            // A file system that hangs holds up a thread for such work, and no link.
            let looked = tokio::task::spawn_blocking(move || watch.check(SystemTime::now())).await;
            looked.iter().flatten().for_each(Notice::log);
        }
    }
}

impl fmt::Debug for FileWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.parts.iter().map(|part| part.files())).finish()
    }
}
