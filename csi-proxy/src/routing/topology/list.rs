//! `ListVolumes`, `ListSnapshots` and `ControllerListVolumeHealth`: all nodes one after the other. A list is
//! complete or fails.

use bytes::Bytes;
use csi_proto::Method;
use csi_proto::csi::v1 as csi;
use prost::Message as _;

use super::token::Token;
use super::{Answer, InboundCall, TopologyRouter};
use crate::call::NodeId;
use crate::call::protobuf;
use crate::call::{BadRequest, Subject};
use crate::relay::Relay;
use crate::routing::Refusal;

// Field numbers, the same in all three requests and responses.
const STARTING_TOKEN: u32 = 2;
const ENTRIES: u32 = 1;
const NEXT_TOKEN: u32 = 2;

// Field numbers of ListSnapshotsRequest.
const SOURCE_VOLUME_ID: u32 = 3;
const SNAPSHOT_ID: u32 = 4;

/// The size in bytes above which a page gets no entries of another node. gRPC clients accept 4 MiB by default.
const PAGE_SIZE: usize = 1 << 20;

impl TopologyRouter {
    pub(super) async fn list(
        &self,
        relay: &dyn Relay,
        inbound: &InboundCall,
        method: Method,
    ) -> Result<Answer, Refusal> {
        // The fields used here are the same in all three requests.
        let request = csi::ListVolumesRequest::decode(inbound.body.clone());
        let request = request.map_err(|_| BadRequest::Unreadable { field: "the request" })?;
        let nodes = self.nodes_of_list(method, &inbound.body);
        let (mut at, mut inner) = start(&nodes, &request.starting_token)?;
        let mut page = Vec::new();
        loop {
            let Some(node) = nodes.get(at) else { return Err(Refusal::BadToken) };
            let body = protobuf::append_field(&inbound.body, STARTING_TOKEN, inner.as_bytes());
            let answer = self.ask(relay, node, &InboundCall { body, ..inbound.clone() }).await;
            let (Some(message), outcome) = answer else { return Ok(answer) };
            // In protobuf, repeated fields concatenate, and the last value of a text field is valid.
            page.extend_from_slice(&message);
            let next = match (protobuf::text(&message, NEXT_TOKEN), nodes.get(at + 1)) {
                (Some(inner), _) => Token { node: node.clone(), inner: inner.to_owned() },
                (None, Some(next)) => {
                    let empty = protobuf::count(&page, ENTRIES) == 0;
                    if empty || (request.max_entries == 0 && page.len() < PAGE_SIZE) {
                        (at, inner) = (at + 1, String::new());
                        continue;
                    }
                    Token { node: next.clone(), inner: String::new() }
                }
                (None, None) => return Ok((Some(page.into()), outcome)),
            };
            let page = protobuf::append_field(&page, NEXT_TOKEN, next.encode().as_bytes());
            return Ok((Some(page), outcome));
        }
    }

    /// The nodes whose entries are in a list.
    fn nodes_of_list(&self, method: Method, body: &Bytes) -> Vec<NodeId> {
        let known = |number: u32, make: fn(Box<str>) -> Subject| {
            protobuf::text(body, number).and_then(|id| self.placements.node_of(&make(id.into())))
        };
        let only = match method {
            Method::ListSnapshots => {
                known(SNAPSHOT_ID, Subject::Snapshot).or_else(|| known(SOURCE_VOLUME_ID, Subject::Volume))
            }
            _ => None,
        };
        only.map_or_else(|| self.names(), |node| vec![node])
    }
}

fn start(nodes: &[NodeId], token: &str) -> Result<(usize, String), Refusal> {
    if token.is_empty() {
        return Ok((0, String::new()));
    }
    let Token { node, inner } = Token::decode(token).ok_or(Refusal::BadToken)?;
    let at = nodes.iter().position(|other| *other == node).ok_or(Refusal::BadToken)?;
    Ok((at, inner))
}
