//! Adds the topology of the node to answers of drivers that report none.

use async_trait::async_trait;
use csi_proto::csi::v1 as csi;
use csi_proto::{DriverName, Method, Validate};
use prost::Message;

use super::Relay;
use crate::call::{Call, Fault, NodeId, Replies};
use crate::driver_info::MAX_RECORD;

/// The topology segment of a node is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid topology segment {key}={value}: {reason}; expected a key PREFIX/NAME and a node name of at most 63 bytes each"
)]
#[non_exhaustive]
pub struct InvalidSegment {
    /// The key; by default `topology.DRIVER/node`.
    pub key: String,
    /// The value: the name of the node.
    pub value: String,
    /// The violated rule of the spec.
    pub reason: String,
}

/// The topology segment of one node: a key, with the name of the node as its value.
///
/// The name must not change. Kubelet writes the segment to its Node as a label, and rejects a driver that reports
/// another value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSegment {
    node: NodeId,
    key: Option<String>,
}

impl NodeSegment {
    /// Creates the segment of a node with a key per driver: `topology.DRIVER/node`.
    #[must_use]
    pub fn of_driver(node: NodeId) -> Self {
        Self { node, key: None }
    }

    /// Creates the segment of a node with this key for all drivers.
    ///
    /// # Errors
    /// If the key or the name is invalid by the spec.
    pub fn with_key(node: NodeId, key: impl Into<String>) -> Result<Self, InvalidSegment> {
        let key = key.into();
        checked(&key, &node)?;
        Ok(Self { node, key: Some(key) })
    }

    /// The topology for a driver.
    ///
    /// # Errors
    /// If the name of the driver is too long for a key, or the name of the node is too long for a value: 63 bytes.
    pub fn topology(&self, driver: &DriverName) -> Result<csi::Topology, InvalidSegment> {
        match &self.key {
            Some(key) => checked(key, &self.node),
            None => checked(&format!("topology.{driver}/node"), &self.node),
        }
    }
}

fn checked(key: &str, node: &NodeId) -> Result<csi::Topology, InvalidSegment> {
    let topology = csi::Topology::from_iter([(key, node.as_str())]);
    let warnings: Vec<_> = topology.validate().iter().map(ToString::to_string).collect();
    let no_prefix = (!key.contains('/')).then(|| "the key has no prefix".to_owned());
    match warnings.into_iter().chain(no_prefix).next() {
        None => Ok(topology),
        Some(reason) => {
            let (key, value) = (key.to_owned(), node.as_str().to_owned());
            Err(InvalidSegment { key, value, reason })
        }
    }
}

/// Reports a topology for a driver without one, so that an orchestrator can select the node of its volumes.
///
/// A `NodeGetInfo` without topology segments gets the segment of the node, and `GetPluginCapabilities` gets
/// `VOLUME_ACCESSIBILITY_CONSTRAINTS`. The topology of a driver is not changed: all keys of a driver have the same
/// prefix, so another key must not be added. Additions are appended to the encoded answer, which preserves unknown
/// fields. All other calls pass unchanged.
#[derive(Debug, Clone)]
pub struct TopologyRelay<R> {
    inner: R,
    key: Option<String>,
    /// The node of the segment; `None` adds the segment of the node of each call.
    node: Option<NodeId>,
}

impl<R: Relay> TopologyRelay<R> {
    /// Adds the segment to the answers of a relay.
    #[must_use]
    pub fn new(inner: R, segment: NodeSegment) -> Self {
        Self { inner, key: segment.key, node: Some(segment.node) }
    }

    /// Adds the segment of the node of each call, with this key.
    pub(crate) fn with_key(inner: R, key: String) -> Self {
        Self { inner, key: Some(key), node: None }
    }
}

#[async_trait]
impl<R: Relay> Relay for TopologyRelay<R> {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        let more: fn(&[u8], csi::Topology) -> Option<Vec<u8>> = match Method::from_path(call.method.as_str())
        {
            Some(Method::NodeGetInfo) => info_addition,
            Some(Method::GetPluginCapabilities) => capabilities_addition,
            _ => return self.inner.relay(call).await,
        };
        // Without a segment there is nothing to add and no constraint to report.
        let node = self.node.as_ref().unwrap_or(&call.node).clone();
        let segment = NodeSegment { node, key: self.key.clone() };
        let Ok(topology) = segment.topology(&call.driver) else { return self.inner.relay(call).await };
        let (message, outcome) = self.inner.relay(call).await?.read_unary().await;
        // A larger answer is passed on, and refused where it is used: decoding it here would delay other calls.
        let small = message.as_ref().filter(|message| message.len() <= MAX_RECORD);
        let extended = small.and_then(|message| Some([message, &*more(message, topology)?].concat().into()));
        Ok(Replies::whole(extended.or(message), outcome))
    }
}

