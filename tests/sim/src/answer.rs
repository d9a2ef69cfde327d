//! Requests and answers: real CSI messages that contain the ids of their operation, attempt and execution.

use std::collections::BTreeMap;

use bytes::Bytes;
use csi_proto::Method;
use csi_proto::csi::v1::{
    ControllerExpandVolumeRequest, ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest,
    CreateSnapshotRequest, CreateSnapshotResponse, CreateVolumeRequest, CreateVolumeResponse,
    DeleteVolumeRequest, NodeStageVolumeRequest, Snapshot, Volume,
};
use csi_proxy::Outcome;
use prost::Message;

use crate::ids::{AttemptId, ExecutionId, OperationId};
use crate::plan::{Operation, OperationKind};

/// An unknown method, as of a later version of CSI. It returns a stream.
pub(crate) const WATCH: &str = "/csi.v2.Later/Watch";
/// NodeGetInfo's request, which has no fields, with an unknown field as of a later version of CSI.
#[derive(Clone, PartialEq, Eq, Message)]
struct Tagged {
    #[prost(string, tag = "1000")]
    text: String,
}
/// The key of a reply's ids, and the first word of the ids' text.
const PART: &str = "part";
const VARIANT: &str = "variant";
/// The key of a request's secret, which is the attempt's id with a prefix.
const TOKEN: &str = "token";
/// The prefix of each secret. Every request of a sidecar contains it.
pub(crate) const SECRET: &str = "secret-";
/// The first word of the ids in each message of a driver.
pub(crate) const ANSWER: &str = "part ";

fn map<const N: usize>(entries: [(&str, String); N]) -> BTreeMap<String, String> {
    entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

impl Operation {
    /// The method's path.
    pub(crate) const fn path(&self) -> &'static str {
        match self.kind {
            OperationKind::Create => Method::CreateVolume.path(),
            OperationKind::Delete => Method::DeleteVolume.path(),
            OperationKind::Publish => Method::ControllerPublishVolume.path(),
            OperationKind::Unpublish => Method::ControllerUnpublishVolume.path(),
            OperationKind::Snapshot => Method::CreateSnapshot.path(),
            OperationKind::Expand => Method::ControllerExpandVolume.path(),
            OperationKind::Stage => Method::NodeStageVolume.path(),
            OperationKind::Info => Method::NodeGetInfo.path(),
            OperationKind::Watch => WATCH,
        }
    }

    /// Returns a request with this secret.
    pub(crate) fn request(&self, secret: &str) -> Bytes {
        let secrets = map([(TOKEN, secret.to_owned())]);
        let (volume, variant) = (self.volume, self.variant.to_string());
        let volume_id = format!("id-{volume}");
        match self.kind {
            OperationKind::Create => {
                let name = format!("volume-{volume}");
                let parameters = map([(VARIANT, variant), ("class", "fast".to_owned())]);
                CreateVolumeRequest { name, parameters, secrets, ..Default::default() }.encode_to_vec()
            }
            OperationKind::Delete => DeleteVolumeRequest { volume_id, secrets }.encode_to_vec(),
            OperationKind::Publish => {
                let node_id = variant;
                ControllerPublishVolumeRequest { volume_id, node_id, secrets, ..Default::default() }
                    .encode_to_vec()
            }
            OperationKind::Unpublish => {
                let node_id = variant;
                ControllerUnpublishVolumeRequest { volume_id, node_id, secrets }.encode_to_vec()
            }
            OperationKind::Snapshot => {
                let (source_volume_id, name) = (volume_id, format!("snapshot-{variant}"));
                CreateSnapshotRequest { source_volume_id, name, secrets, ..Default::default() }
                    .encode_to_vec()
            }
            OperationKind::Expand => {
                let capacity_range = Some(csi_proto::csi::v1::CapacityRange {
                    required_bytes: self.variant as i64 + 1,
                    limit_bytes: 0,
                });
                ControllerExpandVolumeRequest { volume_id, capacity_range, secrets, ..Default::default() }
                    .encode_to_vec()
            }
            OperationKind::Stage => {
                let staging_target_path = variant;
                NodeStageVolumeRequest { volume_id, staging_target_path, secrets, ..Default::default() }
                    .encode_to_vec()
            }
            OperationKind::Info => Tagged { text: format!("{variant} {secret}") }.encode_to_vec(),
            OperationKind::Watch => format!("{variant} {secret}").into_bytes(),
        }
        .into()
    }

    /// Returns a message of the answer.
    pub(crate) fn message(&self, part: Part) -> Bytes {
        let mut text = part.text();
        text.extend(std::iter::repeat_n('.', self.size));
        let id = format!("id-{}", self.volume);
        match self.kind {
            OperationKind::Create => {
                let volume =
                    Volume { volume_id: id, volume_context: map([(PART, text)]), ..Default::default() };
                CreateVolumeResponse { volume: Some(volume) }.encode_to_vec().into()
            }
            OperationKind::Snapshot => {
                let snapshot = Snapshot { snapshot_id: text, source_volume_id: id, ..Default::default() };
                CreateSnapshotResponse { snapshot: Some(snapshot) }.encode_to_vec().into()
            }
            _ => text.into(),
        }
    }
}

/// Returns the secret of an attempt. It differs in each attempt, as a renewed token does, and is no part of the
/// identity.
pub(crate) fn secret(attempt: AttemptId) -> String {
    format!("{SECRET}{}", attempt.0)
}

