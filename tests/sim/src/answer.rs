//! What requests and answers say: real CSI messages, in which it can be told what belongs to what.

use std::collections::BTreeMap;

use bytes::Bytes;
use csi_proto::Method;
use csi_proto::csi::v1::{
    ControllerPublishVolumeRequest, CreateVolumeRequest, CreateVolumeResponse, DeleteVolumeRequest, Volume,
};
use csi_proxy::{Code, Outcome};
use prost::Message;

use crate::plan::{Operation, OperationKind, Place};

/// A method that nobody knows, as of a later version of CSI. It answers with a stream.
const WATCH: &str = "/csi.v2.Later/Watch";
/// Where an answer that is a CSI message says what it is.
const PART: &str = "part";
const VARIANT: &str = "variant";

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
            OperationKind::Watch => WATCH,
        }
    }

    /// The request. Its secrets are others each time, as with a token that is renewed.
    pub(crate) fn request(&self, secret: u64) -> Bytes {
        let secrets = map([("token", secret.to_string())]);
        let (volume, variant) = (self.volume, self.variant.to_string());
        match self.kind {
            OperationKind::Create => {
                let name = format!("volume-{volume}");
                let parameters = map([(VARIANT, variant), ("class", "fast".to_owned())]);
                CreateVolumeRequest { name, parameters, secrets, ..Default::default() }.encode_to_vec().into()
            }
            OperationKind::Delete => {
                DeleteVolumeRequest { volume_id: format!("id-{volume}"), secrets }.encode_to_vec().into()
            }
            OperationKind::Publish => ControllerPublishVolumeRequest {
                volume_id: format!("id-{volume}"),
                node_id: variant,
                secrets,
                ..Default::default()
            }
            .encode_to_vec()
            .into(),
            OperationKind::Watch => variant.into(),
        }
    }

    /// A message of the answer.
    pub(crate) fn message(&self, part: Part) -> Bytes {
        let mut text = part.text();
        text.extend(std::iter::repeat_n('.', self.size));
        if self.kind != OperationKind::Create {
            return text.into();
        }
        let volume_id = format!("id-{}", self.volume);
        let volume = Volume { volume_id, volume_context: map([(PART, text)]), ..Default::default() };
        CreateVolumeResponse { volume: Some(volume) }.encode_to_vec().into()
    }
}

/// Which of a node's operations a driver is asked for.
pub(crate) fn wanted(operations: &[Operation], agent: Place, path: &str, body: &Bytes) -> Option<usize> {
    let body = body.clone();
    let number = |text: &str, prefix: &str| text.strip_prefix(prefix)?.parse::<usize>().ok();
    let (kind, volume, variant) = match Method::from_path(path) {
        Some(Method::CreateVolume) => {
            let request = CreateVolumeRequest::decode(body).ok()?;
            let variant = request.parameters.get(VARIANT)?;
            (OperationKind::Create, number(&request.name, "volume-")?, number(variant, "")?)
        }
        Some(Method::DeleteVolume) => {
            let request = DeleteVolumeRequest::decode(body).ok()?;
            (OperationKind::Delete, number(&request.volume_id, "id-")?, 0)
        }
        Some(Method::ControllerPublishVolume) => {
            let request = ControllerPublishVolumeRequest::decode(body).ok()?;
            (OperationKind::Publish, number(&request.volume_id, "id-")?, number(&request.node_id, "")?)
        }
        None if path == WATCH => (OperationKind::Watch, 0, number(std::str::from_utf8(&body).ok()?, "")?),
        _ => return None,
    };
    let asked = (agent, kind, volume, variant);
    operations.iter().position(|known| (known.agent, known.kind, known.volume, known.variant) == asked)
}

/// A message of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) operation: usize,
    pub(crate) execution: usize,
    /// Counts from 1.
    pub(crate) number: usize,
}

impl Part {
    fn text(self) -> String {
        format!("part {} {} {} ", self.operation, self.execution, self.number)
    }

    pub(crate) fn read(message: &Bytes) -> Option<Self> {
        let volume = CreateVolumeResponse::decode(message.clone()).ok().and_then(|response| response.volume);
        let inside = volume.as_ref().and_then(|volume| volume.volume_context.get(PART));
        let text = inside.map_or_else(|| std::str::from_utf8(message), |text| Ok(text)).ok()?;
        let [operation, execution, number] = numbers(text, "part")?;
        Some(Self { operation, execution, number })
    }
}

/// The end that the driver gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Closing {
    pub(crate) operation: usize,
    pub(crate) execution: usize,
    /// How many messages came before.
    pub(crate) messages: usize,
}

impl Closing {
    /// As a status: a success, or an error of the driver.
    pub(crate) fn outcome(self, fails: bool) -> Outcome {
        let Self { operation, execution, messages } = self;
        let code = if fails { Code::INTERNAL } else { Code::OK };
        Outcome::from_driver(code, format!("end {operation} {execution} {messages} "))
    }

    pub(crate) fn read(outcome: &Outcome) -> Option<Self> {
        let [operation, execution, messages] = numbers(&outcome.message, "end")?;
        Some(Self { operation, execution, messages })
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
