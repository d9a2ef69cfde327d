//! The calls of a provisioner, and their latencies.

use std::time::{Duration, Instant};

use bytes::Bytes;
use csi_proto::csi::v1 as csi;
use edge_csi_benches::load::{self, LoadError};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use prost::Message as _;
use serde_json::{Value, json};
use tonic::client::Grpc;
use tonic::transport::Channel;

use super::nodes::{name, place};

const CREATE: &str = "/csi.v1.Controller/CreateVolume";
const CAPACITY: &str = "/csi.v1.Controller/GetCapacity";

/// The time after which a provisioner repeats a failed call.
const RETRY: Duration = Duration::from_secs(1);

/// The places that a CreateVolume names.
#[derive(Debug, Clone, Copy)]
pub(super) enum Places {
    /// The selected node: a provisioner with `--strict-topology`.
    Selected,
    /// The selected node, then all others: a provisioner without that option, and volumes that are bound immediately.
    All,
    /// As many places without a node of the driver, then the selected node.
    Strangers,
}

impl Places {
    pub(super) const ALL: [Self; 3] = [Self::Selected, Self::All, Self::Strangers];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Selected => "the selected node",
            Self::All => "all nodes",
            Self::Strangers => "places without the driver, then the node",
        }
    }

    fn preferred(self, nodes: usize, selected: usize) -> Vec<csi::Topology> {
        let all = (0..nodes).map(|at| place(&name((selected + at) % nodes)));
        match self {
            Self::Selected => all.take(1).collect(),
            Self::All => all.collect(),
            Self::Strangers => {
                let strangers = (1..nodes).map(|number| place(&format!("absent-{number:05}.example.org")));
                strangers.chain(all.take(1)).collect()
            }
        }
    }

    /// The request for a new volume. A provisioner names the requisite places in the order of their names.
    pub(super) fn create_volume(self, nodes: usize, selected: usize, volume: &str) -> Bytes {
        let preferred = self.preferred(nodes, selected);
        let mut requisite = preferred.clone();
        requisite.sort_by(|one, other| one.segments.cmp(&other.segments));
        csi::CreateVolumeRequest {
            name: volume.to_owned(),
            capacity_range: Some(csi::CapacityRange { required_bytes: 1 << 30, limit_bytes: 0 }),
            accessibility_requirements: Some(csi::TopologyRequirement { requisite, preferred }),
            ..Default::default()
        }
        .encode_to_vec()
        .into()
    }
}

/// The latencies of some calls in milliseconds, and the sizes of the last one in bytes.
#[derive(Debug, Default)]
pub(super) struct Measured {
    latencies: Vec<f64>,
    request: usize,
    answer: usize,
}

impl Measured {
    /// The latency below which this part of the calls is.
    fn quantile(&mut self, part: f64) -> f64 {
        self.latencies.sort_by(f64::total_cmp);
        let last = self.latencies.len().saturating_sub(1) as f64;
        self.latencies.get((last * part).ceil() as usize).copied().unwrap_or(f64::NAN)
    }

    pub(super) fn figures(mut self) -> Value {
        json!({
            "p50": self.quantile(0.5),
            "p99": self.quantile(0.99),
            "max": self.quantile(1.0),
            "request": self.request,
            "answer": self.answer,
        })
    }
}

/// Sends these requests one after another.
async fn each(
    channel: &Channel,
    method: &'static str,
    requests: impl Iterator<Item = Bytes>,
) -> Result<Measured, LoadError> {
    let (mut grpc, mut measured) = (Grpc::new(channel.clone()), Measured::default());
    for request in requests {
        let (size, started) = (request.len(), Instant::now());
        let answer = load::answer(&mut grpc, method, request).await?;
        measured.latencies.push(started.elapsed().as_secs_f64() * 1e3);
        (measured.request, measured.answer) = (size, answer.len());
    }
    Ok(measured)
}

/// Creates volumes on different nodes, one after another.
pub(super) async fn create_volumes(
    channel: &Channel,
    places: Places,
    nodes: usize,
    count: usize,
) -> Result<Measured, LoadError> {
    let request = |at: usize| {
        let name = format!("pvc-{places:?}-{}-{at}", std::process::id());
        places.create_volume(nodes, at * nodes / count, &name)
    };
    each(channel, CREATE, (0..count).map(request)).await
}

/// Asks for the capacity of different nodes, one after another.
pub(super) async fn capacities(channel: &Channel, nodes: usize, count: usize) -> Result<Measured, LoadError> {
    let request = |at: usize| {
        let accessible_topology = Some(place(&name(at * nodes / count)));
        csi::GetCapacityRequest { accessible_topology, ..Default::default() }.encode_to_vec().into()
    };
    each(channel, CAPACITY, (0..count).map(request)).await
}

/// Creates one volume on each of `count` nodes at once, and repeats a failed call every second like a provisioner. The latencies
/// are those from `since` to the success.
pub(super) async fn create_at_once(
    channel: &Channel,
    nodes: usize,
    count: usize,
    since: Instant,
) -> Result<Measured, LoadError> {
    let create = |at: usize| async move {
        let mut grpc = Grpc::new(channel.clone());
        let name = format!("pvc-first-{}-{at}", std::process::id());
        let request = Places::Selected.create_volume(nodes, at * nodes / count, &name);
        loop {
            match load::answer(&mut grpc, CREATE, request.clone()).await {
                Ok(_) => return Ok(since.elapsed().as_secs_f64() * 1e3),
                Err(LoadError::Call { .. }) => tokio::time::sleep(RETRY).await,
                Err(other) => return Err(other),
            }
        }
    };
    let mut open: FuturesUnordered<_> = (0..count).map(create).collect();
    let mut measured = Measured::default();
    while let Some(latency) = open.next().await {
        measured.latencies.push(latency?);
    }
    Ok(measured)
}