/// The bytes to append to a NodeGetInfoResponse.
fn info_addition(answer: &[u8], topology: csi::Topology) -> Option<Vec<u8>> {
    let known = csi::NodeGetInfoResponse::decode(answer).ok()?;
    if known.accessible_topology.is_some_and(|topology| !topology.segments.is_empty()) {
        return None;
    }
    // Decoders merge repeated messages.
    let more = csi::NodeGetInfoResponse { accessible_topology: Some(topology), ..Default::default() };
    Some(more.encode_to_vec())
}

/// The bytes to append to a GetPluginCapabilitiesResponse.
fn capabilities_addition(answer: &[u8], _: csi::Topology) -> Option<Vec<u8>> {
    use csi::plugin_capability::service::Type::VolumeAccessibilityConstraints;
    let known = csi::GetPluginCapabilitiesResponse::decode(answer).ok()?;
    if known.has_service(VolumeAccessibilityConstraints) {
        return None;
    }
    let more = csi::PluginCapability::service(VolumeAccessibilityConstraints);
    Some(csi::GetPluginCapabilitiesResponse { capabilities: vec![more] }.encode_to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> NodeId {
        NodeId::new("edge-1").unwrap()
    }

    fn driver(name: &str) -> DriverName {
        DriverName::new(name).unwrap()
    }

    fn topology() -> csi::Topology {
        NodeSegment::of_driver(node()).topology(&driver("csi.example.org")).unwrap()
    }

    #[test]
    fn default_key_contains_the_driver() {
        assert_eq!(topology().segment("topology.csi.example.org/node"), Some("edge-1"));
        let given = NodeSegment::with_key(node(), "example.org/rack").unwrap();
        assert_eq!(given.topology(&driver("a.b")).unwrap().segment("example.org/rack"), Some("edge-1"));
    }

    #[test]
    fn rejects_invalid_segments() {
        for key in ["node", "/node", "a/", "a b/c", "a/b/c"] {
            let error = NodeSegment::with_key(node(), key).unwrap_err();
            assert!(error.to_string().contains("PREFIX/NAME"), "{error}");
        }
        let long = driver(&format!("a{}", ".b".repeat(29)));
        let error = NodeSegment::of_driver(node()).topology(&long).unwrap_err();
        assert!(error.reason.contains("63"), "{error}");
        let far = NodeId::new("n".repeat(64)).unwrap();
        assert!(NodeSegment::of_driver(far).topology(&driver("a.b")).is_err());
    }

    #[test]
    fn adds_segment_and_keeps_unknown_fields() {
        let info = csi::NodeGetInfoResponse {
            node_id: "n".to_owned(),
            max_volumes_per_node: 7,
            accessible_topology: Some(csi::Topology::default()),
        };
        // Field 99 of a later version of the spec.
        let mut answer = info.encode_to_vec();
        answer.extend_from_slice(&[0x9a, 0x06, 0x02, b'h', b'i']);
        let more = info_addition(&answer, topology()).unwrap();
        let whole = [&answer[..], &more].concat();
        assert!(whole.starts_with(&answer));
        let found = csi::NodeGetInfoResponse::decode(&*whole).unwrap();
        assert_eq!((found.node_id.as_str(), found.max_volumes_per_node), ("n", 7));
        assert_eq!(found.accessible_topology, Some(topology()));
        assert_eq!(info_addition(&whole, topology()), None, "once is enough");
    }

    #[test]
    fn keeps_topology_of_the_driver() {
        let own = csi::Topology::from_iter([("vendor.example/zone", "z")]);
        let info = csi::NodeGetInfoResponse { accessible_topology: Some(own), ..Default::default() };
        assert_eq!(info_addition(&info.encode_to_vec(), topology()), None);
    }

    #[test]
    fn adds_constraint_once() {
        let more = capabilities_addition(&[], topology()).unwrap();
        assert_eq!(capabilities_addition(&more, topology()), None);
        assert_eq!(info_addition(&[0xff], topology()), None, "an undecodable answer is not changed");
    }
}
