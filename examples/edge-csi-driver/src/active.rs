//! Whether this proxy is the active one of its driver, and since when: from the start, or with `--placements kubernetes` from
//! the moment in which it has acquired the Lease.
//!
//! A standby has the socket, on which Probe answers ready=false, and the status page. Everything else starts once it is active,
//! in particular the rows of the placements are read then.

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
#[cfg(feature = "kubernetes")]
use csi_proxy::kubernetes::{KubernetesStore, Lease};
use csi_proxy::{ClockTerms, Endpoint, RedbStore, Serving, SocketAddress, Term, TermError, TermSource};

use super::options::{CsiDriverOptions, PlacementsOption, Route};
use super::status::CsiDriverStatus;
use edge_csi_common::process::{Fatal, Signals};
use edge_csi_common::status::{Fact, Status, StatusServer};

/// An active proxy.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) page: Page,
    server: Option<StatusServer>,
    /// The socket that a standby has served.
    serving: Option<Serving>,
    #[cfg(feature = "kubernetes")]
    held: Option<(Lease, KubernetesStore)>,
}

impl Active {
    /// Waits until the proxy is the active one; `None` if a signal ends it before.
    pub(super) async fn wait(
        options: &CsiDriverOptions,
        signals: &mut Signals,
    ) -> Result<Option<Self>, Fatal> {
        match options.placements {
            PlacementsOption::Redb => Ok(Some(Self::from_the_start())),
            PlacementsOption::Kubernetes if options.route != Some(Route::Topology) => Err(Fatal::Input(
                "--placements kubernetes is for a route by topology: give --route topology too".to_owned(),
            )),
            PlacementsOption::Kubernetes => Self::by_lease(options, signals).await,
        }
    }

    /// A proxy without a standby.
    pub(super) fn from_the_start() -> Self {
        Self {
            page: Page::default(),
            server: None,
            serving: None,
            #[cfg(feature = "kubernetes")]
            held: None,
        }
    }

    #[cfg(not(feature = "kubernetes"))]
    async fn by_lease(_: &CsiDriverOptions, _: &mut Signals) -> Result<Option<Self>, Fatal> {
        let text =
            "--placements kubernetes: this build has no Kubernetes support; build with --features kubernetes";
        Err(Fatal::Input(text.to_owned()))
    }