/// Returns the operation and the attempt of a request. `None` if the request is invalid because a link corrupted it.
pub(crate) fn wanted(
    operations: &[Operation],
    agent: usize,
    driver: usize,
    path: &str,
    body: &Bytes,
) -> Option<(OperationId, AttemptId)> {
    let body = body.clone();
    let number = |text: &str, prefix: &str| text.strip_prefix(prefix)?.parse::<usize>().ok();
    let asked = |text: &str| {
        let (variant, attempt) = text.split_once(' ')?;
        Some((number(variant, "")?, map([(TOKEN, attempt.to_owned())])))
    };
    let (kind, volume, variant, secrets) = match Method::from_path(path) {
        Some(Method::CreateVolume) => {
            let request = CreateVolumeRequest::decode(body).ok()?;
            let variant = number(request.parameters.get(VARIANT)?, "")?;
            (OperationKind::Create, number(&request.name, "volume-")?, variant, request.secrets)
        }
        Some(Method::DeleteVolume) => {
            let request = DeleteVolumeRequest::decode(body).ok()?;
            (OperationKind::Delete, number(&request.volume_id, "id-")?, 0, request.secrets)
        }
        Some(Method::ControllerPublishVolume) => {
            let request = ControllerPublishVolumeRequest::decode(body).ok()?;
            let variant = number(&request.node_id, "")?;
            (OperationKind::Publish, number(&request.volume_id, "id-")?, variant, request.secrets)
        }
        Some(Method::ControllerUnpublishVolume) => {
            let request = ControllerUnpublishVolumeRequest::decode(body).ok()?;
            let variant = number(&request.node_id, "")?;
            (OperationKind::Unpublish, number(&request.volume_id, "id-")?, variant, request.secrets)
        }
        Some(Method::CreateSnapshot) => {
            let request = CreateSnapshotRequest::decode(body).ok()?;
            let variant = number(&request.name, "snapshot-")?;
            (OperationKind::Snapshot, number(&request.source_volume_id, "id-")?, variant, request.secrets)
        }
        Some(Method::ControllerExpandVolume) => {
            let request = ControllerExpandVolumeRequest::decode(body).ok()?;
            let variant = usize::try_from(request.capacity_range?.required_bytes).ok()?.checked_sub(1)?;
            (OperationKind::Expand, number(&request.volume_id, "id-")?, variant, request.secrets)
        }
        Some(Method::NodeStageVolume) => {
            let request = NodeStageVolumeRequest::decode(body).ok()?;
            let variant = number(&request.staging_target_path, "")?;
            (OperationKind::Stage, number(&request.volume_id, "id-")?, variant, request.secrets)
        }
        Some(Method::NodeGetInfo) => {
            let (variant, secrets) = asked(&Tagged::decode(body).ok()?.text)?;
            (OperationKind::Info, 0, variant, secrets)
        }
        None if path == WATCH => {
            let (variant, secrets) = asked(std::str::from_utf8(&body).ok()?)?;
            (OperationKind::Watch, 0, variant, secrets)
        }
        _ => return None,
    };
    let sought = (agent, driver, kind, volume, variant);
    let found = operations
        .iter()
        .position(|known| (known.agent, known.driver, known.kind, known.volume, known.variant) == sought)?;
    Some((OperationId(found), AttemptId(number(secrets.get(TOKEN)?, SECRET)?)))
}

/// A message of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) operation: OperationId,
    pub(crate) execution: ExecutionId,
    /// Counts from 1.
    pub(crate) number: usize,
}

impl Part {
    fn text(self) -> String {
        format!("{ANSWER}{} {} {} ", self.operation.0, self.execution.0, self.number)
    }

    pub(crate) fn read(message: &Bytes) -> Option<Self> {
        let volume = CreateVolumeResponse::decode(message.clone()).ok().and_then(|response| response.volume);
        let snapshot =
            CreateSnapshotResponse::decode(message.clone()).ok().and_then(|response| response.snapshot);
        let inside = volume.as_ref().and_then(|volume| volume.volume_context.get(PART));
        let inside = inside.or_else(|| snapshot.as_ref().map(|snapshot| &snapshot.snapshot_id));
        let inside = inside.filter(|text| text.starts_with("part"));
        let text = inside.map_or_else(|| std::str::from_utf8(message), |text| Ok(text)).ok()?;
        let [operation, execution, number] = numbers(text, "part")?;
        Some(Self { operation: OperationId(operation), execution: ExecutionId(execution), number })
    }
}

/// The status with which the driver ends an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Closing {
    pub(crate) operation: OperationId,
    pub(crate) execution: ExecutionId,
    /// The number of messages before the status.
    pub(crate) messages: usize,
}

impl Closing {
    /// Returns the ids as the message of a status. Each word is valid in a header.
    pub(crate) fn text(self) -> String {
        let Self { operation, execution, messages } = self;
        format!("end {} {} {messages} ", operation.0, execution.0)
    }

    pub(crate) fn read(outcome: &Outcome) -> Option<Self> {
        let [operation, execution, messages] = numbers(&outcome.message, "end")?;
        Some(Self { operation: OperationId(operation), execution: ExecutionId(execution), messages })
    }
}

fn numbers<const N: usize>(text: &str, first: &str) -> Option<[usize; N]> {
    let mut words = text.split(' ');
    if words.next() != Some(first) {
        return None;
    }
    let mut found = [0; N];
    for number in &mut found {
        *number = words.next()?.parse().ok()?;
    }
    Some(found)
}
