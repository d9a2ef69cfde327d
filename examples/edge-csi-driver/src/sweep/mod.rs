//! `edge-csi-driver sweep`: reports the volumes that are left over, and changes nothing.

mod compare;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use clap::Args;
use csi_proto::csi::v1::{ListVolumesRequest, ListVolumesResponse};
use csi_proto::grpc::{ConnectError, Connection, UnaryError, Windows};
use csi_proto::{Code, DriverName, Method};
use csi_proxy::SocketAddress;
use csi_proxy::advanced::routing::PlacementStore;
use csi_proxy::kubernetes::KubernetesStore;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::Client;
use kube::api::{Api, ListParams};

use self::compare::{Survey, compare};
use edge_csi_common::kubernetes::KubernetesAccess;
use edge_csi_common::process::{self, Fatal};
use edge_csi_common::values::duration;

/// The arguments of `sweep`.
#[derive(Debug, Clone, Args)]
pub struct Sweep {
    /// Name of the driver
    #[arg(long, value_name = "NAME", env = "CSI_DRIVERNAME")]
    pub drivername: DriverName,

    /// Socket of the active edge-csi-driver, for ListVolumes
    #[arg(long, value_name = "URL", env = "CSI_ENDPOINT", default_value = "unix:///csi/csi.sock")]
    pub endpoint: SocketAddress,

    /// The API server, a kubeconfig file, or `in-cluster` for the service account of the pod, which must have the right to list
    /// PersistentVolumes. Its namespace is that of the placements
    #[arg(long, value_name = "FILE|in-cluster", default_value = "in-cluster")]
    pub kubeconfig: KubernetesAccess,

    /// Time between two surveys; only what both find is reported, so that calls that are in progress are not (ms, s, m, h)
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = duration)]
    pub settle: Duration,
}

/// The maximum size of a page: of PersistentVolumes, and of `ListVolumes`.
const PAGE: u32 = 500;

/// The timeout of one page of `ListVolumes`: the proxy asks all nodes.
const LIST_TIMEOUT: Duration = Duration::from_secs(120);

/// The timeout for connecting to the socket.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The maximum size in bytes of a page of `ListVolumes`, that of the endpoint.
const MAX_PAGE: usize = 16 << 20;

/// Why a sweep failed.
#[derive(Debug, thiserror::Error)]
enum SweepError {
    #[error("the placements: {0}")]
    Placements(#[from] csi_proxy::StoreError),
    #[error("the PersistentVolumes: {0}; the service account needs the right to list them")]
    PersistentVolumes(#[source] Box<kube::Error>),
    #[error("--endpoint: {0}")]
    Connect(#[from] ConnectError),
    #[error("ListVolumes: {0}; the proxy must be the active one")]
    ListVolumes(#[from] UnaryError),
    #[error("ListVolumes: no answer within {LIST_TIMEOUT:?}")]
    Late,
    #[error("volumes that are left over: {0}; \"Operating\" in the guide says what to do")]
    LeftOver(usize),
}

/// Surveys twice, and prints what both surveys have found.
///
/// # Errors
/// If a survey fails, or something is left over.
pub(super) async fn run(command: Sweep) -> Result<(), Fatal> {
    let client = command.kubeconfig.client().await?;
    let first = compare(&survey(&client, &command).await.map_err(Fatal::runtime)?);
    let found = if first.is_empty() {
        first
    } else {
        tokio::time::sleep(command.settle).await;
        let second = compare(&survey(&client, &command).await.map_err(Fatal::runtime)?);
        first.intersection(&second).cloned().collect()
    };
    found.iter().for_each(process::print_line);
    match found.len() {
        0 => {
            process::print_line("nothing is left over");
            Ok(())
        }
        count => Err(Fatal::runtime(SweepError::LeftOver(count))),
    }
}

async fn survey(client: &Client, command: &Sweep) -> Result<Survey, SweepError> {
    let (driver, namespace) = (&command.drivername, client.default_namespace());
    let placements = KubernetesStore::new(client.clone(), namespace, driver.clone()).list().await?;
    Ok(Survey {
        placements,
        persistent_volumes: persistent_volumes(client, driver).await?,
        listed: list_volumes(&command.endpoint).await?,
    })
}

/// The names of the driver's PersistentVolumes, by the ids of their volumes.
async fn persistent_volumes(
    client: &Client,
    driver: &DriverName,
) -> Result<BTreeMap<String, String>, SweepError> {
    let api: Api<PersistentVolume> = Api::all(client.clone());
    let (mut found, mut parameters) = (BTreeMap::new(), ListParams::default().limit(PAGE));
    loop {
        let page = api.list(&parameters).await;
        let page = page.map_err(|error| SweepError::PersistentVolumes(Box::new(error)))?;
        found.extend(page.items.into_iter().filter_map(|volume| {
            let csi = volume.spec?.csi.filter(|csi| csi.driver == driver.as_str())?;
            Some((csi.volume_handle, volume.metadata.name?))
        }));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters.continue_token = Some(token),
            None => return Ok(found),
        }
    }
}

/// The ids of the volumes on the nodes; `None` if the driver cannot list.
async fn list_volumes(endpoint: &SocketAddress) -> Result<Option<BTreeSet<String>>, SweepError> {
    let proxy = Connection::open(endpoint.path(), Windows::UNARY, CONNECT_TIMEOUT).await?;
    let (mut found, mut request) = (BTreeSet::new(), ListVolumesRequest::default());
    request.max_entries = i32::try_from(PAGE).unwrap_or(i32::MAX);
    loop {
        let page = proxy.unary(Method::ListVolumes.path(), request.clone(), LIST_TIMEOUT, MAX_PAGE);
        let page: ListVolumesResponse = match tokio::time::timeout(LIST_TIMEOUT, page).await {
            Ok(Err(UnaryError::Status(status))) if status.code == Code::UNIMPLEMENTED => return Ok(None),
            Ok(page) => page?,
            Err(_) => return Err(SweepError::Late),
        };
        found.extend(page.entries.into_iter().filter_map(|entry| Some(entry.volume?.volume_id)));
        if page.next_token.is_empty() {
            return Ok(Some(found));
        }
        request.starting_token = page.next_token;
    }
}