    #[cfg(feature = "kubernetes")]
    async fn by_lease(options: &CsiDriverOptions, signals: &mut Signals) -> Result<Option<Self>, Fatal> {
        use edge_csi_common::kubernetes::KubernetesAccess;

        let access: KubernetesAccess = options
            .kubeconfig
            .parse()
            .map_err(|error: &str| Fatal::Input(format!("--kubeconfig: {error}")))?;
        let client = access.client().await?;
        let namespace = client.default_namespace().to_owned();
        let driver = options.drivername.clone();
        // The name of an object has no capital letters.
        let name = format!("edge-csi-{}", driver.as_str().to_ascii_lowercase());
        let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "edge-csi-driver".to_owned());
        let mut active = Self::from_the_start();
        active.serve_page(options).await?;
        let serving = Endpoint::standby(driver.clone()).serve(options.endpoint.clone()).await;
        let serving = serving.map_err(Fatal::runtime)?;
        tracing::info!(%driver, namespace, lease = name, "standby until the lease is acquired");
        let lease = tokio::select! {
            lease = Lease::builder(client.clone(), &namespace, &name, &host).acquire() => lease.map_err(Fatal::runtime)?,
            signal = signals.next() => {
                let shutdown = async {
                    let _ = serving.shutdown(options.drain_timeout).await;
                };
                signals.drain(signal, shutdown).await;
                return Ok(None);
            }
        };
        let store = KubernetesStore::new(client, &namespace, driver);
        (active.serving, active.held) = (Some(serving), Some((lease, store)));
        Ok(Some(active))
    }

    /// The store of a route by topology, if it is not in the state directory.
    #[cfg(not(feature = "kubernetes"))]
    pub(super) const fn store(&self) -> Option<RedbStore> {
        None
    }

    /// The store of a route by topology, if it is not in the state directory.
    #[cfg(feature = "kubernetes")]
    pub(super) fn store(&self) -> Option<KubernetesStore> {
        self.held.as_ref().map(|(_, store)| store.clone())
    }

    /// The source of the proxy's term.
    pub(super) fn terms(&self, store: Option<&RedbStore>) -> Terms {
        #[cfg(feature = "kubernetes")]
        if let Some((lease, _)) = &self.held {
            return Terms::Lease(lease.clone());
        }
        store.map_or_else(|| Terms::Clock(ClockTerms::default()), |store| Terms::Store(store.clone()))
    }

    /// Waits until the proxy must end because it is not the active one any more.
    pub(super) async fn lost(&self) -> Fatal {
        #[cfg(feature = "kubernetes")]
        if let Some((lease, _)) = &self.held {
            return Fatal::runtime(lease.lost().await);
        }
        std::future::pending().await
    }

    /// Lets another proxy become active at once, when nothing is dispatched any more.
    pub(super) async fn release(&self) {
        #[cfg(feature = "kubernetes")]
        if let Some((lease, _)) = &self.held {
            lease.release().await;
        }
    }

    /// Shows the status of the active proxy.
    pub(super) async fn show(
        &mut self,
        options: &CsiDriverOptions,
        status: CsiDriverStatus,
    ) -> Result<(), Fatal> {
        // There is none yet.
        let _ = self.page.0.set(status);
        if self.server.is_none() { self.serve_page(options).await } else { Ok(()) }
    }

    async fn serve_page(&mut self, options: &CsiDriverOptions) -> Result<(), Fatal> {
        let server = StatusServer::start(options.http_endpoint, self.page.clone()).await;
        self.server = server.map_err(Fatal::runtime)?;
        Ok(())
    }

    /// Serves the endpoint: on the socket of the standby, or on a new one.
    pub(super) async fn serve(
        &mut self,
        endpoint: Endpoint,
        address: SocketAddress,
    ) -> Result<Serving, Fatal> {
        let Some(serving) = self.serving.take() else {
            return endpoint.serve(address).await.map_err(Fatal::runtime);
        };
        serving.activate(endpoint).await;
        Ok(serving)
    }
}

/// The source of the term of a proxy.
#[derive(Debug)]
pub(super) enum Terms {
    Store(RedbStore),
    Clock(ClockTerms),
    #[cfg(feature = "kubernetes")]
    Lease(Lease),
}

#[async_trait]
impl TermSource for Terms {
    async fn raise(&self) -> Result<Term, TermError> {
        match self {
            Self::Store(store) => store.raise().await,
            Self::Clock(clock) => clock.raise().await,
            #[cfg(feature = "kubernetes")]
            Self::Lease(lease) => lease.raise().await,
        }
    }
}

/// The status page: of a standby, then of the active proxy.
#[derive(Debug, Clone, Default)]
pub(super) struct Page(pub(super) Arc<OnceLock<CsiDriverStatus>>);

impl Status for Page {
    fn name(&self) -> &'static str {
        "edge-csi-driver"
    }

    fn ready(&self) -> Result<(), String> {
        self.0
            .get()
            .map_or_else(|| Err("standby: another proxy of this driver is active".to_owned()), Status::ready)
    }

    fn facts(&self) -> Vec<Fact> {
        let standby = || vec![Fact::new("role", "standby: waits for the lease; Probe answers not ready")];
        self.0.get().map_or_else(standby, Status::facts)
    }

    fn publish_metrics(&self) {
        metrics::gauge!("edge_csi_active").set(f64::from(u8::from(self.0.get().is_some())));
        if let Some(status) = self.0.get() {
            status.publish_metrics();
        }
    }
}
